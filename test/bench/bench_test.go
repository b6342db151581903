package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/test/bench/record"
)

func TestChoose(t *testing.T) {
	some, err := choose(stages(), "^get-16$")
	if err != nil || len(some) != 1 || some[0].name != "api" {
		t.Fatalf("%v, %v", some, err)
	}
	var steps []string
	for _, c := range some[0].steps(chosen(some[0], regexp.MustCompile("^get-16$"))) {
		steps = append(steps, c.name)
	}
	if want := []string{"create-16", "get-16"}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want what makes the pods first: %v", steps, want)
	}
	for _, expr := range []string{"nothing-has-this-name", "("} {
		if _, err := choose(stages(), expr); err == nil || !strings.Contains(err.Error(), "--case") {
			t.Errorf("%q: %v", expr, err)
		}
	}
}

// TestNamesAreUnique: results are found by the names of cases.
func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range stages() {
		for _, c := range s.cases {
			if seen[c.name] || c.name == "" || c.title == "" {
				t.Errorf("case %q of %s: twice, or without name or title", c.name, s.name)
			}
			seen[c.name] = true
		}
	}
	for _, table := range tables() {
		for _, name := range table.cases {
			if !seen[name] {
				t.Errorf("table %q has a case %q that is not", table.title, name)
			}
		}
	}
}

// TestTurnsAlternate: neither side is always first, and each has as many rounds.
func TestTurnsAlternate(t *testing.T) {
	all := turns([]stage{{name: "a"}, {name: "b", rounds: 2}}, 3, true)
	first, count := map[string]int{}, map[string]int{}
	for i, x := range all {
		if x.round > 0 {
			count[x.stage+x.side]++
			if i == 0 || all[i-1].round != x.round || all[i-1].stage != x.stage {
				first[x.side]++
			}
		}
	}
	if first[record.Skiff] < 2 || first[record.Upstream] < 2 {
		t.Errorf("who begins: %v", first)
	}
	for key, want := range map[string]int{"askiff": 3, "aupstream": 3, "bskiff": 2, "bupstream": 2} {
		if count[key] != want {
			t.Errorf("%s: %d rounds, want %d", key, count[key], want)
		}
	}
}

// figures are lines of one case.
func figures(name, side string, cpus ...float64) []record.Line {
	var out []record.Line
	for i, cpu := range cpus {
		out = append(out, record.Line{
			Run: record.Run{Started: time.Unix(0, 0), Commit: "abc", Machine: "m"}, Side: side, Round: i + 1, Stage: "api",
			Result: record.Result{Case: name, Ops: 1000, Seconds: 2, Wall: 2, P50ms: 1, P99ms: 2, Load: 1, OthersCPU: 0.2, Servers: map[string]record.Usage{"p": {CPU: cpu, PSS: 10}}},
		})
	}
	return out
}

func TestReport(t *testing.T) {
	lines := slices.Concat(
		figures("get-16", record.Skiff, 1, 3, 2), figures("get-16", record.Upstream, 10, 20, 30),
		figures("bind-1000", record.Skiff, 1), figures("bind-1000", record.Upstream, 4),
		figures("boot", record.Skiff, 0.5),
		[]record.Line{
			{Side: record.Upstream, Round: 1, NotRun: "containerd: no such file", Result: record.Result{Case: "pod-start"}},
			{Side: record.Skiff, Round: 0, Result: record.Result{Case: "get-16"}, Costs: []record.Cost{{What: "TLS", Share: 0.25}, {What: "JSON", Share: 0.1}}},
		},
	)
	page := report(lines)
	for _, want := range []string{
		"| … 16 at once | `get-16` | 2 ± 1 | 20 ± 10 | **10** | 500 | 500 | 1 | 1 | 2 | 2 |",
		"| create and bind 5,000 pods, 1,000 nodes | `bind-1000` | 1000 | 250 | **4** |",
		"| boot: exec to `/readyz` | `boot` | 2 | – | – | 0.5 | – | – |",
		"| `pod-start` | upstream | containerd: no such file |",
		"| `get-16` | TLS 25 %, JSON 10 % | – |",
		"| 10, 10 |", // CPU of others
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
		t.Error("a figure is none")
	}
	if t.Failed() {
		t.Log(page)
	}
}
