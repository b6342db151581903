package localpath

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func open(t *testing.T, dir string) *disk {
	t.Helper()
	d, err := openDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestVolumesComeAndGo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "volumes")
	d := open(t, dir)
	must(t, d.Make("pvc-1"))
	must(t, d.Make("pvc-2"))
	info, err := os.Stat(filepath.Join(dir, "pvc-1"))
	must(t, err)
	if info.Mode().Perm() != 0o777 {
		t.Errorf("mode %v: a pod's user cannot write", info.Mode())
	}
	if info, err = os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory above has mode %v, %v: every user of the host gets in", info.Mode(), err)
	}
	// What is in use is left as it is.
	must(t, os.WriteFile(filepath.Join(dir, "pvc-1", "f"), []byte("x"), 0o600))
	must(t, os.Chmod(filepath.Join(dir, "pvc-1"), 0o750))
	must(t, d.Make("pvc-1"))
	if info, err = os.Stat(filepath.Join(dir, "pvc-1")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("made again: %v, %v", info, err)
	}
	must(t, d.Prune("pvc-2"))
	if err := d.Prune("pvc-1"); err != nil {
		t.Errorf("what holds something is kept, which is no failure: %v", err)
	}
	if got, _ := d.List(); !slices.Equal(got, []string{"pvc-1"}) {
		t.Errorf("volumes %v", got)
	}
	must(t, d.Remove("pvc-1"))
	must(t, d.Remove("pvc-1")) // once more after a crash
	if got, _ := d.List(); len(got) != 0 {
		t.Errorf("volumes %v", got)
	}
}

func TestNothingOutsideIsTouched(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	must(t, os.MkdirAll(filepath.Join(outside, "pvc-1"), 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "f"), nil, 0o600))
	dir := filepath.Join(base, "volumes")
	d := open(t, dir)
	must(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	for _, name := range []string{"", ".", "..", "../outside", "pvc-/../../outside", "pvc-1/..", "/etc", "mine", outside, "PVC-1", "pvc-"} {
		for what, f := range map[string]func(string) error{"make": d.Make, "remove": d.Remove, "prune": d.Prune} {
			if f(name) == nil {
				t.Errorf("%s %q is done", what, name)
			}
		}
	}
	// A link is removed, not what it leads to; nor is what links inside a volume lead to.
	must(t, os.Symlink(outside, filepath.Join(dir, "pvc-1")))
	must(t, os.Mkdir(filepath.Join(dir, "pvc-2"), 0o755))
	must(t, os.Symlink(outside, filepath.Join(dir, "pvc-2", "link")))
	must(t, d.Remove("pvc-1"))
	must(t, d.Remove("pvc-2"))
	for _, path := range []string{filepath.Join(outside, "f"), filepath.Join(outside, "pvc-1"), filepath.Join(dir, "mine")} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("it is gone: %v", err)
		}
	}
}

type mounted []string

func (m mounted) Under(dir string) ([]string, error) {
	return slices.DeleteFunc(slices.Clone(m), func(p string) bool { return !strings.HasPrefix(p+"/", dir+"/") }), nil
}

type unreadable struct{}

func (unreadable) Under(string) ([]string, error) { return nil, errors.New("no mount table") }

func TestWhatIsMountedInAVolumeIsKept(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	must(t, d.Make("pvc-1"))
	must(t, d.Make("pvc-2"))
	must(t, os.MkdirAll(filepath.Join(dir, "pvc-1", "mnt", "precious"), 0o755))
	d.mounts = mounted{filepath.Join(d.path, "pvc-1", "mnt")}
	if err := d.Remove("pvc-1"); err == nil || !strings.Contains(err.Error(), "pvc-1/mnt") {
		t.Errorf("%v", err)
	}
	must(t, d.Remove("pvc-2"))
	d.mounts = unreadable{}
	if err := d.Remove("pvc-1"); err == nil {
		t.Error("removed without knowing what is mounted")
	}
	if _, err := os.Stat(filepath.Join(dir, "pvc-1", "mnt", "precious")); err != nil {
		t.Error(err)
	}
}

func TestWhatACrashLeftHalfMadeGoes(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, ".new-pvc-1"), 0o700))
	must(t, os.Mkdir(filepath.Join(dir, ".new-other"), 0o700))
	d := open(t, dir)
	must(t, os.Mkdir(filepath.Join(dir, ".new-pvc-2"), 0o700)) // by a failure of this run
	must(t, d.Make("pvc-2"))
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, []string{".new-other", "pvc-2"}) {
		t.Errorf("%v", names)
	}
}
