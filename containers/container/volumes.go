package container

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// CopyVolume fills dir, which it makes, with what the image has at path inside
// rootfs: the initial content of a volume that the image declares. A path that
// the image lacks gives an empty directory.
func CopyVolume(rootfs, path, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask is
		return fmt.Errorf("make volume: %w", err)
	}
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open root file system: %w", err)
	}
	defer func() { _ = unix.Close(root) }()
	fd, err := unix.Openat2(root, strings.TrimPrefix(path, "/"), &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open volume %s of the image: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	// By way of the descriptor: no link on the way can lead outside.
	from := fmt.Sprintf("/proc/self/fd/%d", fd)
	err = filepath.WalkDir(from+"/", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return copyEntry(p, filepath.Join(dir, strings.TrimPrefix(p, from)), d)
	})
	if err != nil {
		return fmt.Errorf("copy volume %s of the image: %w", path, err)
	}
	return nil
}

func copyEntry(from, to string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	switch {
	case d.IsDir():
		if err := os.Mkdir(to, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	case d.Type()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, to); err != nil {
			return err
		}
		return os.Lchown(to, int(st.Uid), int(st.Gid))
	case d.Type().IsRegular():
		if err := copyFile(from, to); err != nil {
			return err
		}
	default:
		return nil // devices and sockets are no content
	}
	if err := os.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	return unix.Chmod(to, st.Mode&0o7777)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}
