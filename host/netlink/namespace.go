package netlink

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// EnsureNamespace makes a network namespace that lives on as a mount at path, with its
// loopback up. A namespace that is there already stays; a file that a reboot left is
// mounted on again.
func EnsureNamespace(path string) error {
	if ok, err := IsNamespace(path); err != nil || ok {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	return OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("bring up loopback: %w", err)
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("keep network namespace at %s: %w", path, err)
		}
		return nil
	})
}

// IsNamespace tells whether a namespace is mounted at path.
func IsNamespace(path string) (bool, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at network namespace %s: %w", path, err)
	}
	return fs.Type == unix.NSFS_MAGIC, nil
}

// RemoveNamespace takes the mount and its file away; the kernel ends the namespace when
// the last process has left it. One that is not there is no error.
func RemoveNamespace(path string) error {
	for {
		ok, err := IsNamespace(path)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("remove network namespace %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}

// InNamespace runs f on a thread of its own that has entered the namespace at path.
// Processes that f starts are in it; goroutines that f starts are not.
func InNamespace(path string, f func() error) error {
	return OnThread(func() error {
		if err := Enter(path); err != nil {
			return err
		}
		return f()
	})
}

// Enter has the calling thread enter the namespace at path. The caller holds the thread
// (runtime.LockOSThread) and ends it or goes back.
func Enter(path string) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}

// OnThread runs f on a thread that ends with it, whatever namespaces f has entered.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		done <- f()
	}()
	return <-done
}
