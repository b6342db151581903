package cgroup

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestWeights(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 0, 2: 1, 1024: 100, 262144: 10000, 1 << 30: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("%d shares: weight %d, want %d", shares, got, want)
		}
	}
}

func TestRootIsRefused(t *testing.T) {
	for _, path := range []string{"", "/", "a/.."} {
		g := At(path)
		if g.Kill() == nil || g.Remove() == nil || g.RemoveEmpty() == nil || g.Update(&specs.LinuxResources{}) == nil {
			t.Errorf("%q was taken", path)
		}
	}
}

func TestKillUpdateRemove(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes cgroups")
	}
	g := At("/skiff-test-cgroup/a")
	dirs, err := g.dirs()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := At("/skiff-test-cgroup").Remove(); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if err := os.MkdirAll(d+"/b", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	set := func(file, value string) {
		t.Helper()
		if err := os.WriteFile("/sys/fs/cgroup/"+file, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	if g.v2 {
		set("cgroup.subtree_control", "+memory +pids")
		set("skiff-test-cgroup/cgroup.subtree_control", "+memory +pids")
		set(g.path+"/b/cgroup.procs", pid)
	} else {
		for _, c := range []string{"memory", "freezer"} {
			set(c+g.path+"/b/cgroup.procs", pid)
		}
	}
	for _, limit := range []int64{64 << 20, 256 << 20, 32 << 20} {
		swap := limit
		if err := g.Update(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &swap}}); err != nil {
			t.Fatal(err)
		}
		if s, err := g.Stats(); err != nil || s.MemoryLimit != uint64(limit) {
			t.Errorf("stats %+v, %v", s, err)
		}
	}
	if pids, err := g.Pids(); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Errorf("pids %v, %v", pids, err)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if _, err := os.Stat(d); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", d, err)
		}
	}
}
