package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// page is docs/conformance.md, all of it computed.
func page(r results, causes map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Conformance

The Conformance tests of Kubernetes %s, unchanged, against a cluster of skiff with two nodes. This page is
computed from [their results](../test/upstream/results/conformance.xml) by `+"`make conformance`"+`; a partial run
(`+"`FOCUS=regex`, `SIG=name`"+`) updates only what it ran. A test that could not run is not a pass.

`, r.suite)
	b.WriteString(table(r))
	b.WriteString(runs(r))
	var failing []result
	for _, t := range r.sorted() {
		if t.status == failed {
			failing = append(failing, t)
		}
	}
	b.WriteString("\n## Failing\n\n")
	if len(failing) == 0 {
		b.WriteString("None.\n")
	}
	for _, t := range failing {
		cause := causes[t.name]
		if cause == "" {
			cause = "no cause known yet: " + firstLine(t.message)
		}
		fmt.Fprintf(&b, "- %s\n  <br>%s\n", literal(t.name), literal(cause))
	}
	return b.String()
}

// table counts by SIG; its last row is the total.
func table(r results) string {
	type count struct{ passed, failed, notRun int }
	var sigs []string
	counts := map[string]*count{"total": {}}
	for _, t := range r.sorted() {
		if counts[t.sig] == nil {
			counts[t.sig] = &count{}
			sigs = append(sigs, t.sig)
		}
		for _, c := range []*count{counts[t.sig], counts["total"]} {
			switch t.status {
			case passed:
				c.passed++
			case failed:
				c.failed++
			default:
				c.notRun++
			}
		}
	}
	slices.Sort(sigs)
	var b strings.Builder
	b.WriteString("| SIG | tests | passed | failed | not run |\n|---|---|---|---|---|\n")
	for _, s := range append(sigs, "total") {
		c := counts[s]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", strings.TrimPrefix(s, "sig-"), c.passed+c.failed+c.notRun, c.passed, c.failed, c.notRun)
	}
	return b.String()
}

// runs says which commit was run when, newest first.
func runs(r results) string {
	type key struct {
		commit string
		at     time.Time
	}
	counts := map[key]int{}
	var keys []key
	for _, t := range r.byName {
		if t.commit == "" {
			continue
		}
		k := key{t.commit, t.at.UTC()}
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

// literal keeps a test's name or message from being read as Markdown or HTML.
func literal(s string) string {
	return strings.NewReplacer("\\", "\\\\", "*", "\\*", "_", "\\_", "<", "&lt;", "[", "\\[", "]", "\\]", "`", "\\`").Replace(s)
}
