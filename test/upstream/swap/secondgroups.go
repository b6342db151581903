package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Control groups of the second machine: pods are below the first, all else is in the other.
const (
	secondGroup = "skiff-swap-second"
	systemGroup = secondGroup + "/system"
)

// hierarchies are where cgroup v1 keeps its controllers; links (cpu, cpuacct) name the same twice.
func hierarchies() ([]string, error) {
	files, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err == nil && !slices.Contains(files, "/sys/fs/cgroup/pids/cgroup.procs") {
		err = errors.New("the second machine's control groups are of cgroup v1, which this host has not")
	}
	for i, f := range files {
		files[i] = filepath.Dir(f)
	}
	return files, err
}

// makeGroups makes the machine's groups in each hierarchy, usable at once.
func makeGroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		for _, dir := range []string{filepath.Join(h, secondGroup), filepath.Join(h, systemGroup)} {
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

// removeGroups ends what is left in the groups, as pods and their shims, and removes these.
func removeGroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		if err = errors.Join(killGroup(filepath.Join("/sys/fs/cgroup/pids", secondGroup)), removeTrees(all)); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove control groups of the second machine: %w", err)
		}
		time.Sleep(100 * time.Millisecond) // the kernel does not say when a killed process has left its group
	}
}

func killGroup(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.Name() != "cgroup.procs" {
			return nil
		}
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, syscall.ENODEV) || errors.Is(err, fs.ErrNotExist) { // it went meanwhile
			return nil
		}
		for pid := range strings.FieldsSeq(string(text)) {
			n, perr := strconv.Atoi(pid)
			if perr != nil {
				return perr
			}
			if kerr := syscall.Kill(n, syscall.SIGKILL); kerr != nil && !errors.Is(kerr, syscall.ESRCH) {
				return fmt.Errorf("kill process %d: %w", n, kerr)
			}
		}
		return err
	})
}

// removeTrees removes the group with all below it in each hierarchy, the deepest first.
func removeTrees(hierarchies []string) error {
	var errs []error
	for _, h := range hierarchies {
		var dirs []string
		err := filepath.WalkDir(filepath.Join(h, secondGroup), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		errs = append(errs, err)
		for _, dir := range slices.Backward(dirs) {
			if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove %s: %w", dir, err))
			}
		}
	}
	return errors.Join(errs...)
}

// keepSysctls remembers settings of the kernel that a kubelet changes; what is returned puts them back.
func keepSysctls(names ...string) (func() error, error) {
	values := map[string][]byte{}
	for _, n := range names {
		path := filepath.Join("/proc/sys", n)
		value, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a setting that the kubelet changes: %w", err)
		}
		values[path] = value
	}
	return func() error {
		var errs []error
		for path, value := range values {
			errs = append(errs, os.WriteFile(path, value, 0o644))
		}
		return errors.Join(errs...)
	}, nil
}
