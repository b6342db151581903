package main

import (
	"math"
	"regexp"
	"strings"
)

// phase is one call of ginkgo. Phases of one stage run at the same time.
type phase struct {
	name  string
	procs int
	specs []spec
}

// longTest is how long a test is known to take for it to be started at the beginning: one
// that ginkgo's random order puts last would prolong the run by its whole time.
const longTest = 100.0 // seconds

// plan splits the tests into stages. First come those that go in parallel, with the long
// ones in a phase of their own beside the others; then, one at a time, those that
// want the cluster for themselves.
func plan(chosen []spec, seconds map[string]float64, parallel int) [][]phase {
	var long, short, alone []spec
	var longTotal, shortTotal float64
	for _, s := range chosen {
		took := seconds[s.name]
		switch {
		case s.alone:
			alone = append(alone, s)
		case took >= longTest || took == 0 && s.slow:
			long, longTotal = append(long, s), longTotal+max(took, longTest)
		default:
			short, shortTotal = append(short, s), shortTotal+max(took, 5)
		}
	}
	var stages [][]phase
	switch {
	case len(long) == 0 || len(short) == 0 || parallel < 2:
		if both := append(short, long...); len(both) > 0 {
			stages = append(stages, []phase{{"parallel", min(parallel, len(both)), both}})
		}
	default:
		procs := int(math.Round(float64(parallel) * longTotal / (longTotal + shortTotal)))
		procs = max(1, min(procs, parallel-1, len(long)))
		stages = append(stages, []phase{
			{"long", procs, long},
			{"parallel", min(parallel-procs, len(short)), short},
		})
	}
	if len(alone) > 0 {
		stages = append(stages, []phase{{"serial", 1, alone}})
	}
	return stages
}

// focus is the regular expression that matches just these tests. Ginkgo matches it against
// the suite's own description and the test's name behind it.
func focus(specs []spec) string {
	quoted := make([]string, len(specs))
	for i, s := range specs {
		quoted[i] = regexp.QuoteMeta(s.name)
	}
	return "(" + strings.Join(quoted, "|") + ")$"
}
