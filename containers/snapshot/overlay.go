package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// maxOptions is what mount(2) takes as options: one page, with its final zero.
const maxOptions = 4095

// Mount stacks the layers (lowest first) at target. With a writable directory
// the stack has an upper layer there; without one it is read-only. Mounting
// what is mounted already is no error.
func (l *Layers) Mount(chain []digest.Digest, writable, target string) error {
	if mounted, err := IsMountPoint(target); err != nil || mounted {
		return err
	}
	// Relative to the layers' directory: options must fit into a page.
	lower := make([]string, 0, len(chain))
	for i := len(chain) - 1; i >= 0; i-- {
		lower = append(lower, filepath.Join(chain[i].Encoded(), "fs"))
	}
	if writable == "" && len(lower) == 1 {
		// overlayfs without an upper wants two layers at least.
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("make mount point: %w", err)
		}
		return l.bind(filepath.Join(l.root, lower[0]), target)
	}
	return mountOverlay(l.root, lower, writable, target)
}

// mountOverlay stacks directories of root, nearest first.
func mountOverlay(root string, lower []string, writable, target string) error {
	if len(lower) == 0 {
		return errors.New("an image without layers cannot be mounted")
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	options, flags := "lowerdir="+strings.Join(lower, ":"), uintptr(0)
	if writable == "" {
		flags = unix.MS_RDONLY
	} else {
		upper, work := filepath.Join(writable, "upper"), filepath.Join(writable, "work")
		for _, dir := range []string{upper, work} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make writable layer: %w", err)
			}
		}
		if err := copyRootAttributes(filepath.Join(root, lower[0]), upper); err != nil {
			return err
		}
		options += ",upperdir=" + upper + ",workdir=" + work
	}
	if len(options) > maxOptions {
		return fmt.Errorf("%d layers with %d bytes of mount options; the kernel takes %d: shorten the data directory's path", len(lower), len(options), maxOptions)
	}
	return inDirectory(root, func() error {
		if err := unix.Mount("overlay", target, "overlay", flags, options); err != nil {
			return fmt.Errorf("mount overlay at %s: %w", target, err)
		}
		return nil
	})
}

func (l *Layers) bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind layer at %s: %w", target, err)
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return errors.Join(fmt.Errorf("make %s read-only: %w", target, err), unix.Unmount(target, unix.MNT_DETACH))
	}
	return nil
}

// copyRootAttributes gives the upper layer's root the image's owner and mode:
// the root of an overlay is the upper directory.
func copyRootAttributes(from, to string) error {
	dir, err := unix.Open(filepath.Dir(to), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", filepath.Dir(to), err)
	}
	defer func() { _ = unix.Close(dir) }()
	return copyAttributes(from, dir, filepath.Base(to))
}

// inDirectory runs f on a thread of its own whose working directory is dir.
func inDirectory(dir string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with its changed state.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			done <- fmt.Errorf("unshare working directory: %w", err)
			return
		}
		if err := unix.Chdir(dir); err != nil {
			done <- fmt.Errorf("enter %s: %w", dir, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Unmount takes the mount at target away, with all that is stacked on it.
// Nothing mounted, or nothing there, is no error.
func Unmount(target string) error {
	for {
		err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
			continue
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		}
		return fmt.Errorf("unmount %s: %w", target, err)
	}
}

// IsMountPoint says whether something is mounted at the path itself.
func IsMountPoint(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", path, err)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// Usage counts the bytes on disk and inodes under a directory, each inode once.
func Usage(dir string) (bytes, inodes uint64, err error) {
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			if errors.Is(err, unix.ENOENT) {
				return nil
			}
			return err
		}
		inodes++
		if st.Nlink > 1 && !d.IsDir() {
			key := inode{uint64(st.Dev), st.Ino}
			if seen[key] {
				inodes--
				return nil
			}
			seen[key] = true
		}
		bytes += uint64(st.Blocks) * 512
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("measure %s: %w", dir, err)
	}
	return bytes, inodes, nil
}
