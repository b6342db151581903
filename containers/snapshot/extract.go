package snapshot

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	whiteoutPrefix = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	whiteoutMeta   = ".wh..wh." // aufs's own bookkeeping, of no meaning here
	paxXattr       = "SCHILY.xattr."
)

type usage struct{ size, inodes int64 }

// extractor writes one layer. Names are resolved as the finished container
// would see them, symbolic links of lower layers included, to a path without
// links; the kernel then opens that path beneath the layer's root, following
// no link, so that no archive can reach outside.
type extractor struct {
	tree  *tree
	root  int
	usage usage

	dirFD   int // the directory of the last entry, often the next one's too
	dirPath string
	times   []dirTime
}

type dirTime struct {
	path  string
	mtime time.Time
}

// extract unpacks the tar stream into the directory root, as one overlay layer
// above lower (nearest first).
func extract(r io.Reader, root string, lower []string) (usage, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return usage{}, fmt.Errorf("open %s: %w", root, err)
	}
	x := &extractor{tree: newTree(root, lower), root: fd, dirFD: -1}
	defer func() {
		x.closeDir()
		_ = unix.Close(fd)
	}()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return usage{}, fmt.Errorf("read archive: %w", err)
		}
		if err := x.entry(h, tr); err != nil {
			return usage{}, fmt.Errorf("entry %q: %w", h.Name, err)
		}
	}
	return x.usage, x.setDirTimes()
}

func (x *extractor) entry(h *tar.Header, r io.Reader) error {
	// As rooted: leading slashes and ".." at the top mean the top.
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if name == "" {
		if h.Typeflag == tar.TypeDir {
			return x.attributes(".", h)
		}
		return nil
	}
	dir, base := path.Split(name)
	parent, err := x.tree.resolve(path.Clean("/" + dir))
	if err != nil {
		return err
	}
	if err := x.openDir(parent); err != nil {
		return err
	}
	switch {
	case base == whiteoutOpaque:
		return x.setOpaque(parent)
	case strings.HasPrefix(base, whiteoutMeta):
		return nil
	case strings.HasPrefix(base, whiteoutPrefix):
		return x.whiteout(parent, strings.TrimPrefix(base, whiteoutPrefix))
	}
	return x.node(parent, base, h, r)
}

func (x *extractor) whiteout(parent, base string) error {
	if base == "" || base == "." || base == ".." {
		return errors.New("whiteout of nothing")
	}
	if err := x.clear(parent, base); err != nil {
		return err
	}
	if err := unix.Mknodat(x.dirFD, base, unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("make whiteout: %w", err)
	}
	return nil
}

func (x *extractor) setOpaque(dir string) error {
	if err := unix.Setxattr(procPath(x.dirFD, "."), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		return fmt.Errorf("mark %s opaque: %w", dir, err)
	}
	return nil
}

// node creates what the entry describes.
func (x *extractor) node(parent, base string, h *tar.Header, r io.Reader) error {
	full := path.Join(parent, base)
	wasWhiteout, err := x.makeRoom(parent, base, h.Typeflag == tar.TypeDir)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := unix.Mkdirat(x.dirFD, base, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make directory: %w", err)
		}
		if wasWhiteout {
			// What a lower layer has under this name stays deleted.
			if err := unix.Setxattr(procPath(x.dirFD, base), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
				return fmt.Errorf("mark opaque: %w", err)
			}
		}
		x.times = append(x.times, dirTime{full, h.ModTime})
	case tar.TypeReg:
		if err := x.file(base, r); err != nil {
			return err
		}
		x.usage.size += h.Size
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, x.dirFD, base); err != nil {
			return fmt.Errorf("make symbolic link: %w", err)
		}
		x.tree.forget()
	case tar.TypeLink:
		return x.hardLink(parent, base, h)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		kind := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}[h.Typeflag]
		dev := unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))
		if err := unix.Mknodat(x.dirFD, base, kind|0o600, int(dev)); err != nil {
			return fmt.Errorf("make device: %w", err)
		}
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return fmt.Errorf("type %q is not supported", h.Typeflag)
	}
	x.usage.inodes++
	return x.attributes(base, h)
}

func (x *extractor) file(base string, r io.Reader) error {
	fd, err := unix.Openat(x.dirFD, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("create file: %w", err)
	}
	f := os.NewFile(uintptr(fd), base)
	_, err = io.Copy(f, r)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}

// hardLink links to a file of this layer, or copies a lower layer's.
func (x *extractor) hardLink(parent, base string, h *tar.Header) error {
	dir, targetBase := path.Split(path.Clean("/" + h.Linkname))
	targetDir, err := x.tree.resolve(path.Clean(dir))
	if err != nil {
		return err
	}
	target := path.Join(targetDir, targetBase)
	if x.tree.here(target) {
		if err := unix.Linkat(x.root, strings.TrimPrefix(target, "/"), x.dirFD, base, 0); err != nil {
			return fmt.Errorf("make hard link to %s: %w", target, err)
		}
		return nil
	}
	src, ok := x.tree.below(target)
	if !ok {
		return fmt.Errorf("hard link to %s, which no layer has", h.Linkname)
	}
	n, err := copyUp(src, x.dirFD, base)
	x.usage.size += n
	x.usage.inodes++
	return err
}

// makeRoom removes what is in the way of a new entry and says whether that was
// a whiteout. A directory over a directory keeps its content.
func (x *extractor) makeRoom(parent, base string, dir bool) (whiteout bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(x.dirFD, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("stat: %w", err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFDIR && dir {
		return false, nil
	}
	return kind == unix.S_IFCHR && st.Rdev == 0, x.clear(parent, base)
}

func (x *extractor) clear(parent, base string) error {
	err := unix.Unlinkat(x.dirFD, base, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		x.tree.forget()
		err = os.RemoveAll(procPath(x.dirFD, base))
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("replace %s: %w", path.Join(parent, base), err)
	}
	x.tree.forget()
	return nil
}

// openDir makes dir (rooted, without links) the current directory, creating
// what is missing as the layers below have it.
func (x *extractor) openDir(dir string) error {
	if x.dirFD >= 0 && x.dirPath == dir {
		return nil
	}
	fd, err := x.openBeneath(dir)
	if errors.Is(err, unix.ENOENT) {
		if err := x.imply(dir); err != nil {
			return err
		}
		fd, err = x.openBeneath(dir)
	}
	if err != nil {
		return fmt.Errorf("open directory %s: %w", dir, err)
	}
	x.closeDir()
	x.dirFD, x.dirPath = fd, dir
	return nil
}

func (x *extractor) openBeneath(dir string) (int, error) {
	rel := strings.TrimPrefix(dir, "/")
	if rel == "" {
		rel = "."
	}
	return unix.Openat2(x.root, rel, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// imply creates a directory that the archive uses but does not list.
func (x *extractor) imply(dir string) error {
	if dir == "/" {
		return nil
	}
	if err := x.openDir(path.Dir(dir)); err != nil {
		return err
	}
	base := path.Base(dir)
	if err := unix.Mkdirat(x.dirFD, base, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make directory %s: %w", dir, err)
	}
	x.usage.inodes++
	if src, ok := x.tree.below(dir); ok {
		return copyAttributes(src, x.dirFD, base)
	}
	if err := unix.Fchmodat(x.dirFD, base, 0o755, 0); err != nil { // whatever the umask is
		return fmt.Errorf("set mode of %s: %w", dir, err)
	}
	return nil
}

func (x *extractor) closeDir() {
	if x.dirFD >= 0 {
		_ = unix.Close(x.dirFD)
		x.dirFD = -1
	}
}

// attributes sets owner, mode, xattrs and times of the entry in the current
// directory; owner first, since a change of owner clears set-uid bits and
// file capabilities.
func (x *extractor) attributes(base string, h *tar.Header) error {
	if base == "." {
		if err := x.openDir("/"); err != nil {
			return err
		}
	}
	if err := unix.Fchownat(x.dirFD, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if h.Typeflag != tar.TypeSymlink {
		if err := unix.Fchmodat(x.dirFD, base, uint32(h.Mode)&0o7777, 0); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, paxXattr)
		if !ok || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		err := unix.Lsetxattr(procPath(x.dirFD, base), name, []byte(value), 0)
		if err != nil && !errors.Is(err, unix.ENOTSUP) && !(errors.Is(err, unix.EPERM) && !strings.HasPrefix(name, "security.")) {
			return fmt.Errorf("set xattr %s: %w", name, err)
		}
	}
	return setTimes(x.dirFD, base, h.ModTime)
}

// setDirTimes runs last: creating entries changes a directory's time.
func (x *extractor) setDirTimes() error {
	for _, d := range x.times {
		err := setTimes(x.root, strings.TrimPrefix(d.path, "/"), d.mtime)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("directory %s: %w", d.path, err)
		}
	}
	return nil
}

func setTimes(dirFD int, base string, t time.Time) error {
	if t.IsZero() {
		t = time.Unix(0, 0)
	}
	ts := unix.NsecToTimespec(t.UnixNano())
	if err := unix.UtimesNanoAt(dirFD, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set time: %w", err)
	}
	return nil
}

// procPath names an entry of an open directory for calls that only take paths.
func procPath(dirFD int, base string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dirFD, base)
}
