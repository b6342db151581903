// Package cgroup is the seam to the kernel's control groups, version 1, hybrid
// and 2: make a group, limit it, read what it uses, take it away.
//
// Names are slash-separated paths below the hierarchy's root ("kubepods/burstable/podX").
// It knows no pods, and the systemd driver is not its business.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of a group; zero values leave the kernel's default, negative ones mean none.
type Limits struct {
	CPUShares   uint64 // version 1's unit; converted to cpu.weight on version 2
	CPUQuota    int64  // µs per CPUPeriod
	CPUPeriod   uint64
	MemoryBytes int64
	Pids        int64
}

// Usage of a group.
type Usage struct {
	CPUNanos         uint64
	MemoryBytes      uint64
	WorkingSetBytes  uint64
	RSSBytes         uint64
	PageFaults       uint64
	MajorPageFaults  uint64
	MemoryLimitBytes uint64 // 0: none
	Pids             uint64
}

// Tree is a cgroup hierarchy.
type Tree struct {
	v2    bool
	roots map[string]string // controller → mount point; version 2 has only ""
}

// controllers are those whose groups a kubelet makes and removes; the runtime
// makes children in more of them, which Remove takes away as well.
var controllers = []string{"cpu", "cpuacct", "memory", "pids", "cpuset", "blkio", "devices", "freezer", "hugetlb", "net_cls", "net_prio", "perf_event", "rdma", "misc", "systemd", "unified"}

// limited are those in which limits are set.
var limited = []string{"cpu", "cpuacct", "memory", "pids"}

// Open finds the hierarchies under a mount point, normally /sys/fs/cgroup.
func Open(root string) (*Tree, error) {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return &Tree{v2: true, roots: map[string]string{"": root}}, nil
	}
	t := &Tree{roots: map[string]string{}}
	for _, c := range controllers {
		if fi, err := os.Stat(filepath.Join(root, c)); err == nil && fi.IsDir() {
			t.roots[c] = filepath.Join(root, c)
		}
	}
	if t.roots["cpu"] == "" || t.roots["memory"] == "" {
		return nil, fmt.Errorf("no cgroup hierarchy with cpu and memory under %s: mount cgroup2 or the version 1 controllers there", root)
	}
	return t, nil
}

// V2 tells whether the unified hierarchy is in use.
func (t *Tree) V2() bool { return t.v2 }

// Path is the directory of a group for a controller.
func (t *Tree) Path(controller, name string) string {
	if t.v2 {
		controller = ""
	}
	return filepath.Join(t.roots[controller], name)
}

// Exists tells whether the group is there.
func (t *Tree) Exists(name string) bool {
	_, err := os.Stat(t.Path("memory", name))
	return err == nil
}

// Ensure makes the group (and its parents) and applies the limits.
func (t *Tree) Ensure(name string, l Limits) error {
	if t.v2 {
		if err := t.ensureV2(name); err != nil {
			return err
		}
	} else {
		for _, c := range limited {
			root := t.roots[c]
			if root == "" {
				continue
			}
			if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
				return fmt.Errorf("make cgroup %s of %s: %w", name, c, err)
			}
		}
	}
	return t.Limit(name, l)
}

// ensureV2 makes each level and hands the controllers down to it.
func (t *Tree) ensureV2(name string) error {
	dir := t.roots[""]
	for _, part := range strings.Split(strings.Trim(name, "/"), "/") {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err != nil {
			return fmt.Errorf("read controllers of cgroup %s: %w", dir, err)
		}
		for _, c := range strings.Fields(string(raw)) {
			// One that can't be delegated must not keep the others from it.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		}
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// Limit changes the limits of a group that exists.
func (t *Tree) Limit(name string, l Limits) error {
	type file struct{ controller, name, value string }
	var files []file
	if l.CPUPeriod == 0 {
		l.CPUPeriod = 100000
	}
	if t.v2 {
		if l.CPUShares > 0 {
			files = append(files, file{"cpu", "cpu.weight", strconv.FormatUint(sharesToWeight(l.CPUShares), 10)})
		}
		if l.CPUQuota > 0 {
			files = append(files, file{"cpu", "cpu.max", fmt.Sprintf("%d %d", l.CPUQuota, l.CPUPeriod)})
		} else if l.CPUQuota < 0 {
			files = append(files, file{"cpu", "cpu.max", fmt.Sprintf("max %d", l.CPUPeriod)})
		}
		if l.MemoryBytes != 0 {
			files = append(files, file{"memory", "memory.max", numberOrMax(l.MemoryBytes)})
		}
	} else {
		if l.CPUShares > 0 {
			files = append(files, file{"cpu", "cpu.shares", strconv.FormatUint(l.CPUShares, 10)})
		}
		if l.CPUQuota != 0 {
			files = append(files, file{"cpu", "cpu.cfs_period_us", strconv.FormatUint(l.CPUPeriod, 10)},
				file{"cpu", "cpu.cfs_quota_us", strconv.FormatInt(max(l.CPUQuota, -1), 10)})
		}
		if l.MemoryBytes != 0 {
			files = append(files, file{"memory", "memory.limit_in_bytes", strconv.FormatInt(max(l.MemoryBytes, -1), 10)})
		}
	}
	if l.Pids != 0 && (t.v2 || t.roots["pids"] != "") {
		files = append(files, file{"pids", "pids.max", numberOrMax(l.Pids)})
	}
	for _, f := range files {
		path := filepath.Join(t.Path(f.controller, name), f.name)
		if err := os.WriteFile(path, []byte(f.value), 0); err != nil {
			return fmt.Errorf("set %s of cgroup %s to %s: %w", f.name, name, f.value, err)
		}
	}
	return nil
}

// Remove kills what still runs in the group and below it and takes the groups
// away; one that is not there is no error.
func (t *Tree) Remove(name string) error {
	if strings.Trim(name, "/.") == "" {
		return fmt.Errorf("refuse to remove the root cgroup")
	}
	var errs []error
	for c := range t.roots {
		dir := t.Path(c, name)
		var dirs []string
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			}
			if d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("walk cgroup %s: %w", dir, err))
			continue
		}
		for i := len(dirs) - 1; i >= 0; i-- {
			pids, _ := readPids(dirs[i])
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dirs[i], err))
			}
		}
	}
	return errors.Join(errs...)
}

// Children lists the names of the groups directly below one.
func (t *Tree) Children(name string) ([]string, error) {
	seen := map[string]bool{}
	var out []string
	for c := range t.roots {
		entries, err := os.ReadDir(t.Path(c, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list cgroup %s: %w", name, err)
		}
		for _, e := range entries {
			if e.IsDir() && !seen[e.Name()] {
				seen[e.Name()] = true
				out = append(out, e.Name())
			}
		}
	}
	return out, nil
}

func readPids(dir string) ([]int, error) {
	f, err := os.Open(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []int
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if n, err := strconv.Atoi(sc.Text()); err == nil && n > 0 {
			out = append(out, n)
		}
	}
	return out, sc.Err()
}

func numberOrMax(n int64) string {
	if n < 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

// sharesToWeight is KEP-2254's mapping of [2, 262144] to [1, 10000].
func sharesToWeight(shares uint64) uint64 {
	shares = min(max(shares, 2), 262144)
	return 1 + ((shares-2)*9999)/262142
}
