package main

import (
	"fmt"
	"regexp"
	"testing"
)

func specs(n int, prefix string, change func(*spec)) []spec {
	var out []spec
	for i := range n {
		s := spec{name: fmt.Sprintf("[sig-node] %s %d (a|b) [Conformance]", prefix, i), sig: "sig-node"}
		change(&s)
		out = append(out, s)
	}
	return out
}

func TestPlan(t *testing.T) {
	short := specs(20, "short", func(*spec) {})
	slow := specs(4, "slow", func(s *spec) { s.slow = true })
	alone := specs(3, "alone", func(s *spec) { s.alone, s.slow = true, true })
	seconds := map[string]float64{slow[0].name: 400, short[0].name: 250}
	all := append(append(append([]spec{}, short...), slow...), alone...)
	for name, test := range map[string]struct {
		chosen   []spec
		parallel int
		want     string
	}{
		// Long are the slow ones of unknown time and the one known to take long.
		"all":                {all, 6, "[long 5×5 parallel 19×1] [serial 3×1]"},
		"two at a time":      {all, 2, "[long 5×1 parallel 19×1] [serial 3×1]"},
		"one at a time":      {all, 1, "[parallel 24×1] [serial 3×1]"},
		"only short":         {short[1:], 6, "[parallel 19×6]"},
		"fewer than workers": {short[1:3], 6, "[parallel 2×2]"},
		"only long":          {slow, 6, "[parallel 4×4]"},
		"only alone":         {alone, 6, "[serial 3×1]"},
	} {
		t.Run(name, func(t *testing.T) {
			stages := plan(test.chosen, seconds, test.parallel)
			got, n := "", 0
			for _, stage := range stages {
				procs, text := 0, ""
				for _, p := range stage {
					text += fmt.Sprintf(" %s %d×%d", p.name, len(p.specs), p.procs)
					procs += p.procs
					n += len(p.specs)
				}
				if procs > test.parallel {
					t.Errorf("stage [%s] runs %d tests at a time, more than %d", text, procs, test.parallel)
				}
				got += " [" + text[1:] + "]"
			}
			if got[1:] != test.want {
				t.Errorf("got %s, want %s", got[1:], test.want)
			}
			if n != len(test.chosen) {
				t.Errorf("the plan has %d of %d tests", n, len(test.chosen))
			}
		})
	}
}

// A known time counts more than the label: a slow test that is quick goes with the others.
func TestPlanKnowsTimes(t *testing.T) {
	slow := specs(1, "slow", func(s *spec) { s.slow = true })
	stages := plan(append(specs(3, "short", func(*spec) {}), slow...), map[string]float64{slow[0].name: 20}, 4)
	if len(stages) != 1 || len(stages[0]) != 1 {
		t.Errorf("got %v, want one phase", stages)
	}
}

// What is matched is the test's full name at the end, not a longer name that it begins.
func TestFocus(t *testing.T) {
	match := regexp.MustCompile(focus(specs(2, "x", func(*spec) {})))
	for text, want := range map[string]bool{
		"Kubernetes e2e suite [sig-node] x 1 (a|b) [Conformance]":             true,
		"Kubernetes e2e suite [sig-node] x 1 (a|b) [Conformance] [LinuxOnly]": false,
		"Kubernetes e2e suite [sig-node] x 2 (a|b) [Conformance]":             false,
		"Kubernetes e2e suite [sig-node] x 0 a":                               false,
	} {
		if match.MatchString(text) != want {
			t.Errorf("%q matched is %t", text, !want)
		}
	}
}
