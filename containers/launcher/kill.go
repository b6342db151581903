//go:build linux && cgo

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// killTree kills the process and everything in its own child cgroups. A pid
// namespace does not help here: what an exec'd process forks is handed to the
// container's init when its parent dies.
func killTree(groups map[string]string, pid int) error {
	err := unix.Kill(pid, unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) {
		err = nil
	}
	errs := []error{err}
	for _, dir := range groups {
		errs = append(errs, killCgroup(dir))
	}
	return errors.Join(errs...)
}

func killCgroup(dir string) error {
	// Never O_CREATE in cgroupfs: a file that is missing is refused, not absent.
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.kill"), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("1")
		return errors.Join(err, f.Close())
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// cgroup v1: frozen, nothing can fork while we read the list.
	state := filepath.Join(dir, "freezer.state")
	_ = os.WriteFile(state, []byte("FROZEN"), 0)
	defer func() { _ = os.WriteFile(state, []byte("THAWED"), 0) }()
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) {
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
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
