package snapshot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tree sees a layer and those below it as overlayfs will show them.
type tree struct {
	layers   []string // this layer, then the nearest below
	resolved map[string]string
}

func newTree(root string, lower []string) *tree {
	t := &tree{layers: append([]string{root}, lower...)}
	t.forget()
	return t
}

// forget drops what is known of names; called when a link appears or a
// directory goes.
func (t *tree) forget() { t.resolved = map[string]string{"/": "/"} }

// resolve follows the symbolic links in a rooted directory path, keeping to
// the root, and returns a path without links. What does not exist yet is
// taken as it is.
func (t *tree) resolve(dir string) (string, error) {
	return t.follow(dir, 0)
}

func (t *tree) follow(dir string, depth int) (string, error) {
	if r, ok := t.resolved[dir]; ok {
		return r, nil
	}
	if depth > 40 {
		return "", fmt.Errorf("%s: too many symbolic links", dir)
	}
	parent, err := t.follow(path.Dir(dir), depth)
	if err != nil {
		return "", err
	}
	full := path.Join(parent, path.Base(dir))
	out := full
	if link, ok := t.link(full); ok {
		if !path.IsAbs(link) {
			link = path.Join(parent, link)
		}
		if out, err = t.follow(path.Clean("/"+link), depth+1); err != nil {
			return "", err
		}
	}
	t.resolved[dir] = out
	return out, nil
}

// link returns the target of a symbolic link, as the topmost layer that has
// the name decides. p's directories hold no links.
func (t *tree) link(p string) (string, bool) {
	for _, root := range t.layers {
		target, err := os.Readlink(filepath.Join(root, p))
		if err == nil {
			return target, true
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return "", false // something else by that name
		}
	}
	return "", false
}

// here says whether this layer has the path.
func (t *tree) here(p string) bool {
	st, err := os.Lstat(filepath.Join(t.layers[0], p))
	return err == nil && !isWhiteout(st)
}

// below finds the path in the layers beneath.
func (t *tree) below(p string) (string, bool) {
	for _, root := range t.layers[1:] {
		full := filepath.Join(root, p)
		st, err := os.Lstat(full)
		if err == nil {
			return full, !isWhiteout(st)
		}
	}
	return "", false
}

func isWhiteout(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && st.Mode()&os.ModeCharDevice != 0 && sys.Rdev == 0
}

// copyUp copies a regular file or link of a lower layer into an open directory.
func copyUp(src string, dirFD int, base string) (int64, error) {
	st, err := os.Lstat(src)
	if err != nil {
		return 0, err
	}
	switch {
	case st.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(src)
		if err != nil {
			return 0, err
		}
		if err := unix.Symlinkat(target, dirFD, base); err != nil {
			return 0, fmt.Errorf("copy link: %w", err)
		}
		return 0, copyAttributes(src, dirFD, base)
	case !st.Mode().IsRegular():
		return 0, errors.New("hard link to something that is no file")
	}
	in, err := os.Open(src)
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }()
	fd, err := unix.Openat(dirFD, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, fmt.Errorf("create file: %w", err)
	}
	out := os.NewFile(uintptr(fd), base)
	n, err := io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return n, fmt.Errorf("copy file: %w", err)
	}
	return n, copyAttributes(src, dirFD, base)
}

// copyAttributes gives an entry the owner, mode, xattrs and time of src.
func copyAttributes(src string, dirFD int, base string) error {
	var st unix.Stat_t
	if err := unix.Lstat(src, &st); err != nil {
		return fmt.Errorf("stat %s: %w", src, err)
	}
	if err := unix.Fchownat(dirFD, base, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(dirFD, base, st.Mode&0o7777, 0); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
	}
	names := make([]byte, 64<<10)
	n, err := unix.Llistxattr(src, names)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("list xattrs of %s: %w", src, err)
	}
	value := make([]byte, 64<<10)
	for _, name := range strings.Split(strings.TrimRight(string(names[:max(n, 0)]), "\x00"), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		vn, err := unix.Lgetxattr(src, name, value)
		if err != nil {
			return fmt.Errorf("read xattr %s: %w", name, err)
		}
		if err := unix.Lsetxattr(procPath(dirFD, base), name, value[:vn], 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("set xattr %s: %w", name, err)
		}
	}
	ts := []unix.Timespec{st.Mtim, st.Mtim}
	if err := unix.UtimesNanoAt(dirFD, base, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set time: %w", err)
	}
	return nil
}
