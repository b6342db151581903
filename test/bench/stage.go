package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/skiff-k8s/skiff/test/bench/profile"
	"github.com/skiff-k8s/skiff/test/bench/record"
	"github.com/skiff-k8s/skiff/test/bench/side"
)

// stageRun is one turn, in namespaces of its own.
type stageRun struct {
	runOptions
	ctx    context.Context
	stage  stage
	side   string
	round  int
	wanted map[string]bool
	audit  bool
	lines  []record.Line
}

func stageCommand(ctx context.Context, args []string) (err error) {
	var o runOptions
	var name, sideName, out string
	var round int
	set := flag.NewFlagSet("stage", flag.ContinueOnError)
	o.flags(set)
	set.StringVar(&name, "stage", "", "name of the stage")
	set.StringVar(&sideName, "side", "", "skiff or upstream")
	set.IntVar(&round, "round", 1, "0: with profiles")
	set.StringVar(&out, "out", "", "file for the lines")
	if err := set.Parse(args); err != nil {
		return err
	}
	r := &stageRun{runOptions: o, ctx: ctx, side: sideName, round: round}
	for _, s := range stages() {
		if s.name == name {
			r.stage = s
		}
	}
	if r.stage.run == nil {
		return fmt.Errorf("no stage %q", name)
	}
	re, err := o.matcher()
	if err != nil {
		return err
	}
	r.wanted = chosen(r.stage, re)
	if err := network(ctx); err != nil {
		return err
	}
	if err := r.stage.run(r); err != nil {
		return err
	}
	var text bytes.Buffer
	for _, l := range r.lines {
		line, err := json.Marshal(l)
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	return os.WriteFile(out, text.Bytes(), 0o644)
}

// network gives the new namespace what a host has: loopback, an address and a default route.
func network(ctx context.Context) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	// /sys shows the links of the namespace that mounted it.
	for _, line := range []string{
		"link set lo up", "link add bench0 type veth peer name bench1", "addr add 192.168.77.1/24 dev bench0",
		"link set bench0 up", "link set bench1 up", "route add default via 192.168.77.2",
	} {
		if text, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, bytes.TrimSpace(text))
		}
	}
	return nil
}

// notRun records for every wanted case why it can not be measured.
func (r *stageRun) notRun(cause error) {
	for _, c := range r.stage.cases {
		if r.wanted[c.name] && r.round != 0 {
			r.add(record.Line{NotRun: cause.Error(), Result: record.Result{Case: c.name}})
		}
	}
}

func (r *stageRun) add(l record.Line) {
	l.Side, l.Round, l.Stage, l.Audit = r.side, r.round, r.stage.name, r.audit
	r.lines = append(r.lines, l)
}

// controlPlane starts the side's; ok false: it can not, and the lines say why.
func (r *stageRun) controlPlane() (k *side.Cluster, ok bool, err error) {
	if r.side == record.Upstream {
		if err := side.Missing(r.twins, side.ControlPlane()...); err != nil {
			r.notRun(err)
			return nil, false, nil
		}
	}
	k, err = side.Start(r.ctx, side.Config{Side: r.side, Dir: filepath.Join(r.work, "d"), Skiff: r.skiff, Twins: r.twins})
	if err != nil {
		return nil, false, fmt.Errorf("start control plane: %w%s", err, r.logs())
	}
	r.audit = k.Audit
	return k, true, nil
}

// logs are the last lines that the processes wrote, for an error's sake.
func (r *stageRun) logs() string {
	var out strings.Builder
	paths, err := filepath.Glob(filepath.Join(r.work, "d/log/*.log"))
	if err != nil {
		return ""
	}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil || filepath.Base(p) == "audit.log" {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&out, "\n%s:\n  %s", p, strings.Join(lines[max(0, len(lines)-5):], "\n  "))
	}
	return out.String()
}

// load runs apibench with the steps that have a spec, and keeps the wanted results.
func (r *stageRun) load(k *side.Cluster) (err error) {
	var specs []string
	for _, c := range r.stage.steps(r.wanted) {
		if c.spec == "" || r.round == 0 && c.noProfile && !c.setup {
			continue
		}
		spec := c.spec + ":id=" + c.name
		if c.noProfile || !r.wanted[c.name] {
			spec += ":profile=no"
		}
		specs = append(specs, spec)
	}
	if len(specs) == 0 {
		return nil
	}
	if r.round > 0 {
		return r.generate(k, specs, "")
	}
	dir := filepath.Join(r.work, "profiles")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return r.generate(k, specs, dir)
}

func (r *stageRun) generate(k *side.Cluster, specs []string, profiles string) error {
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Minute)
	defer cancel()
	args := []string{"--kubeconfig", k.User, "--namespace", "bench", "--pid", k.PIDs(), "--cases", strings.Join(specs, ",")}
	if profiles != "" {
		args = append(args, "--profile", profiles)
	}
	cmd := exec.CommandContext(ctx, r.apibench, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 2) { // 2: operations failed, the results count them
		return fmt.Errorf("apibench %s: %w%s", strings.Join(args, " "), err, r.logs())
	}
	in := bufio.NewScanner(bytes.NewReader(out))
	for in.Scan() {
		var res record.Result
		if err := json.Unmarshal(in.Bytes(), &res); err != nil {
			return fmt.Errorf("apibench's output: %w", err)
		}
		if !r.wanted[res.Case] {
			if res.Errors > 0 && r.round != 0 {
				return fmt.Errorf("set-up %s: %d operations failed: %s", res.Case, res.Errors, res.FirstError)
			}
			continue
		}
		l := record.Line{Result: res}
		if r.round == 0 {
			l.Costs, err = profile.Top(filepath.Join(profiles, res.Case+".pprof"), 5)
			if errors.Is(err, fs.ErrNotExist) {
				continue // one without
			}
			if err != nil {
				return err
			}
			l.Result = record.Result{Case: res.Case, Spec: res.Spec}
		}
		r.add(l)
	}
	return in.Err()
}
