package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
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
func firstRun() results {
	all := suiteOf(one, two, three)
	return results{}.merge("v1", all, all, map[string]outcome{one: {passed, 1, ""}, two: {failed, 2, "[FAILED] boom\nand more"}}, "aaa", monday)
}

func TestMergeAFullRun(t *testing.T) {
	r := firstRun()
	for name, want := range map[string]string{one: passed, two: failed, three: notRun} {
		if got := r.byName[name]; got.status != want || got.commit != "aaa" || !got.at.Equal(monday) {
			t.Errorf("%s is %+v, want %s", name, got, want)
		}
	}
}

func TestMergeUpdatesOnlyWhatWasChosen(t *testing.T) {
	all := suiteOf(one, two, three)
	r := firstRun().merge("v1", all, all[1:2], map[string]outcome{two: {passed, 3, ""}, one: {failed, 1, "not chosen"}}, "bbb", tuesday)
	if got := r.byName[one]; got.status != passed || got.commit != "aaa" {
		t.Errorf("one was not chosen, yet is %+v", got)
	}
	if got := r.byName[two]; got.status != passed || got.commit != "bbb" || got.message != "" {
		t.Errorf("two is %+v", got)
	}
	if got := r.byName[three]; got.status != notRun || got.commit != "aaa" {
		t.Errorf("three is %+v", got)
	}
}

// A pass of an older run is no pass once the test was chosen again and did not run.
func TestMergeTakesAPassBack(t *testing.T) {
	all := suiteOf(one, two, three)
	if got := firstRun().merge("v1", all, all, nil, "bbb", tuesday).byName[one]; got.status != notRun {
		t.Errorf("one is %+v", got)
	}
}

func TestMergeFollowsTheSuite(t *testing.T) {
	r := firstRun()
	r.byName[gone] = result{name: gone, sig: "sig-node", outcome: outcome{status: passed}}
	all := suiteOf(one, two, "[sig-cli] new")
	merged := r.merge("v1", all, nil, nil, "bbb", tuesday)
	if _, still := merged.byName[gone]; still || len(merged.byName) != 3 {
		t.Errorf("results are of %v", merged.byName)
	}
	if got := merged.byName["[sig-cli] new"]; got.status != notRun || got.sig != "sig-cli" {
		t.Errorf("the new test is %+v", got)
	}
	for name, got := range r.merge("v2", all, nil, nil, "bbb", tuesday).byName {
		if got.status != notRun {
			t.Errorf("%s is %s by a run of another version", name, got.status)
		}
	}
}

func TestWriteAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.xml")
	r := firstRun()
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := readResults(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, r) {
		t.Errorf("read back:\n%+v\nwant\n%+v", got, r)
	}
	before, _ := os.ReadFile(path)
	if err := got.write(path); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(path); string(after) != string(before) {
		t.Error("written again, the file differs")
	}
}

func TestWriteBoundsMessages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.xml")
	all := suiteOf(one)
	long := "first line\n" + strings.Repeat("ü", 3*longestMessage)
	if err := (results{}).merge("v1", all, all, map[string]outcome{one: {failed, 1, long}}, "aaa", monday).write(path); err != nil {
		t.Fatal(err)
	}
	got, err := readResults(path)
	if err != nil {
		t.Fatal(err)
	}
	message := got.byName[one].message
	if len(message) > longestMessage+10 || firstLine(message) != "first line" || strings.ContainsRune(message, '\uFFFD') {
		t.Errorf("kept %d bytes: %.40q", len(message), message)
	}
}

func TestReadResults(t *testing.T) {
	dir := t.TempDir()
	if r, err := readResults(filepath.Join(dir, "none.xml")); err != nil || len(r.byName) != 0 {
		t.Errorf("no file yet: %v, %v", r, err)
	}
	for name, text := range map[string]string{
		"no XML":  "not XML",
		"no time": `<testsuites><testsuite name="sig-a"><testcase name="x" time="soon"></testcase></testsuite></testsuites>`,
		"no date": `<testsuites><testsuite name="sig-a"><testcase name="x" time="1" timestamp="monday"></testcase></testsuite></testsuites>`,
	} {
		path := filepath.Join(dir, "bad.xml")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readResults(path); err == nil || !strings.Contains(err.Error(), "bad.xml") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
