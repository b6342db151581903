// Package outcome keeps what became of the tests of upstream's suites: the newest outcome of each,
// with the run that it is of, and the pages that show them.
//
// Owns: JUnit as ginkgo writes it and as the tree keeps it, the files of causes, the parts that the
// pages have in common. Must not: run anything.
package outcome

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Statuses of a test.
const (
	Passed = "passed"
	Failed = "failed"
	NotRun = "not run"
)

// Outcome of one test in one run.
type Outcome struct {
	Status  string // Passed, Failed or NotRun
	Seconds float64
	Message string // why it failed or did not run
}

// Result is the newest outcome of one test, and the run that it is of.
type Result struct {
	Name, Group string // Group is a SIG or a part of the suite
	Outcome
	Commit string
	At     time.Time
}

// Results hold the tests of one version of a suite by their names.
type Results struct {
	Suite  string // the suite's version
	ByName map[string]Result
}

func (r Results) Sorted() []Result {
	out := make([]Result, 0, len(r.ByName))
	for _, t := range r.ByName {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Result) int { return strings.Compare(a.Name, b.Name) })
	return out
}

type mergedSuites struct {
	XMLName xml.Name      `xml:"testsuites"`
	Suite   string        `xml:"version,attr"`
	Suites  []mergedSuite `xml:"testsuite"`
}

type mergedSuite struct {
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Cases    []mergedCase `xml:"testcase"`
}

// mergedCase adds to JUnit's attributes the run that a test's outcome is of.
type mergedCase struct {
	Name      string   `xml:"name,attr"`
	Classname string   `xml:"classname,attr"`
	Seconds   string   `xml:"time,attr"`
	Commit    string   `xml:"commit,attr,omitempty"`
	Timestamp string   `xml:"timestamp,attr,omitempty"`
	Failure   *message `xml:"failure"`
	Skipped   *message `xml:"skipped"`
}

// longest bounds what is kept of a failure: enough to see what it was.
const longest = 1500

// Write keeps the results as JUnit, one suite for each group, without any test's output.
func (r Results) Write(path string) error {
	doc := mergedSuites{Suite: r.Suite}
	for _, t := range r.Sorted() {
		if n := len(doc.Suites); n == 0 || doc.Suites[n-1].Name != t.Group {
			doc.Suites = append(doc.Suites, mergedSuite{Name: t.Group})
		}
		s := &doc.Suites[len(doc.Suites)-1]
		c := mergedCase{Name: t.Name, Classname: t.Group, Seconds: fmt.Sprintf("%.1f", t.Seconds), Commit: t.Commit}
		if !t.At.IsZero() {
			c.Timestamp = t.At.UTC().Format(time.RFC3339)
		}
		s.Tests++
		switch t.Status {
		case Failed:
			s.Failures++
			c.Failure = &message{Message: FirstLine(t.Message), Text: cut(t.Message)}
		case NotRun:
			s.Skipped++
			c.Skipped = &message{Message: cut(t.Message)}
		}
		s.Cases = append(s.Cases, c)
	}
	var buf bytes.Buffer
	buf.WriteString(xml.Header)
	enc := xml.NewEncoder(&buf)
	enc.Indent("", " ")
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	buf.WriteByte('\n')
	if err := os.WriteFile(path+".new", buf.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return os.Rename(path+".new", path)
}

// Read reads what Write wrote; a file that is not there yet, or none, holds no results.
func Read(path string) (Results, error) {
	r := Results{ByName: map[string]Result{}}
	if path == "" {
		return r, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("read results: %w", err)
	}
	var doc mergedSuites
	if err := xml.Unmarshal(text, &doc); err != nil {
		return r, fmt.Errorf("read results %s: %w", path, err)
	}
	r.Suite = doc.Suite
	for _, s := range doc.Suites {
		for _, c := range s.Cases {
			t := Result{Name: c.Name, Group: s.Name, Commit: c.Commit, Outcome: Outcome{Status: Passed}}
			switch {
			case c.Failure != nil:
				t.Status, t.Message = Failed, c.Failure.Text
			case c.Skipped != nil:
				t.Status, t.Message = NotRun, c.Skipped.Message
			}
			if _, err := fmt.Sscanf(c.Seconds, "%g", &t.Seconds); err != nil {
				return r, fmt.Errorf("read results %s: test %s: time %q: %w", path, c.Name, c.Seconds, err)
			}
			if c.Timestamp != "" {
				if t.At, err = time.Parse(time.RFC3339, c.Timestamp); err != nil {
					return r, fmt.Errorf("read results %s: test %s: %w", path, c.Name, err)
				}
			}
			r.ByName[c.Name] = t
		}
	}
	return r, nil
}

// FirstLine is the first line that says something.
func FirstLine(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "[FAILED]")); line != "" {
			return line
		}
	}
	return ""
}

func cut(text string) string {
	if len(text) <= longest {
		return text
	}
	end := longest
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + " …"
}
