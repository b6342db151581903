package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// roomy is the share of a disk that must be free for a cluster's data: below a tenth the
// kubelet reports disk pressure, takes no pods and evicts those it has.
const roomy = 0.2

// dataInMemory is the size of the tmpfs that takes a full disk's place; a run of all tests
// fills about a fifth of it.
const dataInMemory = "12g"

// prepareData makes the folder dir fit for a cluster's data. Where its disk is nearly full
// that is a tmpfs in the mount namespace of this process, gone with it; the answer says so.
func prepareData(dir string) (inMemory bool, err error) {
	free, err := freeShare(dir)
	if err != nil || free >= roomy {
		return false, err
	}
	if err := syscall.Mount("conformance", dir, "tmpfs", 0, "size="+dataInMemory); err != nil {
		return false, fmt.Errorf("the disk of %s has %.0f %% free and a tmpfs cannot be mounted: %w", dir, 100*free, err)
	}
	return true, nil
}

// removeData removes dir and the tmpfs in it, if there is one.
func removeData(dir string) error {
	if err := syscall.Unmount(filepath.Join(dir, "d"), 0); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("unmount the cluster's data: %w", err)
	}
	return os.RemoveAll(dir)
}

// freeShare is what the kubelet compares: available of all, though a quota may make
// the two have little to do with each other.
func freeShare(dir string) (float64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	if s.Blocks == 0 {
		return 1, nil
	}
	return float64(s.Bavail) / float64(s.Blocks), nil
}
