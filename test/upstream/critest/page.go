package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// readCauses reads the file, kept by hand, that says why tests fail: a test's full name, and
// indented below it the cause in a line. # starts a comment.
func readCauses(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read causes: %w", err)
	}
	causes := map[string]string{}
	name := ""
	for i, line := range strings.Split(string(text), "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#"):
		case line == strings.TrimLeft(line, " \t") && name == "":
			name = trimmed
		case line != strings.TrimLeft(line, " \t") && name != "":
			causes[name], name = trimmed, ""
		default:
			return nil, fmt.Errorf("%s:%d: want a test's name and below it, indented, its cause in one line", path, i+1)
		}
	}
	if name != "" {
		return nil, fmt.Errorf("%s: %q has no cause below it", path, name)
	}
	return causes, nil
}

// page is docs/critest.md, all of it computed.
func page(r results, causes map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# The container runtime by critest

critest %s (sigs.k8s.io/cri-tools) against the built-in runtime alone (`+"`skiff containers`"+`), several tests at a time.
This page is computed from [its results](../test/upstream/results/critest.xml) by `+"`make critest`"+`; `+"`make critest FOCUS=regex`"+`
updates only what it ran. The suite is as it is but for one constant: of the image that a test pulls by its digest
there is a stand-in, as of all others ([test/upstream/images](../test/upstream/images/critest.go)), and its digest stands in its place.

| part | tests | passed | failed | not run |
|---|---|---|---|---|
`, r.suite)
	type count struct{ passed, failed, notRun int }
	counts := map[string]*count{}
	var parts []string
	total := &count{}
	skipped := map[string]int{}
	var failing []string
	for _, name := range r.names() {
		t, p := r.byName[name], part(name)
		if counts[p] == nil {
			counts[p] = &count{}
			parts = append(parts, p)
		}
		for _, c := range []*count{counts[p], total} {
			switch t.status {
			case passed:
				c.passed++
			case failed:
				c.failed++
			default:
				c.notRun++
			}
		}
		switch t.status {
		case failed:
			failing = append(failing, name)
		case notRun:
			skipped[p+": "+t.message]++
		}
	}
	slices.Sort(parts)
	counts["total"] = total
	for _, p := range append(parts, "total") {
		c := counts[p]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", p, c.passed+c.failed+c.notRun, c.passed, c.failed, c.notRun)
	}
	b.WriteString(runs(r))
	b.WriteString("\n## Failing\n\n")
	if len(failing) == 0 {
		b.WriteString("None.\n")
	}
	for _, name := range failing {
		cause := causes[name]
		if cause == "" {
			cause = "no cause known yet: " + firstLine(r.byName[name].message)
		}
		fmt.Fprintf(&b, "- %s\n  <br>%s\n", literal(name), literal(cause))
	}
	b.WriteString("\n## Not run\n\nBenchmarks are left out. Tests that skipped themselves, by what they say:\n\n")
	var why []string
	for w := range skipped {
		why = append(why, w)
	}
	slices.Sort(why)
	for _, w := range why {
		fmt.Fprintf(&b, "- %d of %s\n", skipped[w], literal(w))
	}
	if len(why) == 0 {
		b.WriteString("None.\n")
	}
	return b.String()
}

// runs says which commit was run when, newest first.
func runs(r results) string {
	type key struct {
		at     time.Time
		commit string
	}
	counts := map[key]int{}
	var keys []key
	for _, t := range r.byName {
		k := key{t.at, t.commit}
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

// known are the suite's parts: a test's name begins with one, behind "[k8s.io] ".
var known = []string{"AppArmor", "Container Mount Propagation", "Container Mount Readonly", "Container OOM", "Container", "Idempotence", "Image Identifier Consistency",
	"Image Consistency", "Image Manager", "Image Volume", "Multiple Containers", "Networking", "NRI", "PodSandbox", "Runtime info", "SELinux", "Security Context", "Streaming"}

func part(name string) string {
	name = strings.TrimPrefix(name, "[k8s.io] ")
	for _, k := range known {
		if rest, ok := strings.CutPrefix(name, k); ok && (rest == "" || rest[0] == ' ') {
			return k
		}
	}
	first, _, _ := strings.Cut(name, " ")
	return first
}

// literal keeps a name or message from being read as Markdown or HTML.
func literal(s string) string {
	return strings.NewReplacer("\\", "\\\\", "*", "\\*", "_", "\\_", "<", "&lt;", "[", "\\[", "]", "\\]", "`", "\\`").Replace(s)
}
