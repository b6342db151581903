package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

// merge takes a run's outcomes of the chosen tests over. What was not chosen stays as it
// was; what the suite no longer has goes. A chosen test without an outcome did not run.
func merge(r outcome.Results, suite string, all, chosen []spec, ran map[string]outcome.Outcome, commit string, at time.Time) outcome.Results {
	merged := outcome.Results{Suite: suite, ByName: map[string]outcome.Result{}}
	for _, s := range all {
		old, known := r.ByName[s.name]
		if !known || r.Suite != suite {
			old = outcome.Result{Name: s.name, Outcome: outcome.Outcome{Status: outcome.NotRun, Message: "no run has chosen it yet"}}
		}
		old.Group = s.sig
		merged.ByName[s.name] = old
	}
	for _, s := range chosen {
		o, did := ran[s.name]
		if !did {
			o = outcome.Outcome{Status: outcome.NotRun, Message: "chosen, but the run ended without it"}
		}
		merged.ByName[s.name] = outcome.Result{Name: s.name, Group: s.sig, Outcome: o, Commit: commit, At: at}
	}
	return merged
}

// seconds is how long each test took when it last ran.
func seconds(r outcome.Results) map[string]float64 {
	out := map[string]float64{}
	for name, t := range r.ByName {
		out[name] = t.Seconds
	}
	return out
}

// readRun returns the outcome of each test that ran by the reports in dir. A Conformance test that
// skips itself has failed: what could not run is not a pass.
func readRun(dir string) (map[string]outcome.Outcome, error) {
	files, err := filepath.Glob(filepath.Join(dir, "junit*.xml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the suite wrote no JUnit report to %s", dir)
	}
	ran, err := outcome.ReadReports(files...)
	for name, o := range ran {
		if o.Status == outcome.NotRun {
			o.Status, o.Message = outcome.Failed, "the test skipped itself: "+o.Message
			ran[name] = o
		}
	}
	return ran, err
}
