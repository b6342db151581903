package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPage: what did not run and what failed is never counted as green, and is explained.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	green := result{Row: 1, Title: "first", Node: "skiff", Commit: "abc", Green: true,
		Flow: []stepResult{{Name: "rollout"}}, Tests: []testResult{{Name: "a", Status: "passed"}, {Name: "b", Status: "passed"}}}
	red := result{Row: 2, Title: "second", Error: "1 of 2",
		Flow: []stepResult{{Name: "rollout"}, {Name: "undo", Error: "timed\nout"}}, Tests: []testResult{{Name: "a", Status: "passed"}, {Name: "b", Status: "not run"}}}
	for _, r := range []result{green, red} {
		if err := r.save(dir); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "interop.md")
	if err := writePage(dir, out); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 1 | first | skiff | **green** | 1 of 1 | 2 of 2 | abc |",
		"| 2 | second |  | red | 1 of 2 | 1 of 2 |",
		"- flow, undo: timed out",
		"- b: not run",
		"| 6 | upstream's control plane with skiff's scheduler | skiff | not run |",
		"- It has not been run.",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("page lacks %q:\n%s", want, text)
		}
	}
}

func TestListsNameEnoughTests(t *testing.T) {
	for _, r := range matrix() {
		if r.check != nil {
			continue
		}
		if _, err := readNames("row" + r.id() + ".txt"); err != nil {
			if _, err := readNames("row" + strings.TrimSuffix(r.id(), r.part) + ".txt"); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestResultsOfTheSuite(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "serial"), 0o755); err != nil {
		t.Fatal(err)
	}
	junit := `<testsuites><testsuite><testcase name="[It] a" status="passed" time="1.5"></testcase>
<testcase name="[It] b" status="failed"><failure message="why"></failure></testcase>
<testcase name="[It] c" status="skipped"></testcase><testcase name="[ReportAfterSuite] x" status="passed"></testcase></testsuite></testsuites>`
	if err := os.WriteFile(filepath.Join(dir, "serial", "junit_01.xml"), []byte(junit), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readJUnit(dir)
	if err != nil || len(got) != 2 || got["a"].Status != "passed" || got["b"] != (testResult{Name: "b", Status: "failed", Reason: "why"}) {
		t.Errorf("%+v, %v", got, err)
	}
}
