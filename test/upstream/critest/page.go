package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

// page is docs/critest.md, all of it computed.
func page(r outcome.Results, causes map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# The container runtime by critest

critest %s (sigs.k8s.io/cri-tools) against the built-in runtime alone (`+"`skiff containers`"+`), several tests at a time.
This page is computed from [its results](../test/upstream/results/critest.xml) by `+"`make critest`"+`; `+"`make critest FOCUS=regex`"+`
updates only what it ran. The suite is as it is but for one constant: of the image that a test pulls by its digest
there is a stand-in, as of all others ([test/upstream/images](../test/upstream/images/critest.go)), and its digest stands in its place.
Streams are tested twice, by SPDY and by WebSocket.

`, r.Suite)
	b.WriteString(r.Table("part") + r.Runs() + "\n## Failing\n\n" + r.Failing(causes))
	b.WriteString("\n## Not run\n\nBenchmarks are left out. Tests that skipped themselves, by what they say:\n\n")
	skipped := map[string]int{}
	var why []string
	for _, t := range r.Sorted() {
		if t.Status != outcome.NotRun {
			continue
		}
		w := t.Group + ": " + t.Message
		if skipped[w] == 0 {
			why = append(why, w)
		}
		skipped[w]++
	}
	slices.Sort(why)
	for _, w := range why {
		fmt.Fprintf(&b, "- %d of %s\n", skipped[w], outcome.Literal(w))
	}
	if len(why) == 0 {
		b.WriteString("None.\n")
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
