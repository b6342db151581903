package main

import (
	"maps"
	"regexp"
	"strings"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

// suiteVersion is the module's, see ../critools/go.mod: a test compares them.
const suiteVersion = "v1.37.0"

// readReport reads what ginkgo wrote. Tests that were not chosen, and benchmarks, are left out;
// one that skipped itself did not run, and says why.
func readReport(path string) (version string, ran map[string]outcome.Outcome, err error) {
	ran, err = outcome.ReadReports(path)
	for name, o := range ran {
		o.Message = strings.TrimPrefix(o.Message, "skipped - ")
		ran[name] = o
	}
	return suiteVersion, ran, err
}

// merge takes a run's outcomes over. What it did not choose stays; what is of another version
// of the suite goes.
func merge(r outcome.Results, suite string, ran map[string]outcome.Outcome, commit string, at time.Time) outcome.Results {
	out := outcome.Results{Suite: suite, ByName: map[string]outcome.Result{}}
	if r.Suite == suite {
		maps.Copy(out.ByName, r.ByName)
	}
	for name, o := range ran {
		o.Message = unsteady.ReplaceAllString(o.Message, "0x…")
		out.ByName[name] = outcome.Result{Name: name, Outcome: o, Commit: commit, At: at.UTC().Truncate(time.Second)}
	}
	for name, t := range out.ByName {
		t.Group = part(name)
		out.ByName[name] = t
	}
	return out
}

// unsteady is what differs between runs alone.
var unsteady = regexp.MustCompile(`0x[0-9a-f]+`)
