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
	kept := results{}
	if o.record.results != "" {
		if kept, err = readResults(o.record.results); err != nil {
			return 1, err
		}
		if _, err := readCauses(o.record.causes); err != nil {
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
	ran, runErr := runOnCluster(ctx, o, plan(chosen, kept.seconds(), o.parallel))
	merged := kept.merge(version, all, chosen, ran, o.record.commit, start.Truncate(time.Second))
	good := summary(chosen, merged, time.Since(start))
	// A run that started no test, or was told to stop, says nothing of the tests.
	if o.record.results != "" && len(ran) > 0 && ctx.Err() == nil {
		runErr = errors.Join(runErr, o.record.write(merged))
	}
	fmt.Println("JUnit and logs:", o.out)
	if runErr != nil || !good {
		return 1, runErr
	}
	return 0, nil
}

// runOnCluster returns the outcomes of all that ran, whatever went wrong.
func runOnCluster(ctx context.Context, o options, stages [][]phase) (ran map[string]outcome, err error) {
	dir, err := os.MkdirTemp("/tmp", "skiff-conformance-") // short: unix sockets live below it
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, removeData(dir)) }()
	if err := prepareNamespaces(ctx, dir, registries); err != nil {
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
	ran = map[string]outcome{}
	for _, stage := range stages {
		err = errors.Join(err, runStage(ctx, o, stage, cluster.kubeconfig(), show, ran))
		if ctx.Err() != nil {
			return ran, errors.Join(err, errors.New("interrupted"))
		}
	}
	return ran, err
}

// runStage runs phases at the same time and adds what ran to ran.
func runStage(ctx context.Context, o options, stage []phase, kubeconfig string, show *progress, ran map[string]outcome) error {
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
func summary(chosen []spec, r results, took time.Duration) bool {
	counts := map[string]int{}
	for _, s := range chosen {
		t := r.byName[s.name]
		counts[t.status]++
		switch t.status {
		case failed:
			fmt.Printf("FAILED   %s\n         %s\n", t.name, firstLine(t.message))
		case notRun:
			fmt.Printf("NOT RUN  %s\n", t.name)
		}
	}
	fmt.Printf("%d passed, %d failed, %d not run of %d in %s\n", counts[passed], counts[failed], counts[notRun], len(chosen), took.Round(time.Second))
	return counts[passed] == len(chosen)
}

func (r record) write(merged results) error {
	if err := os.MkdirAll(filepath.Dir(r.results), 0o755); err != nil {
		return fmt.Errorf("make folder of results: %w", err)
	}
	if err := merged.write(r.results); err != nil {
		return err
	}
	return r.writePage(merged)
}

func (r record) writePage(kept results) error {
	causes, err := readCauses(r.causes)
	if err != nil {
		return err
	}
	for _, s := range stale(causes, kept) {
		fmt.Printf("%s: %s; its cause can go\n", r.causes, s)
	}
	if err := os.WriteFile(r.page, []byte(page(kept, causes)), 0o644); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

func suiteVersion(e2e string) (string, error) {
	out, err := exec.Command(e2e, "--version").Output()
	version := strings.TrimSpace(string(out))
	if err != nil || !strings.HasPrefix(version, "v") {
		return "", fmt.Errorf("ask the suite for its version: %q, %w", version, err)
	}
	return version, nil
}
