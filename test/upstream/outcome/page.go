package outcome

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Table counts by group, whose heading is what; its last row is the total.
func (r Results) Table(what string) string {
	type count struct{ passed, failed, notRun int }
	var groups []string
	counts := map[string]*count{"total": {}}
	for _, t := range r.Sorted() {
		if counts[t.Group] == nil {
			counts[t.Group] = &count{}
			groups = append(groups, t.Group)
		}
		for _, c := range []*count{counts[t.Group], counts["total"]} {
			switch t.Status {
			case Passed:
				c.passed++
			case Failed:
				c.failed++
			default:
				c.notRun++
			}
		}
	}
	slices.Sort(groups)
	var b strings.Builder
	b.WriteString("| " + what + " | tests | passed | failed | not run |\n|---|---|---|---|---|\n")
	for _, s := range append(groups, "total") {
		c := counts[s]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", strings.TrimPrefix(s, "sig-"), c.passed+c.failed+c.notRun, c.passed, c.failed, c.notRun)
	}
	return b.String()
}

// Runs says which commit was run when, newest first.
func (r Results) Runs() string {
	type key struct {
		commit string
		at     time.Time
	}
	counts := map[key]int{}
	var keys []key
	for _, t := range r.ByName {
		if t.Commit == "" {
			continue
		}
		k := key{t.Commit, t.At.UTC()}
		if counts[k] == 0 {
			keys = append(keys, k)
		}
		counts[k]++
	}
	slices.SortFunc(keys, func(a, b key) int {
		if c := b.at.Compare(a.at); c != 0 {
			return c
		}
		return strings.Compare(a.commit, b.commit)
	})
	var b strings.Builder
	b.WriteString("\n| tests | commit | run at (UTC) |\n|---|---|---|\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "| %d | %s | %s |\n", counts[k], k.commit, k.at.Format("2006-01-02 15:04"))
	}
	return b.String()
}

// Failing lists the tests that fail, with their causes.
func (r Results) Failing(causes map[string]string) string {
	var b strings.Builder
	for _, t := range r.Sorted() {
		if t.Status != Failed {
			continue
		}
		cause := causes[t.Name]
		if cause == "" {
			cause = "no cause known yet: " + FirstLine(t.Message)
		}
		fmt.Fprintf(&b, "- %s\n  <br>%s\n", Literal(t.Name), Literal(cause))
	}
	if b.Len() == 0 {
		return "None.\n"
	}
	return b.String()
}

// Literal keeps a test's name or message from being read as Markdown or HTML.
func Literal(s string) string {
	return strings.NewReplacer("\\", "\\\\", "*", "\\*", "_", "\\_", "<", "&lt;", "[", "\\[", "]", "\\]", "`", "\\`").Replace(s)
}
