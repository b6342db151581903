package outcome

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

func of(all ...Result) Results {
	r := Results{Suite: "v1", ByName: map[string]Result{}}
	for _, t := range all {
		r.ByName[t.Name] = t
	}
	return r
}

// kept has a test of each kind, in two groups, of two runs; one has not run yet.
func kept() Results {
	return of(
		Result{Name: "[sig-a] one", Group: "a", Outcome: Outcome{Passed, 1, ""}, Commit: "aaa", At: monday},
		Result{Name: "[sig-b] two", Group: "b", Outcome: Outcome{Failed, 2.5, "[FAILED] boom\nand more"}, Commit: "bbb", At: tuesday},
		Result{Name: "[sig-b] three", Group: "b", Outcome: Outcome{NotRun, 0, "not here"}, Commit: "aaa", At: monday},
		Result{Name: "[sig-b] four", Group: "b", Outcome: Outcome{NotRun, 0, "no run has chosen it yet"}},
	)
}

func TestWriteAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.xml")
	r := kept()
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, r) {
		t.Errorf("read back:\n%+v\nwant\n%+v", got, r)
	}
	before, _ := os.ReadFile(path)
	if err := got.Write(path); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(path); string(after) != string(before) {
		t.Error("written again, the file differs")
	}
}

func TestWriteBoundsMessages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.xml")
	long := "first line\n" + strings.Repeat("ü", 3*longest)
	if err := of(Result{Name: "one", Group: "a", Outcome: Outcome{Failed, 1, long}}).Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	message := got.ByName["one"].Message
	if len(message) > longest+10 || FirstLine(message) != "first line" || strings.ContainsRune(message, '\uFFFD') {
		t.Errorf("kept %d bytes: %.40q", len(message), message)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	if r, err := Read(filepath.Join(dir, "none.xml")); err != nil || len(r.ByName) != 0 {
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
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "bad.xml") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
