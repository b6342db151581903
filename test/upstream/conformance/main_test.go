package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

func TestCommandRefuses(t *testing.T) {
	dir := t.TempDir()
	given := func(more ...string) []string {
		return append([]string{"run", "-skiff", "/bin/true", "-kubectl", "/bin/true", "-cache", dir, "-out", filepath.Join(dir, "out")}, more...)
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nothing":        {nil, "which of run and page?"},
		"unknown verb":   {[]string{"walk"}, `"walk" is neither run nor page`},
		"missing flag":   {[]string{"run", "-skiff", "a", "-kubectl", "b", "-cache", "c"}, "-out is required"},
		"no workers":     {given("-parallel", "0"), "PARALLEL=0"},
		"no number":      {given("-parallel", "many"), "-parallel"},
		"argument":       {given("all"), `unexpected argument "all"`},
		"list not there": {given("-list", filepath.Join(dir, "none.txt")), "none.txt"},
		"unknown flag":   {given("-skip", "x"), "-skip"},
	} {
		t.Run(name, func(t *testing.T) {
			code, err := command(t.Context(), test.args)
			if err == nil || !strings.Contains(err.Error(), test.want) || code == 0 {
				t.Errorf("code %d, error %v, want %q", code, err, test.want)
			}
		})
	}
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		if err := (options{}).check(); err == nil || !strings.Contains(err.Error(), "root") {
			t.Errorf("without root: %v", err)
		}
		t.Skip("the rest of the check needs root")
	}
	cache := t.TempDir()
	o, err := parseRun([]string{"-skiff", "/bin/true", "-kubectl", "/bin/true", "-cache", cache, "-out", t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(o.images, 0o755); err != nil {
		t.Fatal(err)
	}
	needed := []string{o.e2e, o.ginkgo, o.registry, filepath.Join(o.images, "index.json")}
	for _, path := range needed {
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.check(); err != nil {
		t.Errorf("with all that is needed: %v", err)
	}
	for _, path := range needed {
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		if err := o.check(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("without %s: %v", path, err)
		}
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
	}
	o.record.Results = "results.xml"
	if err := o.check(); err == nil {
		t.Error("results without a page are no error")
	}
}

// The page follows from the files kept alone.
func TestPageAgain(t *testing.T) {
	dir := t.TempDir()
	r := outcome.Files{Results: filepath.Join(dir, "results.xml"), Causes: filepath.Join(dir, "causes.txt"), Page: filepath.Join(dir, "page.md")}
	if err := os.WriteFile(r.Causes, []byte(two+"\n  It wants two nodes.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Keep(firstRun(), page, io.Discard); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(r.Page)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(r.Page); err != nil {
		t.Fatal(err)
	}
	if code, err := command(t.Context(), []string{"page", "-results", r.Results, "-causes", r.Causes, "-page", r.Page}); err != nil || code != 0 {
		t.Fatalf("code %d, error %v", code, err)
	}
	if after, _ := os.ReadFile(r.Page); string(after) != string(before) || !strings.Contains(string(after), "It wants two nodes.") {
		t.Errorf("computed again the page is\n%s", after)
	}
}
