package main

import (
	"bufio"
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// testResult is what came of one Conformance test.
type testResult struct {
	Name    string  `json:"name"`
	Status  string  `json:"status"` // passed, failed, not run
	Seconds float64 `json:"seconds,omitempty"`
	Reason  string  `json:"reason,omitempty"`
}

// suite runs the Conformance tests that a list names; a test that did not run is a result
// of its own, never a pass.
func (l *lab) suite(ctx context.Context, list string) ([]testResult, error) {
	names, err := readNames(list)
	if err != nil {
		return nil, err
	}
	out := filepath.Join(l.work, "e2e")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	var parallel, serial []string
	for _, n := range names {
		if strings.Contains(n, "[Serial]") || strings.Contains(n, "[Disruptive]") {
			serial = append(serial, n)
		} else {
			parallel = append(parallel, n)
		}
	}
	var runErr error
	for _, batch := range []struct {
		name  string
		procs int
		tests []string
	}{{"parallel", l.options.procs, parallel}, {"serial", 1, serial}} {
		if len(batch.tests) > 0 && ctx.Err() == nil {
			if err := l.ginkgo(ctx, filepath.Join(out, batch.name), batch.procs, batch.tests); err != nil {
				runErr = err
			}
		}
	}
	ran, err := readJUnit(out)
	if err != nil {
		return nil, err
	}
	var results []testResult
	failed := 0
	for _, n := range names {
		r, ok := ran[n]
		if !ok {
			r = testResult{Name: n, Status: "not run"}
		}
		if r.Status != "passed" {
			failed++
		}
		fmt.Printf("  %-7s %s (%.1f s) %.300s\n", r.Status, n, r.Seconds, r.Reason)
		results = append(results, r)
	}
	switch {
	case failed > 0:
		return results, fmt.Errorf("%d of %d Conformance tests did not pass", failed, len(names))
	case runErr != nil:
		return results, fmt.Errorf("every test passed but the suite did not end well: %w", runErr)
	}
	return results, nil
}

func (l *lab) ginkgo(ctx context.Context, out string, procs int, names []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	focus := make([]string, len(names))
	for i, n := range names {
		// Ginkgo matches behind the suite's own description; every name starts with its [sig-…].
		focus[i] = regexp.QuoteMeta(n) + "$"
	}
	args := []string{"-p", fmt.Sprintf("--procs=%d", procs), "--timeout=25m", "--no-color", "--focus=" + strings.Join(focus, "|"),
		filepath.Join(l.cache, "e2e.test"), "--",
		"--provider=skeleton", "--kubeconfig=" + l.adminKubeconfig(), "--kubectl-path=" + l.kubectl,
		"--allowed-not-ready-nodes=-1", fmt.Sprintf("--num-nodes=%d", max(1, len(l.nodes))), "--node-os-distro=debian",
		"--report-dir=" + out, "--report-complete-junit", "--disable-log-dump"}
	cmd := exec.CommandContext(ctx, filepath.Join(l.cache, "ginkgo"), args...)
	log, err := os.Create(filepath.Join(out, "e2e.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("end-to-end suite: %w (log: %s)", err, log.Name())
	}
	return nil
}

func readNames(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if line := strings.TrimSpace(sc.Text()); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	if len(names) < 10 && sc.Err() == nil {
		return nil, fmt.Errorf("%s names %d tests, a row has at least 10", path, len(names))
	}
	return names, sc.Err()
}

// readJUnit returns the tests that ran, by name: JUnit puts "[It] " before it.
func readJUnit(dir string) (map[string]testResult, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", "junit*.xml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the suite wrote no JUnit report: %s", tail(filepath.Join(dir, "parallel", "e2e.log")))
	}
	out := map[string]testResult{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var report struct {
			Cases []struct {
				Name    string  `xml:"name,attr"`
				Status  string  `xml:"status,attr"`
				Seconds float64 `xml:"time,attr"`
				Failure struct {
					Message string `xml:"message,attr"`
				} `xml:"failure"`
				Error struct {
					Message string `xml:"message,attr"`
				} `xml:"error"`
			} `xml:"testsuite>testcase"`
		}
		if err := xml.Unmarshal(text, &report); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		for _, c := range report.Cases {
			name, isTest := strings.CutPrefix(c.Name, "[It] ")
			if c.Status == "skipped" || !isTest {
				continue
			}
			r := testResult{Name: name, Status: c.Status, Seconds: c.Seconds, Reason: c.Failure.Message + c.Error.Message}
			if r.Status != "passed" {
				r.Status = "failed"
			}
			out[name] = r
		}
	}
	return out, nil
}
