package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

var (
	monday  = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	tuesday = monday.Add(24 * time.Hour)
)

func suiteOf(names ...string) []spec {
	var out []spec
	for _, n := range names {
		sig, err := sigOf(n)
		if err != nil {
			panic(err)
		}
		out = append(out, spec{name: n, sig: sig})
	}
	return out
}

const (
	one   = "[sig-apps] one"
	two   = "[sig-node] two"
	three = "[sig-node] three"
	gone  = "[sig-node] gone"
)

// firstRun is a run of all: one passes, two fails, three never came to run.
func firstRun() outcome.Results {
	all := suiteOf(one, two, three)
	return merge(outcome.Results{}, "v1", all, all, map[string]outcome.Outcome{one: {Status: outcome.Passed, Seconds: 1, Message: ""}, two: {Status: outcome.Failed, Seconds: 2, Message: "[FAILED] boom\nand more"}}, "aaa", monday)
}

func TestMergeAFullRun(t *testing.T) {
	r := firstRun()
	for name, want := range map[string]string{one: outcome.Passed, two: outcome.Failed, three: outcome.NotRun} {
		if got := r.ByName[name]; got.Status != want || got.Commit != "aaa" || !got.At.Equal(monday) {
			t.Errorf("%s is %+v, want %s", name, got, want)
		}
	}
}

func TestMergeUpdatesOnlyWhatWasChosen(t *testing.T) {
	all := suiteOf(one, two, three)
	r := merge(firstRun(), "v1", all, all[1:2], map[string]outcome.Outcome{two: {Status: outcome.Passed, Seconds: 3, Message: ""}, one: {Status: outcome.Failed, Seconds: 1, Message: "not chosen"}}, "bbb", tuesday)
	if got := r.ByName[one]; got.Status != outcome.Passed || got.Commit != "aaa" {
		t.Errorf("one was not chosen, yet is %+v", got)
	}
	if got := r.ByName[two]; got.Status != outcome.Passed || got.Commit != "bbb" || got.Message != "" {
		t.Errorf("two is %+v", got)
	}
	if got := r.ByName[three]; got.Status != outcome.NotRun || got.Commit != "aaa" {
		t.Errorf("three is %+v", got)
	}
}

// A pass of an older run is no pass once the test was chosen again and did not run.
func TestMergeTakesAPassBack(t *testing.T) {
	all := suiteOf(one, two, three)
	if got := merge(firstRun(), "v1", all, all, nil, "bbb", tuesday).ByName[one]; got.Status != outcome.NotRun {
		t.Errorf("one is %+v", got)
	}
}

func TestMergeFollowsTheSuite(t *testing.T) {
	r := firstRun()
	r.ByName[gone] = outcome.Result{Name: gone, Group: "sig-node", Outcome: outcome.Outcome{Status: outcome.Passed}}
	all := suiteOf(one, two, "[sig-cli] new")
	merged := merge(r, "v1", all, nil, nil, "bbb", tuesday)
	if _, still := merged.ByName[gone]; still || len(merged.ByName) != 3 {
		t.Errorf("results are of %v", merged.ByName)
	}
	if got := merged.ByName["[sig-cli] new"]; got.Status != outcome.NotRun || got.Group != "sig-cli" {
		t.Errorf("the new test is %+v", got)
	}
	for name, got := range merge(r, "v2", all, nil, nil, "bbb", tuesday).ByName {
		if got.Status != outcome.NotRun {
			t.Errorf("%s is %s by a run of another version", name, got.Status)
		}
	}
}

// What skips itself could not run, and that is no pass of Conformance.
func TestReadRun(t *testing.T) {
	dir := t.TempDir()
	if _, err := readRun(dir); err == nil || !strings.Contains(err.Error(), "no JUnit report") {
		t.Errorf("without a report: %v", err)
	}
	report := `<testsuites><testsuite><testcase name="[It] good" status="passed" time="1"></testcase>
<testcase name="[It] skips itself" status="skipped" time="0.4"><skipped message="skipped - needs IPv6"></skipped></testcase></testsuite></testsuites>`
	if err := os.WriteFile(filepath.Join(dir, "junit_01.xml"), []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := readRun(dir)
	if err != nil || got["good"].Status != outcome.Passed || got["skips itself"] != (outcome.Outcome{Status: outcome.Failed, Seconds: 0.4, Message: "the test skipped itself: skipped - needs IPv6"}) {
		t.Errorf("%v, %v", got, err)
	}
}
