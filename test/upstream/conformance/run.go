package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/isolated"
	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

// registries are the hosts of the names that tests ask images by.
var registries = []string{"registry.k8s.io"}

// run is the whole of a run, in namespaces of its own.
func run(ctx context.Context, o options) (exitCode int, err error) {
	all, err := catalogue(o.e2e)
	if err != nil {
		return 1, err
	}
	chosen, err := o.choice.of(all)
	if err != nil {
		return 1, err
	}
	version, err := suiteVersion(o.e2e)
	if err != nil {
		return 1, err
	}
	var kept outcome.Results
	if o.record.Results != "" {
		if kept, err = outcome.Read(o.record.Results); err != nil {
			return 1, err
		}
		if _, err := outcome.ReadCauses(o.record.Causes); err != nil {
			return 1, err
		}
	}
	if err := os.RemoveAll(o.out); err != nil {
		return 1, fmt.Errorf("clear %s: %w", o.out, err)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return 1, fmt.Errorf("make folder of the run: %w", err)
	}
	start := time.Now()
	ran, runErr := runOnCluster(ctx, o, plan(chosen, seconds(kept), o.parallel))
	merged := merge(kept, version, all, chosen, ran, o.record.Commit, start.Truncate(time.Second))
	good := summary(chosen, merged, time.Since(start))
	// A run that started no test, or was told to stop, says nothing of the tests.
	if o.record.Results != "" && len(ran) > 0 && ctx.Err() == nil {
		runErr = errors.Join(runErr, o.record.Keep(merged, page, os.Stdout))
	}
	fmt.Println("JUnit and logs:", o.out)
	if runErr != nil || !good {
		return 1, runErr
	}
	return 0, nil
}

// runOnCluster returns the outcomes of all that ran, whatever went wrong.
func runOnCluster(ctx context.Context, o options, stages [][]phase) (ran map[string]outcome.Outcome, err error) {
	dir, err := os.MkdirTemp("/tmp", "skiff-conformance-") // short: unix sockets live below it
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, removeData(dir)) }()
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	if err := isolated.Prepare(ctx, dir, map[string][]string{isolated.Address: append([]string{name}, registries...)}); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "d")
	if err := os.Mkdir(data, 0o755); err != nil {
		return nil, err
	}
	inMemory, err := prepareData(data)
	if err != nil {
		return nil, err
	}
	if inMemory {
		fmt.Println("the disk is nearly full: the cluster's data is in memory")
	}
	log, err := os.Create(filepath.Join(o.out, "run.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cluster, err := startCluster(ctx, o.tools, filepath.Join(data, "c"), o.nodes, registries, log)
	defer func() { err = errors.Join(err, cluster.down(o.out)) }()
	if err != nil {
		return nil, err
	}
	total := 0
	for _, p := range slices.Concat(stages...) {
		total += len(p.specs)
	}
	show := &progress{out: os.Stdout, total: total, start: time.Now(), now: time.Now, every: 10 * time.Second}
	ran = map[string]outcome.Outcome{}
	for _, stage := range stages {
		err = errors.Join(err, runStage(ctx, o, stage, cluster.kubeconfig(), show, ran))
		if ctx.Err() != nil {
			return ran, errors.Join(err, errors.New("interrupted"))
		}
	}
	return ran, err
}

// runStage runs phases at the same time and adds what ran to ran.
func runStage(ctx context.Context, o options, stage []phase, kubeconfig string, show *progress, ran map[string]outcome.Outcome) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all error
	for _, p := range stage {
		fmt.Printf("%s: %d tests, %d at a time\n", p.name, len(p.specs), p.procs)
		wg.Go(func() {
			outcomes, err := runPhase(ctx, o.tools, p, o.nodes, kubeconfig, o.out, show, o.timeout)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(ran, outcomes)
			all = errors.Join(all, err)
		})
	}
	wg.Wait()
	return all
}

// summary names what did not pass and says whether all did.
func summary(chosen []spec, r outcome.Results, took time.Duration) bool {
	counts := map[string]int{}
	for _, s := range chosen {
		t := r.ByName[s.name]
		counts[t.Status]++
		switch t.Status {
		case outcome.Failed:
			fmt.Printf("FAILED   %s\n         %s\n", t.Name, outcome.FirstLine(t.Message))
		case outcome.NotRun:
			fmt.Printf("NOT RUN  %s\n", t.Name)
		}
	}
	fmt.Printf("%d passed, %d failed, %d not run of %d in %s\n", counts[outcome.Passed], counts[outcome.Failed], counts[outcome.NotRun], len(chosen), took.Round(time.Second))
	return counts[outcome.Passed] == len(chosen)
}

func suiteVersion(e2e string) (string, error) {
	out, err := exec.Command(e2e, "--version").Output()
	version := strings.TrimSpace(string(out))
	if err != nil || !strings.HasPrefix(version, "v") {
		return "", fmt.Errorf("ask the suite for its version: %q, %w", version, err)
	}
	return version, nil
}
