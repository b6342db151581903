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

// mapped binds source at target as the namespace sees it.
func mapped(source, target string, userns int) error {
	if err := os.MkdirAll(target, 0o700); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone mount of %s: %w", source, err)
	}
	defer func() { _ = unix.Close(fd) }()
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Userns_fd: uint64(userns)}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("user namespaces: the file system of %s has no ID-mapped mounts: %w", source, err)
	}
	if err != nil {
		return fmt.Errorf("map mount of %s: %w", source, err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach mapped mount at %s: %w", target, err)
	}
	return nil
}
