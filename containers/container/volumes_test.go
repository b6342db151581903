package container

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCopyVolume(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: keeps owners")
	}
	rootfs, outside := t.TempDir(), t.TempDir()
	for _, dir := range []string{"data/sub", "empty"} {
		if err := os.MkdirAll(filepath.Join(rootfs, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(rootfs, "data/sub/f"), []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(filepath.Join(rootfs, "data/sub/f"), 12, 34); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"data/link": "sub/f", "abs": "/data", "escape": outside} {
		if err := os.Symlink(target, filepath.Join(rootfs, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string][]string{
		"/data": {"link", "sub"}, "/abs": {"link", "sub"}, "/empty": nil, "/none": nil, "/escape": nil, "/data/sub/f": nil,
	} {
		dir := filepath.Join(t.TempDir(), "volume")
		if err := CopyVolume(rootfs, path, dir); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != len(want) {
			t.Errorf("%s: %v, %v", path, entries, err)
			continue
		}
		for i, e := range entries {
			if e.Name() != want[i] {
				t.Errorf("%s: %s", path, e.Name())
			}
		}
		if len(want) == 0 {
			continue
		}
		st, err := os.Stat(filepath.Join(dir, "sub/f"))
		if err != nil || st.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v", path, st, err)
		}
		if l, err := os.Readlink(filepath.Join(dir, "link")); err != nil || l != "sub/f" {
			t.Errorf("%s: link %q, %v", path, l, err)
		}
	}
}
