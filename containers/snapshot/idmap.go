package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// MountMapped is Mount for a container in a user namespace: files belong to
// the namespace's users as they belong to the host's in the image. overlayfs
// itself cannot be ID-mapped, its lower directories can (Linux 5.19): they are
// bound below lower, mapped by the namespace at usernsPath.
func (l *Layers) MountMapped(chain []digest.Digest, writable, target, lower, usernsPath string) error {
	if mounted, err := IsMountPoint(target); err != nil || mounted {
		return err
	}
	ns, err := os.Open(usernsPath)
	if err != nil {
		return fmt.Errorf("open user namespace: %w", err)
	}
	defer func() { _ = ns.Close() }()
	names := make([]string, len(chain))
	for i, c := range chain {
		names[len(chain)-1-i] = strconv.Itoa(i) // nearest first
		if err := mapped(l.Path(c), filepath.Join(lower, strconv.Itoa(i)), int(ns.Fd())); err != nil {
			return err
		}
	}
	return mountOverlay(lower, names, writable, target)
}

// Mappable says, by an error, why the layers cannot be ID-mapped by a user
// namespace: tmpfs and others learnt it later than ext4 and xfs. It tries with
// the namespace at usernsPath and leaves nothing mounted.
func (l *Layers) Mappable(usernsPath string) error {
	ns, err := os.Open(usernsPath)
	if err != nil {
		return fmt.Errorf("open user namespace: %w", err)
	}
	defer func() { _ = ns.Close() }()
	fd, err := cloneMapped(l.root, int(ns.Fd()))
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// mapped binds source at target as the namespace sees it.
func mapped(source, target string, userns int) error {
	if err := os.MkdirAll(target, 0o700); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	fd, err := cloneMapped(source, userns)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach mapped mount at %s: %w", target, err)
	}
	return nil
}

// cloneMapped returns a detached mount of source as the namespace sees it.
func cloneMapped(source string, userns int) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("clone mount of %s: %w", source, err)
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Userns_fd: uint64(userns)}
	if err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err == nil {
		return fd, nil
	}
	if errors.Is(err, unix.EINVAL) {
		err = errors.New("its file system has no ID-mapped mounts with this kernel")
	}
	return -1, errors.Join(fmt.Errorf("map mount of %s: %w", source, err), unix.Close(fd))
}
