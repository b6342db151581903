package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// outcome of one test in one run.
type outcome struct {
	status  string // passed, failed or notRun
	seconds float64
	message string // why it failed or did not run
}

const (
	passed = "passed"
	failed = "failed"
	notRun = "not run"
)

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Status  string        `xml:"status,attr"`
	Seconds float64       `xml:"time,attr"`
	Failure *junitMessage `xml:"failure"`
	Error   *junitMessage `xml:"error"`
	Skipped *junitMessage `xml:"skipped"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// readRun returns the outcome of each test that ran by the reports in dir. Ginkgo puts
// "[It] " before a test's name. A status other than passed or skipped is a failure,
// whatever the report calls it (failed, panicked, timedout, interrupted, aborted).
func readRun(dir string) (map[string]outcome, error) {
	files, err := filepath.Glob(filepath.Join(dir, "junit*.xml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the suite wrote no JUnit report to %s", dir)
	}
	out := map[string]outcome{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var report struct {
			Cases []junitCase `xml:"testsuite>testcase"`
		}
		if err := xml.Unmarshal(text, &report); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		for _, c := range report.Cases {
			name, isTest := strings.CutPrefix(c.Name, "[It] ")
			if !isTest || c.Status == "skipped" && c.Seconds == 0 {
				continue
			}
			out[name] = c.outcome()
		}
	}
	return out, nil
}

func (c junitCase) outcome() outcome {
	o := outcome{status: failed, seconds: c.Seconds}
	switch {
	case c.Failure != nil:
		o.message = c.Failure.best()
	case c.Error != nil:
		o.message = c.Error.best()
	case c.Status == passed:
		o.status = passed
	case c.Status == "skipped":
		o.message = "the test skipped itself: " + c.Skipped.best()
	}
	if o.status == failed && o.message == "" {
		o.message = "the suite reports it as " + c.Status + " without a message"
	}
	return o
}

func (m *junitMessage) best() string {
	if m == nil {
		return ""
	}
	if s := strings.TrimSpace(m.Message); s != "" {
		return s
	}
	return strings.TrimSpace(m.Text)
}
