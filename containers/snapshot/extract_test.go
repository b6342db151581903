package snapshot

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: sets owners, devices and trusted xattrs")
	}
}

type entry struct {
	name, link, content string
	kind                byte
	mode                int64
	uid                 int
	xattr               string
}

func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Uid: e.uid, Size: int64(len(e.content))}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if e.xattr != "" {
			h.PAXRecords, h.Format = map[string]string{"SCHILY.xattr.user.k": e.xattr}, tar.FormatPAX
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// stack unpacks archives one above the other and mounts them.
func stack(t *testing.T, archives ...[]byte) string {
	t.Helper()
	needRoot(t)
	l, err := NewLayers(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var chain []digest.Digest
	for _, a := range archives {
		layer, err := l.Ensure(context.Background(), digest.FromBytes(a), chain, func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(a)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, layer.ChainID)
	}
	writable, target := t.TempDir(), filepath.Join(t.TempDir(), "mnt")
	if err := l.Mount(chain, writable, target); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unmount(target); err != nil {
			t.Error(err)
		}
	})
	return target
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func missing(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

func TestWhiteouts(t *testing.T) {
	dir := stack(t,
		archive(t, entry{name: "a/", kind: tar.TypeDir, mode: 0o755}, entry{name: "a/1", content: "1"}, entry{name: "a/2", content: "2"},
			entry{name: "b/", kind: tar.TypeDir, mode: 0o755}, entry{name: "b/old", content: "old"},
			entry{name: "c/", kind: tar.TypeDir, mode: 0o755}, entry{name: "c/old", content: "old"}),
		archive(t, entry{name: "a/.wh.1"}, entry{name: "b/", kind: tar.TypeDir, mode: 0o755}, entry{name: "b/.wh..wh..opq"}, entry{name: "b/new", content: "new"},
			entry{name: ".wh.c"}, entry{name: "c/", kind: tar.TypeDir, mode: 0o700}))
	missing(t, filepath.Join(dir, "a/1"))
	missing(t, filepath.Join(dir, "b/old"))
	missing(t, filepath.Join(dir, "c/old"))
	if got := read(t, filepath.Join(dir, "a/2")) + read(t, filepath.Join(dir, "b/new")); got != "2new" {
		t.Errorf("got %q", got)
	}
}

func TestAttributes(t *testing.T) {
	dir := stack(t, archive(t,
		entry{name: "f", content: "x", mode: 0o4755, uid: 12, xattr: "v"},
		entry{name: "hard", link: "f", kind: tar.TypeLink},
		entry{name: "sym", link: "/f", kind: tar.TypeSymlink},
		entry{name: "fifo", kind: tar.TypeFifo}))
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "f"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Uid != 12 || st.Mode&0o7777 != 0o4755 || st.Nlink != 2 {
		t.Errorf("uid %d mode %o links %d", st.Uid, st.Mode, st.Nlink)
	}
	v := make([]byte, 8)
	if n, err := unix.Lgetxattr(filepath.Join(dir, "f"), "user.k", v); err != nil || string(v[:n]) != "v" {
		t.Errorf("xattr %q %v", v[:max(n, 0)], err)
	}
	if l, err := os.Readlink(filepath.Join(dir, "sym")); err != nil || l != "/f" {
		t.Errorf("link %q %v", l, err)
	}
}

// What a layer's names mean can depend on the layers below.
func TestLowerLayersCount(t *testing.T) {
	dir := stack(t,
		archive(t, entry{name: "usr/lib/", kind: tar.TypeDir, mode: 0o711, uid: 5}, entry{name: "lib", link: "usr/lib", kind: tar.TypeSymlink},
			entry{name: "abs", link: "/usr/lib", kind: tar.TypeSymlink}, entry{name: "usr/lib/one", content: "one", mode: 0o640}),
		archive(t, entry{name: "lib/two", content: "two"}, entry{name: "abs/three", content: "three"},
			entry{name: "usr/copy", link: "usr/lib/one", kind: tar.TypeLink}))
	if l, err := os.Readlink(filepath.Join(dir, "lib")); err != nil || l != "usr/lib" {
		t.Errorf("the link is gone: %q %v", l, err)
	}
	got := ""
	for _, f := range []string{"usr/lib/one", "usr/lib/two", "usr/lib/three", "usr/copy"} {
		got += read(t, filepath.Join(dir, f))
	}
	if got != "onetwothreeone" {
		t.Errorf("got %q", got)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "usr/lib"), &st); err != nil || st.Uid != 5 || st.Mode&0o777 != 0o711 {
		t.Errorf("implied directory: uid %d mode %o %v", st.Uid, st.Mode, err)
	}
}

func TestArchivesCannotReachOutside(t *testing.T) {
	needRoot(t)
	outside := t.TempDir()
	for name, entries := range map[string][]entry{
		"dots":           {{name: "../../../../../../" + outside + "/x", content: "x"}},
		"absolute":       {{name: outside + "/x", content: "x"}},
		"link":           {{name: "l", link: outside, kind: tar.TypeSymlink}, {name: "l/x", content: "x"}},
		"relative link":  {{name: "l", link: "../../../../../../../.." + outside, kind: tar.TypeSymlink}, {name: "l/x", content: "x"}},
		"chained links":  {{name: "a", link: "/", kind: tar.TypeSymlink}, {name: "b", link: "a" + outside, kind: tar.TypeSymlink}, {name: "b/x", content: "x"}},
		"overwritten":    {{name: "x", link: outside + "/x", kind: tar.TypeSymlink}, {name: "x", content: "x"}},
		"whiteout":       {{name: "l", link: filepath.Dir(outside), kind: tar.TypeSymlink}, {name: "l/.wh." + filepath.Base(outside)}},
		"whiteout dots":  {{name: ".wh..."}},
		"hard link":      {{name: "h", link: "../../../../../../etc/hostname", kind: tar.TypeLink}},
		"link to itself": {{name: "l", link: "l", kind: tar.TypeSymlink}, {name: "l/x", content: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			_, err := extract(bytes.NewReader(archive(t, entries...)), root, nil)
			t.Log(err) // refused or kept inside, either will do
			left, rerr := os.ReadDir(outside)
			if rerr != nil || len(left) > 0 {
				t.Errorf("outside: %v %v", left, rerr)
			}
		})
	}
}

func TestWrongDigestIsNotKept(t *testing.T) {
	needRoot(t)
	l, err := NewLayers(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := archive(t, entry{name: "f", content: "x"})
	want := digest.FromString("something else")
	_, err = l.Ensure(context.Background(), want, nil, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(a)), nil })
	if err == nil || !strings.Contains(err.Error(), "digest") {
		t.Fatalf("got %v", err)
	}
	if _, err := l.Get(want); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("kept: %v", err)
	}
	left, err := os.ReadDir(l.root)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

func TestManyLayers(t *testing.T) {
	var archives [][]byte
	for i := range 50 {
		archives = append(archives, archive(t, entry{name: "f" + string(rune('A'+i)), content: "x"}))
	}
	dir := stack(t, archives...)
	if got, err := os.ReadDir(dir); err != nil || len(got) != 50 {
		t.Errorf("%d files, %v", len(got), err)
	}
}

func FuzzExtract(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("needs root: sets owners")
	}
	f.Add([]byte("not a tar"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		root := filepath.Join(dir, "root")
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		_, _ = extract(bytes.NewReader(b), root, nil)
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("reached outside: %v %v", left, err)
		}
	})
}
