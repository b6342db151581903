package main

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

// result is the newest outcome of one test, and the run that it is of.
type result struct {
	name, sig string
	outcome
	commit string
	at     time.Time
}

// results holds every Conformance test of one version of the suite by its name: those that
// no run has run yet are there as not run.
type results struct {
	suite  string // the suite's version
	byName map[string]result
}

func (r results) sorted() []result {
	out := make([]result, 0, len(r.byName))
	for _, t := range r.byName {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b result) int { return strings.Compare(a.name, b.name) })
	return out
}

// seconds is how long each test took when it last ran.
func (r results) seconds() map[string]float64 {
	out := map[string]float64{}
	for name, t := range r.byName {
		out[name] = t.seconds
	}
	return out
}

// merge takes a run's outcomes of the chosen tests over. What was not chosen stays as it
// was; what the suite no longer has goes. A chosen test without an outcome did not run.
func (r results) merge(suite string, all, chosen []spec, ran map[string]outcome, commit string, at time.Time) results {
	merged := results{suite: suite, byName: map[string]result{}}
	for _, s := range all {
		old, known := r.byName[s.name]
		if !known || r.suite != suite {
			old = result{name: s.name, outcome: outcome{status: notRun, message: "no run has chosen it yet"}}
		}
		old.sig = s.sig
		merged.byName[s.name] = old
	}
	for _, s := range chosen {
		o, did := ran[s.name]
		if !did {
			o = outcome{status: notRun, message: "chosen, but the run ended without it"}
		}
		merged.byName[s.name] = result{name: s.name, sig: s.sig, outcome: o, commit: commit, at: at}
	}
	return merged
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
	Name      string        `xml:"name,attr"`
	Classname string        `xml:"classname,attr"`
	Seconds   string        `xml:"time,attr"`
	Commit    string        `xml:"commit,attr,omitempty"`
	Timestamp string        `xml:"timestamp,attr,omitempty"`
	Failure   *junitMessage `xml:"failure"`
	Skipped   *junitMessage `xml:"skipped"`
}

// longestMessage bounds what is kept of a failure: enough to see what it was.
const longestMessage = 1500

// write keeps the results as JUnit, one suite for each SIG, without any test's output.
func (r results) write(path string) error {
	doc := mergedSuites{Suite: r.suite}
	for _, t := range r.sorted() {
		if n := len(doc.Suites); n == 0 || doc.Suites[n-1].Name != t.sig {
			doc.Suites = append(doc.Suites, mergedSuite{Name: t.sig})
		}
		s := &doc.Suites[len(doc.Suites)-1]
		c := mergedCase{Name: t.name, Classname: t.sig, Seconds: fmt.Sprintf("%.1f", t.seconds), Commit: t.commit}
		if !t.at.IsZero() {
			c.Timestamp = t.at.UTC().Format(time.RFC3339)
		}
		s.Tests++
		switch t.status {
		case failed:
			s.Failures++
			c.Failure = &junitMessage{Message: firstLine(t.message), Text: cut(t.message)}
		case notRun:
			s.Skipped++
			c.Skipped = &junitMessage{Message: firstLine(t.message)}
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

// readResults reads what write wrote; a file that is not there yet holds no results.
func readResults(path string) (results, error) {
	r := results{byName: map[string]result{}}
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
	r.suite = doc.Suite
	for _, s := range doc.Suites {
		for _, c := range s.Cases {
			t := result{name: c.Name, sig: s.Name, commit: c.Commit, outcome: outcome{status: passed}}
			switch {
			case c.Failure != nil:
				t.status, t.message = failed, c.Failure.Text
			case c.Skipped != nil:
				t.status, t.message = notRun, c.Skipped.Message
			}
			if _, err := fmt.Sscanf(c.Seconds, "%g", &t.seconds); err != nil {
				return r, fmt.Errorf("read results %s: test %s: time %q: %w", path, c.Name, c.Seconds, err)
			}
			if c.Timestamp != "" {
				if t.at, err = time.Parse(time.RFC3339, c.Timestamp); err != nil {
					return r, fmt.Errorf("read results %s: test %s: %w", path, c.Name, err)
				}
			}
			r.byName[c.Name] = t
		}
	}
	return r, nil
}

// firstLine is the first line that says something.
func firstLine(message string) string {
	for line := range strings.Lines(message) {
		if line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "[FAILED]")); line != "" {
			return line
		}
	}
	return ""
}

func cut(message string) string {
	if len(message) <= longestMessage {
		return message
	}
	end := longestMessage
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + " …"
}
