package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

// run runs the suite and keeps what came of it.
func run(ctx context.Context, o options) (code int, err error) {
	if err := os.RemoveAll(o.out); err != nil {
		return 1, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return 1, err
	}
	began := time.Now()
	s, err := startStage(ctx, o)
	if err != nil {
		return 1, err
	}
	var suiteErr error
	for _, p := range passes(o.focus) {
		suiteErr = errors.Join(suiteErr, runSuite(ctx, o, p, s.socket))
	}
	if err := s.stop(); err != nil {
		return 1, err
	}
	version, ran, err := readPasses(o)
	if err != nil {
		return 1, errors.Join(err, suiteErr)
	}
	old, err := outcome.Read(o.record.Results)
	if err != nil {
		return 1, err
	}
	kept := merge(old, version, ran, o.record.Commit, began)
	var causes map[string]string
	if o.record.Results != "" {
		if err := o.record.Keep(kept, page, os.Stderr); err != nil {
			return 1, err
		}
		if causes, err = outcome.ReadCauses(o.record.Causes); err != nil {
			return 1, err
		}
	}
	return report(ran, causes, time.Since(began), suiteErr)
}

// report says what came of the run.
func report(ran map[string]outcome.Outcome, causes map[string]string, took time.Duration, suiteErr error) (int, error) {
	counts := map[string]int{}
	code := 0
	for name, o := range ran {
		counts[o.Status]++
		switch {
		case o.Status != outcome.Failed:
		case causes[name] != "":
			fmt.Printf("fails, as known: %s\n", name)
		default:
			fmt.Printf("FAILED: %s\n  %s\n", name, outcome.FirstLine(o.Message))
			code = 1
		}
	}
	fmt.Printf("critest: %d passed, %d failed, %d not run, in %s\n", counts[outcome.Passed], counts[outcome.Failed], counts[outcome.NotRun], took.Round(time.Second))
	switch {
	case counts[outcome.Passed]+counts[outcome.Failed] == 0:
		return 1, errors.Join(errors.New("no test ran"), suiteErr)
	case counts[outcome.Failed] == 0 && suiteErr != nil:
		return 1, fmt.Errorf("every test passed but the suite did not end well: %w", suiteErr)
	}
	return code, nil
}

// pass is one run of the suite, whose tests are told apart by a word behind their names.
type pass struct {
	name, focus, word string
	args              []string
}

// passes are the suite as it is and, where streams are chosen, these by WebSocket as well.
func passes(focus string) []pass {
	out := []pass{{name: "suite", focus: focus}}
	const streams = "Streaming"
	if chosen, err := regexp.MatchString(focus, "[k8s.io] "+streams+" runtime should support"); err == nil && chosen {
		out = append(out, pass{"websocket", streams, " (WebSocket)", []string{"-websocket-exec", "-websocket-attach", "-websocket-portforward"}})
	}
	return out
}

// report is where a pass's outcomes are.
func (p pass) report() string { return p.name + ".xml" }

// readPasses reads what all passes wrote.
func readPasses(o options) (version string, ran map[string]outcome.Outcome, err error) {
	ran = map[string]outcome.Outcome{}
	for _, p := range passes(o.focus) {
		suite, some, err := readReport(filepath.Join(o.out, p.report()))
		if err != nil {
			return "", nil, err
		}
		for name, t := range some {
			ran[name+p.word] = t
		}
		version = suite
	}
	return version, ran, nil
}

// runSuite writes a pass's report and log into the directory of results.
func runSuite(ctx context.Context, o options, p pass, socket string) error {
	log, err := os.Create(filepath.Join(o.out, p.name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{fmt.Sprintf("--procs=%d", o.parallel), "--timeout=" + o.timeout.String(), "--no-color", "--skip=benchmark",
		"--output-dir=" + o.out, "--junit-report=" + p.report()}
	if p.focus != "" {
		args = append(args, "--focus="+p.focus)
	}
	args = append(args, o.suite(), "--", "-runtime-endpoint=unix://"+socket)
	cmd := exec.CommandContext(ctx, o.ginkgo(), append(args, p.args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, o.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// As from a terminal: the suite writes its report of what ran until then.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	return cmd.Run()
}
