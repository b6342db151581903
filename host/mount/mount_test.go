package mount

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const table = `22 1 0:20 / / rw - overlay o rw
30 22 0:30 / /var/lib/k/pods/a rw - tmpfs t rw
31 30 0:31 / /var/lib/k/pods/a/volumes/with\040space rw - tmpfs t rw
32 22 0:32 / /var/lib/k/pods/ab rw - tmpfs t rw
`
	got, err := parse(strings.NewReader(table), "/var/lib/k/pods/a/")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/var/lib/k/pods/a/volumes/with space", "/var/lib/k/pods/a"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Both tables keep the same contract.
func TestContract(t *testing.T) {
	for name, table := range map[string]Table{"twin": &Twin{}, "kernel": Kernel{}} {
		t.Run(name, func(t *testing.T) {
			if name == "kernel" && os.Geteuid() != 0 {
				t.Skip("mounting needs root")
			}
			dir := t.TempDir()
			src, dst, tmp := filepath.Join(dir, "src"), filepath.Join(dir, "dst"), filepath.Join(dir, "tmp")
			for _, d := range []string{src, dst, tmp} {
				if err := os.Mkdir(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := table.Unmount(dst); err != nil {
				t.Errorf("unmounting nothing: %v", err)
			}
			if err := table.Tmpfs(tmp, 1<<20); err != nil {
				t.Fatal(err)
			}
			defer table.Unmount(tmp)
			if err := table.Bind(src, dst, true); err != nil {
				t.Fatal(err)
			}
			defer table.Unmount(dst)
			got, err := table.Under(dir)
			if err != nil || len(got) != 2 {
				t.Errorf("under: %q, %v", got, err)
			}
			for _, p := range got {
				if err := table.Unmount(p); err != nil {
					t.Error(err)
				}
			}
			if ok, err := Mounted(table, dst); ok || err != nil {
				t.Errorf("still mounted: %v %v", ok, err)
			}
		})
	}
}
