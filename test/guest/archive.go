package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// archive writes an initramfs: cpio in the "newc" format, see the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst. The first error stays.
type archive struct {
	f    *os.File
	w    *bufio.Writer
	n    int64 // bytes written
	ino  int
	seen map[string]bool
	err  error
}

func newArchive(name string) (*archive, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	a := &archive{f: f, w: bufio.NewWriterSize(f, 1<<20), seen: map[string]bool{"": true, ".": true}}
	for _, d := range []string{"proc", "sys", "dev", "tmp", "run", "root", "sbin", "etc", "bin", "new"} {
		a.dir(d)
	}
	return a, nil
}

func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, 0, strings.NewReader(""))
	if a.err == nil {
		a.err = a.w.Flush()
	}
	return errors.Join(a.err, a.f.Close())
}

func (a *archive) write(b []byte) {
	if a.err == nil {
		var n int
		n, a.err = a.w.Write(b)
		a.n += int64(n)
	}
}

func (a *archive) pad() { a.write(make([]byte, (4-a.n%4)%4)) }

func (a *archive) entry(name string, mode uint32, size int64, content io.Reader) {
	a.ino++
	a.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.ino, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name))
	a.pad()
	if a.err == nil {
		var n int64
		n, a.err = io.Copy(a.w, content)
		a.n += n
		if a.err == nil && n != size {
			a.err = fmt.Errorf("%s has %d bytes, not %d", name, n, size)
		}
	}
	a.pad()
}

const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
)

// dir makes a directory and those above it.
func (a *archive) dir(name string) {
	if name = path.Clean(name); !a.seen[name] {
		a.dir(path.Dir(name))
		a.seen[name] = true
		a.entry(name, modeDir|0o755, 0, strings.NewReader(""))
	}
}

func (a *archive) bytes(name string, perm uint32, b []byte) {
	a.dir(path.Dir(name))
	a.entry(name, modeFile|perm, int64(len(b)), strings.NewReader(string(b)))
}

func (a *archive) link(name, target string) {
	a.dir(path.Dir(name))
	a.entry(name, modeLink|0o777, int64(len(target)), strings.NewReader(target))
}

func (a *archive) file(name, from string, perm uint32) {
	if a.err != nil || a.seen[name] {
		return
	}
	a.seen[name] = true
	f, err := os.Open(from)
	if err != nil {
		a.err = err
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		a.err = err
		return
	}
	a.dir(path.Dir(name))
	a.entry(name, modeFile|perm, st.Size(), f)
}

// tree copies a directory, if there is one.
func (a *archive) tree(name, from string) {
	if a.err != nil {
		return
	}
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && p == from {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		at := path.Join(name, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			a.dir(at)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			a.link(at, target)
		case d.Type().IsRegular():
			a.file(at, p, 0o644)
		}
		return a.err
	})
	if a.err == nil {
		a.err = err
	}
}

// program takes a program of this host along, with its libraries where its loader looks for them.
func (a *archive) program(name string) {
	if a.err != nil {
		return
	}
	from, err := exec.LookPath(name)
	if err == nil {
		from, err = filepath.EvalSymlinks(from)
	}
	if err != nil {
		a.err = err
		return
	}
	a.file("bin/"+name, from, 0o755)
	out, err := exec.Command("ldd", from).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "not a dynamic executable") {
			return
		}
		a.err = fmt.Errorf("ldd %s: %w: %s", from, err, out)
		return
	}
	for _, f := range strings.Fields(string(out)) {
		if strings.HasPrefix(f, "/") {
			a.file(strings.TrimPrefix(f, "/"), f, 0o755)
		}
	}
}
