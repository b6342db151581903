package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPage(t *testing.T) {
	all := suiteOf(one, two, three)
	r := firstRun().merge("v1", all, all[2:], map[string]outcome{three: {failed, 1, "\n [FAILED] <b> *is* not\nmore"}}, "bbb", tuesday)
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
	if strings.Contains(page(firstRun(), nil), "None.") || !strings.Contains(page(results{}, nil), "None.") {
		t.Error("None. stands where something fails, or does not where nothing does")
	}
}

func TestCauses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "causes.txt")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("# why\n" + two + "\n\n\tIt wants two nodes.\n" + one + "\n  flaky\n" + gone + "\n  was so\n")
	causes, err := readCauses(path)
	if err != nil || len(causes) != 3 || causes[two] != "It wants two nodes." {
		t.Errorf("got %q, %v", causes, err)
	}
	got := strings.Join(stale(causes, firstRun()), "\n")
	if !strings.Contains(got, one+" passes") || !strings.Contains(got, gone+" is no Conformance test") || strings.Contains(got, two) {
		t.Errorf("stale: %s", got)
	}
	for name, text := range map[string]string{
		"no cause":         one + "\n",
		"no cause between": one + "\n" + two + "\n  why\n",
		"no test":          "  why\n",
		"two causes":       one + "\n  why\n  and\n",
		"twice":            one + "\n  why\n" + one + "\n  why\n",
	} {
		write(text)
		if causes, err := readCauses(path); err == nil || !strings.Contains(err.Error(), "causes.txt") {
			t.Errorf("%s: read as %q, %v", name, causes, err)
		}
	}
}
