package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// outcome of one test in one run.
type outcome struct {
	status  string
	seconds float64
	message string // why it failed or did not run
}

const (
	passed = "passed"
	failed = "failed"
	notRun = "not run"
)

// result is the newest outcome of a test, and the run that it is of.
type result struct {
	outcome
	commit string
	at     time.Time
}

// results hold every test of one version of the suite.
type results struct {
	suite  string
	byName map[string]result
}

func (r results) names() []string { return slices.Sorted(maps.Keys(r.byName)) }

// merge takes a run's outcomes over. What it did not choose stays; what is of another version
// of the suite goes.
func (r results) merge(suite string, ran map[string]outcome, commit string, at time.Time) results {
	out := results{suite: suite, byName: map[string]result{}}
	if r.suite == suite {
		maps.Copy(out.byName, r.byName)
	}
	for name, o := range ran {
		out.byName[name] = result{o, commit, at.UTC().Truncate(time.Second)}
	}
	return out
}

// stale are the causes of tests that do not fail.
func (r results) stale(causes map[string]string) []string {
	var out []string
	for name := range causes {
		if r.byName[name].status != failed {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

type junitCase struct {
	Name      string   `xml:"name,attr"`
	Status    string   `xml:"status,attr"`
	Seconds   float64  `xml:"time,attr"`
	Commit    string   `xml:"commit,attr,omitempty"`
	Timestamp string   `xml:"timestamp,attr,omitempty"`
	Failure   *message `xml:"failure"`
	Error     *message `xml:"error"`
	Skipped   *message `xml:"skipped"`
	Output    string   `xml:"system-out,omitempty"`
}

type message struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

type junit struct {
	XMLName xml.Name    `xml:"testsuites"`
	Suite   string      `xml:"version,attr"`
	Cases   []junitCase `xml:"testsuite>testcase"`
}

// suiteVersion is the module's, see go.mod: a test compares them.
const suiteVersion = "v1.37.0"

// readReport reads what ginkgo wrote. Tests that were not chosen, and benchmarks, are left out;
// one that skipped itself did not run, and says why.
func readReport(path string) (version string, ran map[string]outcome, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", nil, fmt.Errorf("read the suite's report: %w", err)
	}
	var doc junit
	if err := xml.Unmarshal(text, &doc); err != nil {
		return "", nil, fmt.Errorf("read the suite's report: %w", err)
	}
	ran = map[string]outcome{}
	for _, c := range doc.Cases {
		name, isTest := strings.CutPrefix(c.Name, "[It] ")
		if !isTest || c.Status == "skipped" && c.Seconds == 0 {
			continue
		}
		o := outcome{status: failed, seconds: c.Seconds}
		switch {
		case c.Failure != nil:
			o.message = c.Failure.best()
		case c.Error != nil:
			o.message = c.Error.best()
		case c.Status == passed:
			o.status = passed
		case c.Status == "skipped":
			o.status, o.message = notRun, strings.TrimPrefix(c.Skipped.best(), "skipped - ")
		default:
			o.message = "the suite reports it as " + c.Status
		}
		ran[name] = o
	}
	return suiteVersion, ran, nil
}

func (m *message) best() string {
	if m == nil {
		return ""
	}
	if s := strings.TrimSpace(m.Message); s != "" {
		return s
	}
	return strings.TrimSpace(m.Text)
}

// write keeps the results as JUnit, without any test's output.
func (r results) write(path string) error {
	doc := junit{Suite: r.suite}
	for _, name := range r.names() {
		t := r.byName[name]
		c := junitCase{Name: name, Status: t.status, Seconds: float64(int(t.seconds*10+0.5)) / 10, Commit: t.commit, Timestamp: t.at.Format(time.RFC3339)}
		switch m := cut(t.message); t.status {
		case failed:
			c.Failure = &message{Message: firstLine(m), Text: m}
		case notRun:
			c.Skipped = &message{Message: m}
		}
		doc.Cases = append(doc.Cases, c)
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

// readResults reads what write wrote; a file that is not there yet, or no file, holds none.
func readResults(path string) (results, error) {
	r := results{byName: map[string]result{}}
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
	var doc junit
	if err := xml.Unmarshal(text, &doc); err != nil {
		return r, fmt.Errorf("read results %s: %w", path, err)
	}
	r.suite = doc.Suite
	for _, c := range doc.Cases {
		t := result{commit: c.Commit, outcome: outcome{status: c.Status, seconds: c.Seconds}}
		switch {
		case c.Failure != nil:
			t.message = c.Failure.Text
		case c.Skipped != nil:
			t.message = c.Skipped.Message
		}
		if t.at, err = time.Parse(time.RFC3339, c.Timestamp); err != nil {
			return r, fmt.Errorf("read results %s: test %s: %w", path, c.Name, err)
		}
		r.byName[c.Name] = t
	}
	return r, nil
}

var unsteady = regexp.MustCompile(`0x[0-9a-f]+`)

// cut keeps of a message enough to see what it was, and nothing that differs between runs alone.
func cut(m string) string {
	m = unsteady.ReplaceAllString(m, "0x…")
	if r := []rune(m); len(r) > 1500 {
		return string(r[:1500]) + " …"
	}
	return m
}

// firstLine is the first line that says something.
func firstLine(m string) string {
	for line := range strings.Lines(m) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}
