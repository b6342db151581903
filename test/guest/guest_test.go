package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/skiff-k8s/skiff/test/guest/plan"
)

// TestReport: what was not heard of, ran nothing, failed or skipped is a failure.
func TestReport(t *testing.T) {
	steps := []plan.Step{{Name: "a"}, {Name: "b"}}
	good := plan.Result{Name: "a", Passed: 3}
	for name, test := range map[string]struct {
		b  *plan.Result
		ok bool
	}{
		"all well": {&plan.Result{Name: "b", Passed: 1}, true},
		"silence":  {nil, false},
		"failed":   {&plan.Result{Name: "b", Passed: 1, Failed: 1}, false},
		"no test":  {&plan.Result{Name: "b"}, false},
		"skipped":  {&plan.Result{Name: "b", Passed: 1, Skipped: []string{"TestX needs y"}}, false},
		"crashed":  {&plan.Result{Name: "b", Passed: 1, Error: "exit status 2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			results := []plan.Result{good}
			if test.b != nil {
				results = append(results, *test.b)
			}
			var out strings.Builder
			if err := report(&out, steps, results); (err == nil) != test.ok {
				t.Errorf("%v\n%s", err, &out)
			}
			if test.b != nil && len(test.b.Skipped) > 0 && !strings.Contains(out.String(), "TestX needs y") {
				t.Errorf("the skipped test is not named:\n%s", &out)
			}
		})
	}
}

// TestArchive reads back what was written.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	if err := os.MkdirAll(filepath.Join(src, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "d/odd"), []byte("seven b"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("d/odd", filepath.Join(src, "link")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "cpio")
	a, err := newArchive(path)
	if err != nil {
		t.Fatal(err)
	}
	a.tree("at/src", src)
	a.tree("at/none", filepath.Join(dir, "none"))
	a.bytes("at/text", 0o644, []byte("12345678"))
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	got := readArchive(t, path)
	for name, want := range map[string]string{
		"at/src/d": "040755 ", "at/src/d/odd": "100644 seven b", "at/src/link": "120777 d/odd", "at/text": "100644 12345678", "proc": "040755 ", "TRAILER!!!": "000000 ",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if _, ok := got["at/none"]; ok {
		t.Error("a tree that is not there is")
	}
}

func readArchive(t *testing.T, path string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	align := func(n int) int { return (n + 3) &^ 3 }
	for at := 0; at < len(b); {
		if !bytes.HasPrefix(b[at:], []byte("070701")) {
			t.Fatalf("no header at %d", at)
		}
		field := func(i int) int {
			v, err := strconv.ParseUint(string(b[at+6+8*i:at+14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(v)
		}
		mode, size, nameLen := field(1), field(6), field(11)
		name := string(b[at+110 : at+110+nameLen-1])
		content := align(at + 110 + nameLen)
		octal := strconv.FormatInt(int64(mode), 8)
		out[name] = strings.Repeat("0", 6-len(octal)) + octal + " " + string(b[content:content+size])
		at = align(content + size)
	}
	return out
}
