// Package cgroup is what the runtime does to a container's cgroup beside
// creating it (libcontainer does that): limits, figures, killing, removal; on
// cgroup v1, v2 and the hybrid of both.
//
// It must not know containers: a cgroup is a path below the hierarchies' roots.
// It does without opencontainers/cgroups, which links D-Bus and with it
// reflection that keeps every exported method in the binary.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const mountRoot = "/sys/fs/cgroup"

// V2 says whether the machine has only the unified hierarchy.
func V2() bool {
	var st unix.Statfs_t
	return unix.Statfs(mountRoot, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// HasHugeTLB says whether huge pages can be limited.
func HasHugeTLB() bool {
	if !V2() {
		_, err := os.Stat(filepath.Join(mountRoot, "hugetlb"))
		return err == nil
	}
	b, err := os.ReadFile(filepath.Join(mountRoot, "cgroup.controllers"))
	return err == nil && strings.Contains(" "+strings.TrimSpace(string(b))+" ", " hugetlb ")
}

// Group is one cgroup, in every hierarchy that there is.
type Group struct {
	path string
	v2   bool
}

// At names the cgroup with that absolute path.
func At(path string) Group { return Group{path: filepath.Clean("/" + path), v2: V2()} }

// dirs lists the group's directory in each hierarchy.
func (g Group) dirs() ([]string, error) {
	if g.v2 {
		return []string{filepath.Join(mountRoot, g.path)}, nil
	}
	entries, err := os.ReadDir(mountRoot)
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	var out []string
	for _, e := range entries {
		// Links such as cpu -> cpu,cpuacct name the same hierarchy again.
		if e.IsDir() {
			out = append(out, filepath.Join(mountRoot, e.Name(), g.path))
		}
	}
	return out, nil
}

// OOMFile is where the kernel counts the processes that it killed for memory.
func (g Group) OOMFile() string {
	if g.v2 {
		return filepath.Join(mountRoot, g.path, "memory.events")
	}
	return filepath.Join(mountRoot, "memory", g.path, "memory.oom_control")
}

// Pids lists the processes in the group and below it.
func (g Group) Pids() ([]int, error) {
	dir := filepath.Join(mountRoot, g.path)
	if !g.v2 {
		dir = filepath.Join(mountRoot, "memory", g.path)
	}
	var pids []int
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed while we look
		}
		if err != nil || !d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, f := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				return err
			}
			pids = append(pids, pid)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", g.path, err)
	}
	return pids, nil
}

// Kill kills every process in the group and below it.
func (g Group) Kill() error {
	if g.path == "/" {
		return errors.New("refusing to kill the root cgroup")
	}
	if g.v2 {
		err := write(filepath.Join(mountRoot, g.path, "cgroup.kill"), "1")
		if err == nil {
			return nil
		}
		// Kernels before 5.14 lack the file: one by one, then.
	} else {
		// Frozen, nothing forks while the list is read; a process killed
		// frozen dies when it thaws.
		state := filepath.Join(mountRoot, "freezer", g.path, "freezer.state")
		if err := os.WriteFile(state, []byte("FROZEN"), 0); err == nil {
			defer func() { _ = os.WriteFile(state, []byte("THAWED"), 0) }()
		}
	}
	pids, err := g.Pids()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d of cgroup %s: %w", pid, g.path, err)
		}
	}
	return nil
}

// Remove deletes the group and those below it, in every hierarchy. Its
// processes must be dead or dying.
func (g Group) Remove() error {
	if g.path == "/" {
		return errors.New("refusing to remove the root cgroup")
	}
	dirs, err := g.dirs()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if err := removeTree(dir); err != nil {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// removeTree removes a directory of cgroupfs and those below it.
func removeTree(dir string) error {
	const patience = 2 * time.Second
	deadline := time.Now().Add(patience)
	wait := time.Millisecond
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		entries, rerr := os.ReadDir(dir)
		if rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			return rerr
		}
		below := false
		for _, e := range entries {
			if e.IsDir() {
				below = true
				if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
					return err
				}
			}
		}
		if below {
			continue
		}
		// A killed process leaves its cgroup a moment after it has ended, and
		// cgroup v1 tells nobody.
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(wait)
		wait = min(2*wait, 20*time.Millisecond)
	}
}

// Child makes a group for one exec'd process and returns its directories by
// controller, as the launcher takes them: on cgroup v1 the freezer alone is enough.
func (g Group) Child(name string) (map[string]string, error) {
	controller, dir := "", filepath.Join(mountRoot, g.path, name)
	if !g.v2 {
		controller, dir = "freezer", filepath.Join(mountRoot, "freezer", g.path, name)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	return map[string]string{controller: dir}, nil
}

// RemoveEmpty deletes the group where it exists and has nothing in it.
func (g Group) RemoveEmpty() error {
	if g.path == "/" {
		return errors.New("refusing to remove the root cgroup")
	}
	dirs, err := g.dirs()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		err := unix.Rmdir(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}
