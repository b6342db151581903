package main

import (
	"fmt"
	"regexp"
)

// stage is a set of cases that share a cluster, begun anew for each side and round.
type stage struct {
	name  string
	cases []benchCase
	// rounds is how often at most; 0: as the run says.
	rounds int
	run    func(*stageRun) error
}

// benchCase is one row of the page.
type benchCase struct {
	name string // stands in results, as --case matches it
	// spec is apibench's; empty where the stage measures by itself.
	spec string
	// setup: it is run, though not recorded, when a later case of the stage is wanted.
	setup bool
	// noProfile: there is no work to profile.
	noProfile bool
	title     string // of the row
	unit      string // what an operation is
}

// stages are the whole benchmark, with all sizes. No figure depends on chance: there is nothing random in the load.
func stages() []stage {
	return []stage{
		{name: "api", run: runAPI, cases: []benchCase{
			{name: "boot", title: "boot: exec to `/readyz`", noProfile: true},
			{name: "idle", spec: "sleep:d=20s", title: "idle", noProfile: true},
			{name: "create-16", spec: "create:n=5000:c=16", setup: true, title: "create pods, 16 at once", unit: "pod"},
			{name: "create-1", spec: "create:n=300:c=1:ns=bench-one", title: "… one by one", unit: "pod"},
			{name: "create-64", spec: "create:n=3000:c=64:ns=bench-many", title: "… 64 at once", unit: "pod"},
			{name: "get-1", spec: "get:n=1500:c=1", title: "get a pod, one by one", unit: "request"},
			{name: "get-16", spec: "get:n=10000:c=16", title: "… 16 at once", unit: "request"},
			{name: "get-64", spec: "get:n=10000:c=64", title: "… 64 at once", unit: "request"},
			{name: "get-json", spec: "get:n=10000:c=16:ct=json", title: "… 16 at once, JSON", unit: "request"},
			{name: "list-json", spec: "list:n=8:ct=json", title: "list 5,000 pods, JSON", unit: "list"},
			{name: "list-protobuf", spec: "list:n=16", title: "… protobuf", unit: "list"},
			{name: "list-paged", spec: "list:n=8:mode=page", title: "… protobuf, pages of 500", unit: "list"},
			{name: "patch-status", spec: "patch:n=3000:c=16", title: "patch a pod's status (strategic merge), 16 at once", unit: "patch"},
			{name: "update", spec: "update:n=2000:c=16", title: "create and update ConfigMaps, 16 at once", unit: "write"},
			{name: "apply-create", spec: "apply:n=1000:c=16", title: "server-side apply that creates, 16 at once", unit: "apply"},
			{name: "apply-change", spec: "apply:n=1000:c=16:mode=change", title: "… that changes", unit: "apply"},
			{name: "watch-100", spec: "watch:w=100:n=400", title: "watch, 100 watchers, one writer", unit: "event"},
			{name: "watch-1000", spec: "watch:w=1000:n=60", title: "… 1,000 watchers", unit: "event"},
			{name: "deletecollection", spec: "delcol", title: "deletecollection of 5,000 pods", unit: "pod"},
		}},
		{name: "scheduling", rounds: 2, run: runScheduling, cases: []benchCase{
			{name: "nodes-1000", spec: "nodes:n=1000:c=16", setup: true, title: "register 1,000 fake nodes", unit: "node", noProfile: true},
			{name: "bind-1000", spec: "bind:n=5000:c=16", setup: true, title: "create and bind 5,000 pods, 1,000 nodes", unit: "pod"},
			{name: "deploy", spec: "deploy", title: "Deployment of 3 created to all bound, 1,000 nodes", unit: "pod", noProfile: true},
			{name: "nodes-5000", spec: "nodes:n=4000:c=16:first=1000", setup: true, title: "register 4,000 more", unit: "node", noProfile: true},
			{name: "heartbeat-5000", spec: "heartbeat:n=5000:c=16", setup: true, title: "heartbeats of 5,000 nodes", unit: "renewal", noProfile: true},
			{name: "bind-5000", spec: "bind:n=5000:c=16", setup: true, title: "create and bind 5,000 pods, 5,000 nodes", unit: "pod"},
			{name: "memory-5000", spec: "sleep:d=15s", title: "5,000 nodes, 10,000 pods"},
		}},
		{name: "services", rounds: 1, run: runServices, cases: []benchCase{
			{name: "services-load", title: "10,000 Services with 3 endpoints each, from start of the proxy", unit: "Service"},
			{name: "services-change", title: "one endpoint of them changes", unit: "change"},
		}},
		{name: "pods", rounds: 2, run: runPods, cases: []benchCase{
			{name: "up", title: "empty directory to node Ready and DNS answering", noProfile: true},
			{name: "first-pod", title: "… to the first pod Running", noProfile: true},
			{name: "node-idle", title: "idle: all processes of the node and the control plane", noProfile: true},
			{name: "pod-start", title: "pod create to Running, 20 one by one", unit: "pod"},
			{name: "pods-50", title: "50 pods at once, until all run", unit: "pod"},
			{name: "pods-110", title: "110 pods run", unit: "pod", noProfile: true},
		}},
	}
}

// choose keeps of each stage what the expression names; stages without any are left out.
func choose(all []stage, expr string) ([]stage, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("--case: %w", err)
	}
	var some []stage
	for _, s := range all {
		wanted := chosen(s, re)
		if len(wanted) > 0 {
			some = append(some, s)
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("--case %q names no case", expr)
	}
	return some, nil
}

// chosen are the names of the cases of a stage that the expression matches.
func chosen(s stage, re *regexp.Regexp) map[string]bool {
	names := map[string]bool{}
	for _, c := range s.cases {
		if re.MatchString(c.name) {
			names[c.name] = true
		}
	}
	return names
}

// steps are what a stage has to run for the wanted cases: themselves and, before the last of
// them, what sets the cluster up.
func (s stage) steps(wanted map[string]bool) []benchCase {
	last := -1
	for i, c := range s.cases {
		if wanted[c.name] {
			last = i
		}
	}
	var out []benchCase
	for i, c := range s.cases {
		if wanted[c.name] || c.setup && i < last {
			out = append(out, c)
		}
	}
	return out
}
