package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

// script is a program of the given shell text.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// reports is shell text that writes a JUnit report of one test to the phase's folder.
func reports(name, status string) string {
	return `cat > junit_01.xml <<END
<testsuites><testsuite><testcase name="[It] ` + name + `" status="` + status + `" time="1"></testcase></testsuite></testsuites>
END
`
}

func phaseWith(t *testing.T, ctx context.Context, ginkgo string) (map[string]outcome.Outcome, error) {
	t.Helper()
	show := &progress{out: &strings.Builder{}, total: 1, now: time.Now}
	return runPhase(ctx, tools{ginkgo: ginkgo}, phase{"parallel", 3, suiteOf(one)}, 2, "kubeconfig", t.TempDir(), show, time.Minute)
}

func TestRunPhase(t *testing.T) {
	for name, test := range map[string]struct {
		ginkgo string
		status string // of the test; "" where it did not run
		err    string // part of the error; "" where there is none
	}{
		"passes":                     {reports(one, "passed"), outcome.Passed, ""},
		"fails":                      {reports(one, "failed") + "exit 1\n", outcome.Failed, ""},
		"does not run":               {reports(two, "passed") + "exit 1\n", "", ""},
		"passes, suite fails":        {reports(one, "passed") + "exit 197\n", outcome.Passed, "did not end well"},
		"no report":                  {"echo boom; exit 2\n", "", "no JUnit report"},
		"report that cannot be read": {"echo '<testsuites>' > junit_01.xml\n", "", "junit_01.xml"},
	} {
		t.Run(name, func(t *testing.T) {
			ran, err := phaseWith(t, t.Context(), script(t, test.ginkgo))
			if got := ran[one].Status; got != test.status {
				t.Errorf("the test is %q, want %q", got, test.status)
			}
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

func TestRunPhaseWithoutGinkgo(t *testing.T) {
	if _, err := phaseWith(t, t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a ginkgo that is not there is no error")
	}
}

// An interrupt reaches the suite's processes, and what they report until then counts.
func TestRunPhaseInterrupted(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	ginkgo := script(t, `trap '`+strings.ReplaceAll(reports(one, "passed"), "'", `'\''`)+`exit 1' INT
touch `+started+`
while true; do sleep 0.05; done
`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(started); err == nil {
				cancel()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	ran, err := phaseWith(t, ctx, ginkgo)
	if ran[one].Status != outcome.Passed || err == nil {
		t.Errorf("ran %v, error %v", ran, err)
	}
}

func TestRunPhaseOfTooManyNames(t *testing.T) {
	var many []spec
	for range longestArgument / len(one) {
		many = append(many, suiteOf(one)...)
	}
	_, err := runPhase(t.Context(), tools{}, phase{"parallel", 1, many}, 2, "", t.TempDir(), nil, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "the kernel takes") {
		t.Errorf("error %v", err)
	}
}

// A cluster that does not come up is one error with what skiff said, and is taken away.
func TestStartCluster(t *testing.T) {
	dir := t.TempDir()
	registry := script(t, "echo registry.k8s.io/pause:3.10.2; while true; do sleep 0.05; done\n")
	skiff := script(t, `echo "$1" >> `+filepath.Join(dir, "calls")+`
case "$1" in up) echo "skiff: port 6443 is taken" >&2; exit 1;; esac
`)
	var log strings.Builder
	cluster, err := startCluster(t.Context(), tools{skiff: skiff, registry: registry}, filepath.Join(dir, "c"), 2, registries, &log)
	if err == nil || !strings.Contains(err.Error(), "port 6443 is taken") {
		t.Errorf("error %v", err)
	}
	if err := cluster.down(dir); err != nil {
		t.Errorf("down: %v", err)
	}
	if calls, _ := os.ReadFile(filepath.Join(dir, "calls")); string(calls) != "up\ndown\n" {
		t.Errorf("skiff was called for %q", calls)
	}
}

func TestRegistryThatEnds(t *testing.T) {
	cluster, err := startCluster(t.Context(), tools{skiff: "/bin/true", registry: script(t, "echo 'registry: port 80 is taken' >&2; exit 1\n")}, t.TempDir(), 2, registries, &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), "port 80 is taken") {
		t.Errorf("error %v", err)
	}
	if cluster.registry != nil {
		t.Error("the registry that ended would be ended again")
	}
}
