package outcome

import (
	"strings"
	"testing"
)

func TestPageParts(t *testing.T) {
	r := kept()
	want := "| part | tests | passed | failed | not run |\n|---|---|---|---|---|\n| a | 1 | 1 | 0 | 0 |\n| b | 3 | 0 | 1 | 2 |\n| total | 4 | 1 | 1 | 2 |\n"
	if got := r.Table("part"); got != want {
		t.Errorf("table:\n%s", got)
	}
	if got := r.Runs(); !strings.HasSuffix(got, "| 1 | bbb | 2026-12-01 09:00 |\n| 2 | aaa | 2026-11-30 09:00 |\n") {
		t.Errorf("runs:\n%s", got)
	}
	if got := r.Failing(nil); got != "- \\[sig-b\\] two\n  <br>no cause known yet: boom\n" {
		t.Errorf("failing: %q", got)
	}
	if got := r.Failing(map[string]string{two: "The <kernel> is *old*."}); got != "- \\[sig-b\\] two\n  <br>The &lt;kernel> is \\*old\\*.\n" {
		t.Errorf("with a cause: %q", got)
	}
	if got := (Results{}).Failing(nil); got != "None.\n" {
		t.Errorf("of nothing: %q", got)
	}
}

func TestFiles(t *testing.T) {
	for f, ok := range map[Files]bool{{}: true, {Results: "r"}: false, {Page: "p"}: false, {Results: "r", Page: "p"}: false, {Results: "r", Causes: "c", Page: "p"}: true, {Commit: "x"}: true} {
		if err := f.Check(); (err == nil) != ok {
			t.Errorf("%+v: %v", f, err)
		}
	}
}
