package cluster

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/cluster/process"
)

// A process that was killed holds its lock until the kernel has taken it apart: up must not
// take it for one that runs.
func TestTendStartsWhatJustEnds(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "skiff")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"started as $1\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := &Running{Paths: Paths{dir}, opts: UpOptions{Executable: program}, steps: newSteps(io.Discard)}
	dying, err := process.Lock(r.Paths.Lock(ControlPlane))
	if err != nil {
		t.Fatal(err)
	}
	child, err := r.ensure(r.role(ControlPlane))
	if err != nil || child != nil {
		t.Fatalf("%v, %v, want nothing: it seems to run", child, err)
	}
	limit, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ctx, stop := r.tend(limit, r.role(ControlPlane), child)
	defer stop()
	if err := dying.Close(); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); cause == nil || !strings.Contains(cause.Error(), "started as control-plane") {
		t.Errorf("ended by %v, want the end of the one that was started", cause)
	}
}

// One that runs is left alone, and stop waits for whoever watched it.
func TestTendLeavesWhatRuns(t *testing.T) {
	r := &Running{Paths: Paths{t.TempDir()}, opts: UpOptions{Executable: "/bin/false"}, steps: newSteps(io.Discard)}
	lock, err := process.Lock(r.Paths.Lock(Node))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, stop := r.tend(t.Context(), r.role(Node), nil)
	stop()
	if cause := context.Cause(ctx); cause != context.Canceled {
		t.Errorf("ended by %v", cause)
	}
	if _, err := os.Stat(r.Paths.Log(Node)); !os.IsNotExist(err) {
		t.Errorf("it was started: %v", err)
	}
}

// Whatever is refused of a new cluster leaves no trace of it, so that the mended command begins anew.
func TestRefusedSettingsLeaveNothing(t *testing.T) {
	mode := "often"
	for name, o := range map[string]UpOptions{
		"runtime":     {RuntimeEndpoint: "containerd.sock"},
		"pod network": {PodNetwork: PodNetworkChange{Mode: &mode}},
		"audit":       {Audit: AuditConfig{PolicyFile: "/nowhere/policy.yaml"}},
		"etcd":        {Etcd: &ExternalEtcd{Servers: []string{"no url"}}},
		"nodes":       {Nodes: -1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			c, fresh, err := loadOrNew("one", dir)
			if err != nil || !fresh {
				t.Fatal(fresh, err)
			}
			o.Dir = dir
			if err := c.update(Paths{dir}, o, true, nil); err == nil {
				t.Fatal("taken")
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the data directory is there (%v)", err)
			}
		})
	}
}
