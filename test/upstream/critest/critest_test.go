package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

// The version on the page is that of the module.
func TestVersionIsTheModules(t *testing.T) {
	text, err := os.ReadFile("../critools/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "sigs.k8s.io/cri-tools "+suiteVersion+"\n") {
		t.Errorf("go.mod does not require cri-tools %s", suiteVersion)
	}
}

const reportText = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="6"><testsuite name="CRI validation" version="">
<testcase name="[BeforeSuite]" status="passed" time="0.1"></testcase>
<testcase name="[It] [k8s.io] Container works" status="passed" time="1.26"><system-err>noise</system-err></testcase>
<testcase name="[It] [k8s.io] Streaming breaks" status="failed" time="2"><failure message="Expected 0xc000123" type="failed">[FAILED] more</failure></testcase>
<testcase name="[It] [k8s.io] Security Context hangs" status="timedout" time="60"></testcase>
<testcase name="[It] [k8s.io] NRI is not there" status="skipped" time="0.002"><skipped message="skipped - NRI socket not configured"></skipped></testcase>
<testcase name="[It] [k8s.io] Container benchmark" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`

func report6(t *testing.T) map[string]outcome.Outcome {
	t.Helper()
	path := filepath.Join(t.TempDir(), "junit.xml")
	if err := os.WriteFile(path, []byte(reportText), 0o644); err != nil {
		t.Fatal(err)
	}
	_, ran, err := readReport(path)
	if err != nil {
		t.Fatal(err)
	}
	return ran
}

func TestReadReport(t *testing.T) {
	want := map[string]outcome.Outcome{
		"[k8s.io] Container works":        {Status: outcome.Passed, Seconds: 1.26, Message: ""},
		"[k8s.io] Streaming breaks":       {Status: outcome.Failed, Seconds: 2, Message: "Expected 0xc000123"},
		"[k8s.io] Security Context hangs": {Status: outcome.Failed, Seconds: 60, Message: "the suite reports it as timedout without a message"},
		"[k8s.io] NRI is not there":       {Status: outcome.NotRun, Seconds: 0.002, Message: "NRI socket not configured"},
	}
	if got := report6(t); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestResultsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.xml")
	first, second := time.Unix(1000, 0).UTC(), time.Unix(2000, 0).UTC()
	all := merge(outcome.Results{}, "v1", report6(t), "aaa", first)
	all = merge(all, "v1", map[string]outcome.Outcome{"[k8s.io] Streaming breaks": {Status: outcome.Passed, Seconds: 1}}, "bbb", second)
	if err := all.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := outcome.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if r := got.ByName["[k8s.io] Streaming breaks"]; r.Status != outcome.Passed || r.Commit != "bbb" || !r.At.Equal(second) {
		t.Errorf("the newest outcome is %+v", r)
	}
	if r := got.ByName["[k8s.io] Security Context hangs"]; r.Status != outcome.Failed || r.Message == "" || r.Commit != "aaa" {
		t.Errorf("an outcome of the first run is %+v", r)
	}
	if next := merge(got, "v2", report6(t), "ccc", second); len(next.ByName) != 4 || next.ByName["[k8s.io] Container works"].Commit != "ccc" {
		t.Errorf("after another version of the suite: %v", next)
	}
}

func TestPage(t *testing.T) {
	all := merge(outcome.Results{}, "v1", report6(t), "aaa", time.Unix(1000, 0))
	got := page(all, map[string]string{"[k8s.io] Security Context hangs": "The <kernel> has no AppArmor."})
	for _, want := range []string{
		"critest v1 ", "| total | 4 | 1 | 2 | 1 |\n", "| Security Context | 1 | 0 | 1 | 0 |\n", "| 4 | aaa | 1970-01-01 00:16 |\n",
		"- \\[k8s.io\\] Security Context hangs\n  <br>The &lt;kernel> has no AppArmor.\n",
		"- \\[k8s.io\\] Streaming breaks\n  <br>no cause known yet: Expected 0x…\n", "- 1 of NRI: NRI socket not configured\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %q:\n%s", want, got)
		}
	}
}

func TestReportFailsForWhatIsNotExplained(t *testing.T) {
	ran := report6(t)
	for name, tt := range map[string]struct {
		causes map[string]string
		code   int
	}{
		"unexplained":    {nil, 1},
		"one of two":     {map[string]string{"[k8s.io] Streaming breaks": "why"}, 1},
		"both explained": {map[string]string{"[k8s.io] Streaming breaks": "why", "[k8s.io] Security Context hangs": "why"}, 0},
	} {
		if code, err := report(ran, tt.causes, 0, nil); code != tt.code || err != nil {
			t.Errorf("%s: code %d, %v", name, code, err)
		}
	}
	if _, err := report(nil, nil, 0, nil); err == nil {
		t.Error("a run without tests is no success")
	}
}

// Streams have a second pass, unless none are chosen, and its outcomes do not replace the first's.
func TestPasses(t *testing.T) {
	for focus, want := range map[string]int{"": 2, "Streaming": 2, "runtime should support exec|NRI": 1, "Security": 1, "runtime should": 2} {
		if got := passes(focus); len(got) != want || got[0].focus != focus {
			t.Errorf("%q: %v", focus, got)
		}
	}
	o := options{out: t.TempDir()}
	for _, p := range passes("") {
		text := `<testsuites><testsuite><testcase name="[It] [k8s.io] Streaming works" status="passed" time="1"></testcase></testsuite></testsuites>`
		if err := os.WriteFile(filepath.Join(o.out, p.report()), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, ran, err := readPasses(o)
	if err != nil || len(ran) != 2 || ran["[k8s.io] Streaming works (WebSocket)"].Status != outcome.Passed {
		t.Errorf("%v, %v", ran, err)
	}
}

func TestPin(t *testing.T) {
	digest := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
	program := "\x00ELF…" + pinned + "@" + digest("0") + "gcr.io/k8s-staging-cri-tools/win-test-image-digest@" + digest("1") + "\x00"
	got, err := withDigest([]byte(program), digest("a"))
	if err != nil || string(got) != strings.Replace(program, digest("0"), digest("a"), 1) {
		t.Errorf("%q, %v", got, err)
	}
	if again, err := withDigest(got, digest("a")); err != nil || string(again) != string(got) {
		t.Errorf("once more: %q, %v", again, err)
	}
	if _, err := withDigest([]byte("other"), digest("a")); err == nil {
		t.Error("a program without the name was taken")
	}
	if _, err := withDigest([]byte(program), "sha256:a"); err == nil {
		t.Error("a digest of another length was taken")
	}
}
