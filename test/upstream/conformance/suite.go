package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

// longestArgument is the kernel's bound for one argument (MAX_ARG_STRLEN).
const longestArgument = 128 << 10

// runPhase runs the tests of one phase and returns the outcomes of those that ran, beside
// any error. JUnit and the suite's log are in a folder of the phase's own.
func runPhase(ctx context.Context, o tools, p phase, nodes int, kubeconfig, out string, show *progress, timeout time.Duration) (map[string]outcome.Outcome, error) {
	dir := filepath.Join(out, p.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	match := focus(p.specs)
	if len(match) >= longestArgument {
		return nil, fmt.Errorf("phase %s: the names of %d tests make an argument of %d bytes; the kernel takes %d", p.name, len(p.specs), len(match), longestArgument)
	}
	log, err := os.Create(filepath.Join(dir, "e2e.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, o.ginkgo, "-p", fmt.Sprintf("--procs=%d", p.procs), "--timeout="+timeout.String(), "--no-color", "--silence-skips", "--focus="+match, o.e2e, "--",
		"--provider=skeleton", "--kubeconfig="+kubeconfig, "--kubectl-path="+o.kubectl,
		"--allowed-not-ready-nodes=-1", fmt.Sprintf("--num-nodes=%d", nodes), "--node-os-distro=debian",
		"--report-dir="+dir, "--report-complete-junit", "--disable-log-dump")
	cmd.Stdout, cmd.Stderr, cmd.Dir = io.MultiWriter(log, &watcher{progress: show}), log, dir
	// An interrupt of all its processes, as from a terminal, lets the suite write its report
	// of what ran until then; what does not end by it is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	runErr := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // ESRCH where all have ended
	}
	ran, err := readRun(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("phase %s: %w; its log is %s", p.name, err, log.Name()), runErr)
	}
	return ran, unexplained(p, ran, runErr)
}

// unexplained is the suite's error where no test failed that explains it.
func unexplained(p phase, ran map[string]outcome.Outcome, runErr error) error {
	if runErr == nil {
		return nil
	}
	for _, s := range p.specs {
		if o, did := ran[s.name]; !did || o.Status != outcome.Passed {
			return nil
		}
	}
	return fmt.Errorf("phase %s: every test passed but the suite did not end well: %w", p.name, runErr)
}
