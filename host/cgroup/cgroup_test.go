package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree builds a plain directory that looks like a hierarchy: the twin for tests.
func tree(t *testing.T, v2 bool) (*Tree, string) {
	t.Helper()
	root := t.TempDir()
	if v2 {
		write(t, filepath.Join(root, "cgroup.controllers"), "cpu memory pids")
	} else {
		for _, c := range limited {
			if err := os.MkdirAll(filepath.Join(root, c), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	tr, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return tr, root
}

func write(t *testing.T, path, s string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

func TestLimits(t *testing.T) {
	l := Limits{CPUShares: 1024, CPUQuota: 50000, CPUPeriod: 100000, MemoryBytes: 64 << 20, Pids: 100}
	for _, tc := range []struct {
		v2    bool
		files map[string]string
	}{
		{false, map[string]string{"cpu/a/cpu.shares": "1024", "cpu/a/cpu.cfs_quota_us": "50000", "memory/a/memory.limit_in_bytes": "67108864", "pids/a/pids.max": "100"}},
		{true, map[string]string{"a/cpu.weight": "39", "a/cpu.max": "50000 100000", "a/memory.max": "67108864", "a/pids.max": "100"}},
	} {
		tr, root := tree(t, tc.v2)
		for f := range tc.files { // a real hierarchy has the files already
			write(t, filepath.Join(root, f), "")
		}
		if !tc.v2 {
			write(t, filepath.Join(root, "cpu/a/cpu.cfs_period_us"), "")
		}
		if err := tr.Ensure("a", l); err != nil {
			t.Fatal(err)
		}
		for f, want := range tc.files {
			if got := read(t, filepath.Join(root, f)); got != want {
				t.Errorf("v2=%v %s: %q, want %q", tc.v2, f, got, want)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	tr, root := tree(t, false)
	write(t, filepath.Join(root, "cpuacct/g/cpuacct.usage"), "123\n")
	write(t, filepath.Join(root, "memory/g/memory.usage_in_bytes"), "1000\n")
	write(t, filepath.Join(root, "memory/g/memory.limit_in_bytes"), "9223372036854771712\n")
	write(t, filepath.Join(root, "memory/g/memory.stat"), "total_rss 400\ntotal_inactive_file 300\n")
	u, err := tr.Usage("g")
	if err != nil {
		t.Fatal(err)
	}
	if u.CPUNanos != 123 || u.MemoryBytes != 1000 || u.WorkingSetBytes != 700 || u.RSSBytes != 400 || u.MemoryLimitBytes != 0 {
		t.Errorf("usage %+v", u)
	}
	if _, err := tr.Usage("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing group: %v", err)
	}
}

func TestRemoveRefusesRoot(t *testing.T) {
	tr, _ := tree(t, false)
	for _, n := range []string{"", "/", "."} {
		if tr.Remove(n) == nil {
			t.Errorf("removing %q was allowed", n)
		}
	}
}

func TestKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	tr, err := Open("/sys/fs/cgroup")
	if err != nil {
		t.Skip(err)
	}
	name := "skiff-cgroup-test-" + filepath.Base(t.TempDir())
	if err := tr.Ensure(name+"/pod", Limits{CPUShares: 512, MemoryBytes: 32 << 20, Pids: 50}); err != nil {
		t.Skip("control groups are not writable here: ", err)
	}
	u, err := tr.Usage(name + "/pod")
	if err != nil || u.MemoryLimitBytes != 32<<20 {
		t.Errorf("usage %+v, %v", u, err)
	}
	if kids, err := tr.Children(name); err != nil || len(kids) != 1 || kids[0] != "pod" {
		t.Errorf("children %v, %v", kids, err)
	}
	if err := tr.Remove(name); err != nil {
		t.Error(err)
	}
	if tr.Exists(name) {
		t.Error("still there")
	}
}
