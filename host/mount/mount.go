// Package mount is the seam to the kernel's mount table, as far as volumes need
// it, with a twin for tests. It knows no volume kinds.
package mount

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Table changes and reads the mount table. Calls are safe for concurrent use and
// idempotent where they say so.
type Table interface {
	// Tmpfs mounts a tmpfs of at most size bytes (0: the kernel's default) on an
	// existing directory.
	Tmpfs(target string, size int64) error
	// Bind mounts source (a directory or file) on an existing target.
	Bind(source, target string, readOnly bool) error
	// Unmount takes away what is mounted on target; nothing there is no error.
	Unmount(target string) error
	// Under lists the mount points at and below dir, deepest first.
	Under(dir string) ([]string, error)
}

// Mounted tells whether something is mounted on exactly that path.
func Mounted(t Table, path string) (bool, error) {
	points, err := t.Under(path)
	if err != nil {
		return false, err
	}
	for _, p := range points {
		if p == path {
			return true, nil
		}
	}
	return false, nil
}

// Kernel is the mount table of this process's mount namespace.
type Kernel struct{}

// Tmpfs implements Table.
func (Kernel) Tmpfs(target string, size int64) error {
	opts := "mode=0777"
	if size > 0 {
		opts += ",size=" + strconv.FormatInt(size, 10)
	}
	if err := unix.Mount("tmpfs", target, "tmpfs", 0, opts); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", target, err)
	}
	return nil
}

// Bind implements Table.
func (Kernel) Bind(source, target string, readOnly bool) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s on %s: %w", source, target, err)
	}
	if readOnly {
		if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return errors.Join(fmt.Errorf("remount %s read-only: %w", target, err), unix.Unmount(target, unix.MNT_DETACH))
		}
	}
	return nil
}

// Unmount implements Table. Busy mounts are detached: they vanish with their last user.
func (Kernel) Unmount(target string) error {
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("unmount %s: %w", target, err)
}

// Under implements Table.
func (Kernel) Under(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	defer f.Close()
	return parse(f, dir)
}

// parse reads proc_pid_mountinfo(5): the fifth field is the mount point.
func parse(r io.Reader, dir string) ([]string, error) {
	dir = filepath.Clean(dir)
	var out []string
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), 1<<20)
	for sc.Scan() {
		fields := strings.SplitN(sc.Text(), " ", 6)
		if len(fields) < 6 {
			continue
		}
		point := unescape(fields[4])
		if point == dir || strings.HasPrefix(point, strings.TrimSuffix(dir, "/")+"/") {
			out = append(out, point)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	sort.SliceStable(out, func(i, j int) bool { return len(out[i]) > len(out[j]) })
	return out, nil
}

// unescape turns the table's \040 and the like back into bytes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
