package outcome

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const suiteReport = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="8"><testsuite name="Kubernetes e2e suite">
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
<testcase name="[It] good" status="passed" time="1.25"><system-err>noise</system-err></testcase>
<testcase name="[It] bad" status="failed" time="2"><failure message="" type="failed">[FAILED] Expected one&#xA;got two</failure><system-err>noise</system-err></testcase>
<testcase name="[It] late" status="timedout" time="3"><failure message="[TIMEDOUT] A suite timeout occurred" type="timedout">stack</failure></testcase>
<testcase name="[It] crashed" status="panicked" time="3"><error message="nil map" type="panicked">stack</error></testcase>
<testcase name="[It] strange" status="aborted" time="3"></testcase>
<testcase name="[It] not chosen" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
<testcase name="[It] skips itself" status="skipped" time="0.4"><skipped message="skipped - needs IPv6"></skipped></testcase>
</testsuite></testsuites>`

func TestReadReports(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "junit_01.xml"), []byte(suiteReport), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := ReadReports(filepath.Join(dir, "junit_01.xml"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Outcome{
		"good":         {Passed, 1.25, ""},
		"bad":          {Failed, 2, "[FAILED] Expected one\ngot two"},
		"late":         {Failed, 3, "[TIMEDOUT] A suite timeout occurred"},
		"crashed":      {Failed, 3, "nil map"},
		"strange":      {Failed, 3, "the suite reports it as aborted without a message"},
		"skips itself": {NotRun, 0.4, "skipped - needs IPv6"},
	}
	if len(got) != len(want) {
		t.Errorf("got %d tests, want %d: %v", len(got), len(want), got)
	}
	for name, o := range want {
		if got[name] != o {
			t.Errorf("%s: got %+v, want %+v", name, got[name], o)
		}
	}
}

func TestReadReportsThatAreNone(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadReports(filepath.Join(dir, "junit_01.xml")); err == nil || !strings.Contains(err.Error(), "junit_01.xml") {
		t.Errorf("without a report: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "junit_01.xml"), []byte("<testsuites><testsuite>"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadReports(filepath.Join(dir, "junit_01.xml")); err == nil {
		t.Errorf("half a report was read as %v", got)
	}
}
