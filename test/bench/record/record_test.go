package record

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func line(name, side string, round int, cpu float64) Line {
	return Line{Side: side, Round: round, Stage: "s", Result: Result{Case: name, Ops: 10, Servers: map[string]Usage{"a": {CPU: cpu}, "b": {CPU: 1, PSS: 2}}}}
}

func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir()
	lines := []Line{line("x", Skiff, 1, 2), line("x", Upstream, 1, 3), {Stage: "t", Side: Upstream, NotRun: "why", Result: Result{Case: "y"}}}
	if err := Write(dir, lines); err != nil {
		t.Fatal(err)
	}
	got, err := ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, lines) {
		t.Errorf("got  %+v\nwant %+v", got, lines)
	}
	if got[0].CPU() != 3 || got[0].PSS() != 2 {
		t.Errorf("sums: %g s, %g MB", got[0].CPU(), got[0].PSS())
	}
}

func TestReadSaysWhatIsDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	if err := os.WriteFile(path, []byte("{\"case\":\"x\"}\n{\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path+":2:") {
		t.Errorf("no place in %v", err)
	}
	if lines, err := Read(path + ".none"); err != nil || lines != nil {
		t.Errorf("a file that is not: %v, %v", lines, err)
	}
}

func TestMerge(t *testing.T) {
	old := []Line{line("x", Skiff, 1, 1), line("x", Skiff, 0, 1), line("y", Skiff, 1, 1)}
	got := Merge(old, []Line{line("x", Upstream, 1, 9)})
	want := []Line{old[1], old[2], line("x", Upstream, 1, 9)}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want the profile and the other case kept", got)
	}
}

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want Stats
	}{
		{[]float64{3}, Stats{3, 3, 3, 1}},
		{[]float64{9, 1, 2}, Stats{2, 1, 9, 3}},
		{[]float64{4, 1, 2, 3}, Stats{2.5, 1, 4, 4}},
	} {
		if got := Summarize(c.in); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.in, got, c.want)
		}
	}
	if got := Summarize(nil); got.N != 0 || !math.IsNaN(got.Median) {
		t.Errorf("of nothing: %+v", got)
	}
}
