package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// spec is one Conformance test, as the suite itself describes it.
type spec struct {
	name string // container texts and the test's own, as JUnit has it
	sig  string
	// alone: it wants the cluster for itself ([Serial], [Disruptive]).
	alone bool
	slow  bool
}

// catalogue asks the suite for all its Conformance tests by a dry run.
func catalogue(e2e string) ([]spec, error) {
	dir, err := os.MkdirTemp("", "conformance-catalogue-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	report := filepath.Join(dir, "dry-run.json")
	cmd := exec.Command(e2e, "--ginkgo.dry-run", "--ginkgo.no-color", "--ginkgo.silence-skips", "--ginkgo.label-filter=Conformance", "--ginkgo.json-report="+report)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("list the suite's tests (%s): %w\n%s", filepath.Base(e2e), err, lastLines(string(out), 5))
	}
	text, err := os.ReadFile(report)
	if err != nil {
		return nil, fmt.Errorf("read the suite's list of tests: %w", err)
	}
	return readDryRun(text)
}

func readDryRun(text []byte) ([]spec, error) {
	var suites []struct {
		SpecReports []struct {
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			ContainerHierarchyTexts []string
			LeafNodeLabels          []string
			// One list of labels for each container.
			ContainerHierarchyLabels [][]string
		}
	}
	if err := json.Unmarshal(text, &suites); err != nil {
		return nil, fmt.Errorf("read the suite's list of tests: %w", err)
	}
	var all []spec
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			if r.LeafNodeType != "It" || r.State == "skipped" {
				continue
			}
			labels := slices.Concat(append(r.ContainerHierarchyLabels, r.LeafNodeLabels)...)
			s := spec{
				name:  strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " "),
				alone: slices.Contains(labels, "Serial") || slices.Contains(labels, "Disruptive"),
				slow:  slices.Contains(labels, "Slow"),
			}
			var err error
			if s.sig, err = sigOf(s.name); err != nil {
				return nil, err
			}
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the suite lists no Conformance test")
	}
	slices.SortFunc(all, func(a, b spec) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

var sigPrefix = regexp.MustCompile(`^\[(sig-[a-z-]+)\] `)

func sigOf(name string) (string, error) {
	m := sigPrefix.FindStringSubmatch(name)
	if m == nil {
		return "", fmt.Errorf("test %q does not start with its SIG", name)
	}
	return m[1], nil
}

// choice says which tests a run is for; all that is set must hold.
type choice struct {
	sig   string // with or without sig-
	focus string // a regular expression
	names []string
}

// of returns the chosen tests in the catalogue's order.
func (c choice) of(all []spec) ([]spec, error) {
	var sigs []string
	for _, s := range all {
		if !slices.Contains(sigs, s.sig) {
			sigs = append(sigs, s.sig)
		}
	}
	slices.Sort(sigs)
	sig := c.sig
	if sig != "" && !strings.HasPrefix(sig, "sig-") {
		sig = "sig-" + sig
	}
	if sig != "" && !slices.Contains(sigs, sig) {
		return nil, fmt.Errorf("SIG=%s: no Conformance test is of it; there are %s", c.sig, strings.ReplaceAll(strings.Join(sigs, ", "), "sig-", ""))
	}
	focus, err := regexp.Compile(c.focus)
	if err != nil {
		return nil, fmt.Errorf("FOCUS=%s: %w", c.focus, err)
	}
	for _, n := range c.names {
		if !slices.ContainsFunc(all, func(s spec) bool { return s.name == n }) {
			return nil, fmt.Errorf("the list names %q, which is no Conformance test of this suite", n)
		}
	}
	var chosen []spec
	for _, s := range all {
		if (sig == "" || s.sig == sig) && focus.MatchString(s.name) && (c.names == nil || slices.Contains(c.names, s.name)) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("FOCUS=%s SIG=%s: none of the %d Conformance tests matches", c.focus, c.sig, len(all))
	}
	return chosen, nil
}

// readNames reads test names, one a line; # starts a comment.
func readNames(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read list of tests: %w", err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("list of tests %s names none", path)
	}
	return names, nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
