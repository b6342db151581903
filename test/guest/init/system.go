package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/skiff-k8s/skiff/test/guest/plan"
)

// leaveInitramfs makes the root a tmpfs. The kernel lets nobody pivot_root away from an
// initramfs, and containers are made by that.
func leaveInitramfs() error {
	if err := unix.Mount("tmpfs", "/new", "tmpfs", 0, "size=90%"); err != nil {
		return fmt.Errorf("mount the new root: %w", err)
	}
	if err := move("/", "/new", []string{"/proc", "/sys", "/dev", "/new"}); err != nil {
		return fmt.Errorf("fill the new root: %w", err)
	}
	if err := unix.Chdir("/new"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the new root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// move copies files and takes each away at once, so that memory holds no more than one twice.
func move(from, to string, except []string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		a, b := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			if err := os.MkdirAll(b, 0o755); err != nil {
				return err
			}
			if !slices.Contains(except, a) {
				if err := move(a, b, nil); err != nil {
					return err
				}
			}
			continue
		}
		if err := moveFile(a, b, e); err != nil {
			return err
		}
	}
	return nil
}

func moveFile(a, b string, e fs.DirEntry) error {
	if e.Type()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(a)
		if err != nil {
			return err
		}
		return os.Symlink(target, b)
	}
	in, err := os.Open(a)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(b, os.O_WRONLY|os.O_CREATE|os.O_EXCL, st.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), os.Remove(a))
}

func mountAll() error {
	for _, m := range []struct {
		fs, at, options string
		flags           uintptr
	}{
		{"proc", "/proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sysfs", "/sys", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"devtmpfs", "/dev", "mode=755", unix.MS_NOSUID},
		{"devpts", "/dev/pts", "mode=620,ptmxmode=666", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "/dev/shm", "", unix.MS_NOSUID | unix.MS_NODEV},
		{"mqueue", "/dev/mqueue", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"securityfs", "/sys/kernel/security", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"cgroup2", "/sys/fs/cgroup", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fs, m.at, m.fs, m.flags, m.options); err != nil && !errors.Is(err, unix.EBUSY) { // devtmpfs may be mounted
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// setUp loads modules, gives the machine its tools and a link with an address.
func setUp() error {
	if err := os.Setenv("PATH", "/bin"); err != nil {
		return err
	}
	modules, err := filepath.Glob("/modules/*.ko") // numbered
	if err != nil {
		return err
	}
	for _, m := range modules {
		f, err := os.Open(m)
		if err != nil {
			return err
		}
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", m, err)
		}
		f.Close()
	}
	if err := unix.Mount("/dev/vda", "/tmp", "ext4", 0, ""); err != nil {
		return fmt.Errorf("mount the disk: %w", err)
	}
	if err := os.Chmod("/tmp", 0o1777); err != nil {
		return err
	}
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/sbin"} {
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
			return err
		}
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink("/bin", dir); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte("guest")); err != nil {
		return err
	}
	// Programs that are there already stay: what busybox says of them is no matter.
	_ = exec.Command("/bin/busybox", "--install", "-s", "/bin").Run()
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "eth0", "type", "dummy"},
		{"addr", "add", plan.Address + "/24", "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"route", "add", "default", "via", plan.Gateway},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	return nil
}
