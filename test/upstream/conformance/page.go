package main

import (
	"fmt"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

// page is docs/conformance.md, all of it computed.
func page(r outcome.Results, causes map[string]string) string {
	head := fmt.Sprintf(`# Conformance

The Conformance tests of Kubernetes %s, unchanged, against a cluster of skiff with two nodes. This page is
computed from [their results](../test/upstream/results/conformance.xml) by `+"`make conformance`"+`; a partial run
(`+"`FOCUS=regex`, `SIG=name`"+`) updates only what it ran. A test that could not run is not a pass.

`, r.Suite)
	return head + r.Table("SIG") + r.Runs() + "\n## Failing\n\n" + r.Failing(causes)
}
