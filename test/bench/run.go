package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/skiff-k8s/skiff/test/bench/procfs"
	"github.com/skiff-k8s/skiff/test/bench/record"
)

// runOptions are the flags of run; stages get them all.
type runOptions struct {
	skiff, apibench, twins, kubectl, expr, results, work string
	rounds                                               int
	profiles                                             bool
}

func (o *runOptions) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.skiff, "skiff", "bin/skiff", "skiff's binary")
	fs.StringVar(&o.apibench, "apibench", "bin/apibench", "the load generator's binary")
	fs.StringVar(&o.twins, "twins", ".cache/twins", "folder of upstream's binaries")
	fs.StringVar(&o.expr, "case", "", "regular expression of the cases to run; empty: all")
	fs.StringVar(&o.results, "results", "test/bench/results", "folder of the JSON lines")
	fs.StringVar(&o.work, "work", "", "folder for data and logs of clusters; empty: a temporary one")
	fs.IntVar(&o.rounds, "rounds", 3, "rounds of skiff and upstream by turns")
	fs.BoolVar(&o.profiles, "profiles", true, "add a round in which CPU profiles are taken")
}

func runCommand(ctx context.Context, args []string) error {
	var o runOptions
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	o.flags(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("run needs root, for network namespaces and containers")
	}
	some, err := choose(stages(), o.expr)
	if err != nil {
		return err
	}
	for _, p := range []*string{&o.skiff, &o.apibench, &o.twins, &o.results} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	if o.work == "" {
		if o.work, err = os.MkdirTemp("/tmp", "skiff-bench-"); err != nil { // short: unix sockets live below it
			return err
		}
		defer os.RemoveAll(o.work)
	}
	meta, err := describe(ctx)
	if err != nil {
		return err
	}
	old, err := record.ReadDir(o.results)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.results, 0o755); err != nil {
		return err
	}
	var fresh []record.Line
	var failed error
	begin := time.Now()
	for _, turn := range turns(some, o.rounds, o.profiles) {
		lines, err := o.isolate(ctx, turn)
		if ctx.Err() != nil {
			return fmt.Errorf("%s of %s, round %d: %w", turn.stage, turn.side, turn.round, ctx.Err())
		}
		if err != nil {
			// The others go on; that this one failed is a result too.
			failed = errors.Join(failed, fmt.Errorf("%s of %s, round %d: %w", turn.stage, turn.side, turn.round, err))
			lines = o.failed(some, turn, err)
		}
		for i := range lines {
			lines[i].Run = meta
		}
		fresh = append(fresh, lines...)
		// After each turn, so that a run that is broken off leaves what it measured.
		if err := record.Write(o.results, record.Merge(old, fresh)); err != nil {
			return err
		}
		fmt.Printf("%s  %-10s %-8s round %d: %d cases\n", time.Since(begin).Round(time.Second), turn.stage, turn.side, turn.round, len(lines))
	}
	return failed
}

// failed are lines that say that a turn broke off.
func (o *runOptions) failed(some []stage, t turn, cause error) []record.Line {
	var lines []record.Line
	re := regexp.MustCompile(o.expr) // choose compiled it before
	for _, s := range some {
		if s.name != t.stage || t.round == 0 {
			continue
		}
		for _, c := range s.cases {
			if re.MatchString(c.name) {
				lines = append(lines, record.Line{Side: t.side, Round: t.round, Stage: t.stage, NotRun: "failed: " + cause.Error(), Result: record.Result{Case: c.name}})
			}
		}
	}
	return lines
}

// turn is one stage on one side.
type turn struct {
	stage, side string
	round       int // 0: with profiles
}

// turns alternate the sides, and which of them begins.
func turns(some []stage, rounds int, profiles bool) []turn {
	var all []turn
	for _, s := range some {
		n := rounds
		if s.rounds > 0 {
			n = min(n, s.rounds)
		}
		for r := 1; r <= n; r++ {
			pair := []turn{{s.name, record.Skiff, r}, {s.name, record.Upstream, r}}
			if r%2 == 0 {
				pair[0], pair[1] = pair[1], pair[0]
			}
			all = append(all, pair...)
		}
		if profiles {
			all = append(all, turn{s.name, record.Skiff, 0}, turn{s.name, record.Upstream, 0})
		}
	}
	return all
}

// isolate runs a turn in a process with network and mounts of its own, and returns its lines.
func (o *runOptions) isolate(ctx context.Context, t turn) ([]record.Line, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(o.work, fmt.Sprintf("%s%d%s", t.stage, t.round, t.side[:1]))
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil { // of a run that was broken off
		return nil, err
	}
	out := filepath.Join(dir, "lines.jsonl")
	cmd := exec.CommandContext(ctx, exe, "stage", "--skiff", o.skiff, "--apibench", o.apibench, "--twins", o.twins,
		"--case", o.expr, "--work", dir, "--stage", t.stage, "--side", t.side, fmt.Sprintf("--round=%d", t.round), "--out", out)
	var complaints tail
	cmd.Stdout, cmd.Stderr = os.Stdout, io.MultiWriter(os.Stderr, &complaints)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, complaints.first())
	}
	lines, err := record.Read(out)
	if err != nil {
		return nil, err
	}
	return lines, os.RemoveAll(dir)
}

// describe says what is measured and where.
func describe(ctx context.Context) (record.Run, error) {
	load, err := procfs.Load()
	if err != nil {
		return record.Run{}, err
	}
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return record.Run{}, fmt.Errorf("find the commit: %w", err)
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return record.Run{}, err
	}
	return record.Run{
		Started: time.Now().UTC().Truncate(time.Second),
		Commit:  strings.TrimSpace(string(commit)),
		Machine: fmt.Sprintf("%d cores (%s), Linux %s, %s", runtime.NumCPU(), procfs.Model(), strings.TrimSpace(string(kernel)), runtime.Version()),
		Load:    load,
	}, nil
}

// tail keeps what a stage complains of.
type tail struct{ bytes.Buffer }

// first is the first line of it.
func (t *tail) first() string {
	line, _, _ := strings.Cut(strings.TrimSpace(t.String()), "\n")
	return line
}

// matcher is the expression, compiled; choose has checked it.
func (o *runOptions) matcher() (*regexp.Regexp, error) { return regexp.Compile(o.expr) }
