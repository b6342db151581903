package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// dryRun has a parallel, a serial, a slow and a skipped test, as e2e.test reports them.
const dryRun = `[{"SpecReports":[
{"LeafNodeType":"BeforeSuite","State":"passed"},
{"LeafNodeType":"It","State":"passed","ContainerHierarchyTexts":["[sig-node] Pods"],"ContainerHierarchyLabels":[["sig-node"]],"LeafNodeText":"should run [Conformance]","LeafNodeLabels":["Conformance"]},
{"LeafNodeType":"It","State":"passed","ContainerHierarchyTexts":["[sig-apps] Daemon set [Serial]"],"ContainerHierarchyLabels":[["sig-apps","Serial"]],"LeafNodeText":"should roll back [Conformance]","LeafNodeLabels":["Conformance"]},
{"LeafNodeType":"It","State":"passed","ContainerHierarchyTexts":["[sig-apps] CronJob"],"ContainerHierarchyLabels":[["sig-apps"]],"LeafNodeText":"should wait [Conformance] [Slow]","LeafNodeLabels":["Slow","Conformance"]},
{"LeafNodeType":"It","State":"passed","ContainerHierarchyTexts":["[sig-api-machinery] Namespaces"],"ContainerHierarchyLabels":[["sig-api-machinery"]],"LeafNodeText":"should go [Conformance]","LeafNodeLabels":["Disruptive","Conformance"]},
{"LeafNodeType":"It","State":"skipped","ContainerHierarchyTexts":["[sig-node] Pods"],"ContainerHierarchyLabels":[["sig-node"]],"LeafNodeText":"should not be listed","LeafNodeLabels":[]}]}]`

func listed(t *testing.T) []spec {
	t.Helper()
	all, err := readDryRun([]byte(dryRun))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestReadDryRun(t *testing.T) {
	want := []spec{
		{name: "[sig-api-machinery] Namespaces should go [Conformance]", sig: "sig-api-machinery", alone: true},
		{name: "[sig-apps] CronJob should wait [Conformance] [Slow]", sig: "sig-apps", slow: true},
		{name: "[sig-apps] Daemon set [Serial] should roll back [Conformance]", sig: "sig-apps", alone: true},
		{name: "[sig-node] Pods should run [Conformance]", sig: "sig-node"},
	}
	if got := listed(t); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestReadDryRunRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":      "{",
		"no tests":     `[{"SpecReports":[{"LeafNodeType":"It","State":"skipped"}]}]`,
		"without SIGs": `[{"SpecReports":[{"LeafNodeType":"It","State":"passed","LeafNodeText":"should run"}]}]`,
	} {
		if all, err := readDryRun([]byte(text)); err == nil {
			t.Errorf("%s: read as %v", name, all)
		}
	}
}

func TestChoice(t *testing.T) {
	for name, test := range map[string]struct {
		choice choice
		want   []string // SIGs of what is chosen
	}{
		"all":                        {choice{}, []string{"sig-api-machinery", "sig-apps", "sig-apps", "sig-node"}},
		"SIG":                        {choice{sig: "apps"}, []string{"sig-apps", "sig-apps"}},
		"SIG in full":                {choice{sig: "sig-node"}, []string{"sig-node"}},
		"focus":                      {choice{focus: "should (run|wait)"}, []string{"sig-apps", "sig-node"}},
		"focus and SIG":              {choice{focus: "Serial", sig: "apps"}, []string{"sig-apps"}},
		"list, in the suite's order": {choice{names: []string{"[sig-node] Pods should run [Conformance]", "[sig-apps] CronJob should wait [Conformance] [Slow]"}}, []string{"sig-apps", "sig-node"}},
	} {
		t.Run(name, func(t *testing.T) {
			chosen, err := test.choice.of(listed(t))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range chosen {
				got = append(got, s.sig)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestChoiceOfNothingIsAnError(t *testing.T) {
	for name, test := range map[string]struct {
		choice choice
		want   string
	}{
		"unknown SIG":     {choice{sig: "nodes"}, "SIG=nodes: no Conformance test is of it; there are api-machinery, apps, node"},
		"no match":        {choice{focus: "Pods", sig: "apps"}, "none of the 4 Conformance tests matches"},
		"no expression":   {choice{focus: "("}, "FOCUS=("},
		"unknown name":    {choice{names: []string{"[sig-node] Gone"}}, "is no Conformance test"},
		"not Conformance": {choice{names: []string{"[sig-node] Pods should not be listed"}}, "is no Conformance test"},
	} {
		if chosen, err := test.choice.of(listed(t)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: chose %v with error %v, want %q", name, chosen, err, test.want)
		}
	}
}

func TestReadNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list.txt")
	if err := os.WriteFile(path, []byte("# why\n\n[sig-a] one \n[sig-b] two\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := readNames(path); err != nil || !slices.Equal(got, []string{"[sig-a] one", "[sig-b] two"}) {
		t.Errorf("got %q, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("# nothing\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readNames(path); err == nil {
		t.Error("an empty list is no error")
	}
}

// The lists of the tree are read by nothing but a run that needs root.
func TestListsOfTheTree(t *testing.T) {
	seen := map[string]string{}
	for _, path := range []string{"../first-light.txt", "../ci.txt"} {
		names, err := readNames(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if _, err := sigOf(n); err != nil || !strings.Contains(n, "[Conformance]") {
				t.Errorf("%s: %q is no name of a Conformance test", path, n)
			}
			if seen[n] != "" {
				t.Errorf("%s: %q stands in %s already", path, n, seen[n])
			}
			seen[n] = path
		}
	}
}
