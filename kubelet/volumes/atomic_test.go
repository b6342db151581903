package volumes

import (
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

// visible reads the volume as a container would.
func visible(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	var walk func(string)
	walk = func(rel string) {
		entries, err := os.ReadDir(filepath.Join(dir, rel))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if rel == "" && strings.HasPrefix(e.Name(), "..") {
				continue
			}
			p := filepath.Join(rel, e.Name())
			fi, err := os.Stat(filepath.Join(dir, p))
			if err != nil {
				t.Fatal(err)
			}
			if fi.IsDir() {
				walk(p)
				continue
			}
			raw, err := os.ReadFile(filepath.Join(dir, p))
			if err != nil {
				t.Fatal(err)
			}
			out[p] = string(raw)
		}
	}
	walk("")
	return out
}

func files(kv ...string) map[string]File {
	out := map[string]File{}
	for i := 0; i < len(kv); i += 2 {
		out[kv[i]] = File{Data: []byte(kv[i+1]), Mode: 0o644}
	}
	return out
}

func TestWriteAtomically(t *testing.T) {
	dir := t.TempDir()
	for i, step := range []struct {
		payload map[string]File
		changed bool
	}{
		{files("a", "1", "d/x", "2"), true},
		{files("a", "1", "d/x", "2"), false},
		{files("a", "1", "d/x", "3"), true},
		{files("d/y", "3"), true},
		{files(), true},
		{files(), false},
	} {
		changed, err := writeAtomically(dir, step.payload, nil)
		if err != nil || changed != step.changed {
			t.Fatalf("step %d: changed %v, %v", i, changed, err)
		}
		got := visible(t, dir)
		if len(got) != len(step.payload) {
			t.Fatalf("step %d: %v", i, got)
		}
		for k, f := range step.payload {
			if got[k] != string(f.Data) {
				t.Fatalf("step %d: %s = %q", i, k, got[k])
			}
		}
		entries, _ := os.ReadDir(dir)
		data := 0
		for _, e := range entries {
			if e.IsDir() {
				data++
			}
		}
		if data != 1 {
			t.Fatalf("step %d: %d data directories", i, data)
		}
	}
}

func TestPayloadPaths(t *testing.T) {
	for p, ok := range map[string]bool{
		"a": true, "a/b": true, "a..b": true, "a/./b": true, ".hidden": true,
		"": false, ".": false, "/a": false, "../a": false, "a/../b": false, "..data": false, "..x": false, strings.Repeat("a", 300): false, "a\x00": false,
	} {
		if _, err := payloadPath(p); (err == nil) != ok {
			t.Errorf("%q: %v", p, err)
		}
	}
}

// Whatever the names, nothing is written outside of the volume.
func FuzzWriteAtomically(f *testing.F) {
	f.Add("a/b", "..data", "x/../../y")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		outer := t.TempDir()
		dir := filepath.Join(outer, "v")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		payload := map[string]File{}
		for _, n := range []string{a, b, c} {
			payload[n] = File{Data: []byte("x"), Mode: 0o600}
		}
		_, _ = writeAtomically(dir, payload, nil)
		_, _ = writeAtomically(dir, map[string]File{a: {Data: []byte("y")}}, nil)
		entries, err := os.ReadDir(outer)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		sort.Strings(names)
		if len(names) != 1 {
			t.Fatalf("wrote outside: %q", names)
		}
	})
}
