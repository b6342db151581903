package side

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func discard() *log.Logger { return log.New(io.Discard, "", 0) }

// hierarchies are where cgroup v1 keeps its controllers; links (cpu,cpuacct) name the same twice.
func hierarchies() ([]string, error) {
	entries, err := os.ReadDir("/sys/fs/cgroup")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != "unified" {
			all = append(all, filepath.Join("/sys/fs/cgroup", e.Name()))
		}
	}
	return all, nil
}

// makeGroups makes the node's control group in each hierarchy, usable at once.
func makeGroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		for _, dir := range []string{nodeGroup, nodeGroup + "/containerd", nodeGroup + "/kubelet"} {
			dir = filepath.Join(h, dir)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			// A cpuset begins empty, and takes no process so.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, file), value, 0o644)
				}
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// joinGroup puts a process into a group of the node, where CPU and processes are counted.
func joinGroup(group string, pid int) error {
	for _, h := range []string{"cpuacct", "pids"} {
		path := filepath.Join("/sys/fs/cgroup", h, nodeGroup, group, "cgroup.procs")
		if err := os.WriteFile(path, []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("account %s: %w", group, err)
		}
	}
	return nil
}

func groupPIDs() ([]int, error) {
	var all []int
	err := filepath.WalkDir(filepath.Join("/sys/fs/cgroup/pids", nodeGroup), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.Name() != "cgroup.procs" {
			return nil
		}
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				all = append(all, pid)
			}
		}
		return err
	})
	return all, err
}

// removeGroups ends what is left in the node's groups and removes them.
func removeGroups() error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		pids, err := groupPIDs()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("end pid %d: %w", pid, err)
			}
		}
		err = removeTrees()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond) // a group is busy until its last process is gone
	}
}

func removeTrees() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		var dirs []string
		err := filepath.WalkDir(filepath.Join(h, nodeGroup), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil // one that is not needs no removing
		})
		if err != nil {
			return err
		}
		slices.Reverse(dirs)
		for _, d := range dirs {
			if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove control group: %w", err)
			}
		}
	}
	return nil
}
