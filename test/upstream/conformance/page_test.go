package main

import (
	"strings"
	"testing"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

func TestPage(t *testing.T) {
	all := suiteOf(one, two, three)
	r := merge(firstRun(), "v1", all, all[2:], map[string]outcome.Outcome{three: {Status: outcome.Failed, Seconds: 1, Message: "\n [FAILED] <b> *is* not\nmore"}}, "bbb", tuesday)
	got := page(r, map[string]string{two: "It wants two nodes.", one: "stale"})
	for _, want := range []string{
		"Kubernetes v1,",
		"| SIG | tests | passed | failed | not run |\n|---|---|---|---|---|\n| apps | 1 | 1 | 0 | 0 |\n| node | 2 | 0 | 2 | 0 |\n| total | 3 | 1 | 2 | 0 |\n\n",
		"| 1 | bbb | 2026-12-01 09:00 |\n| 2 | aaa | 2026-11-30 09:00 |\n",
		"- \\[sig-node\\] two\n  <br>It wants two nodes.\n",
		"- \\[sig-node\\] three\n  <br>no cause known yet: &lt;b> \\*is\\* not\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks\n%s\nit is\n%s", want, got)
		}
	}
	if strings.Contains(got, "stale") {
		t.Error("a passing test is shown with a cause")
	}
	if strings.Contains(page(firstRun(), nil), "None.") || !strings.Contains(page(outcome.Results{}, nil), "None.") {
		t.Error("None. stands where something fails, or does not where nothing does")
	}
}
