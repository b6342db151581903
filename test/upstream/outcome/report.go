package outcome

import (
	"encoding/xml"
	"fmt"
	"os"
	"strings"
)

type reportCase struct {
	Name    string   `xml:"name,attr"`
	Status  string   `xml:"status,attr"`
	Seconds float64  `xml:"time,attr"`
	Failure *message `xml:"failure"`
	Error   *message `xml:"error"`
	Skipped *message `xml:"skipped"`
}

type message struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// ReadReports returns the outcome of each test that ran by ginkgo's JUnit reports. Ginkgo puts
// "[It] " before a test's name, and lists what was not chosen as skipped in no time; a test that
// skipped itself did not run. A status other than passed or skipped is a failure, whatever
// the report calls it (failed, panicked, timedout, interrupted, aborted).
func ReadReports(paths ...string) (map[string]Outcome, error) {
	out := map[string]Outcome{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the suite's report: %w", err)
		}
		var report struct {
			Cases []reportCase `xml:"testsuite>testcase"`
		}
		if err := xml.Unmarshal(text, &report); err != nil {
			return nil, fmt.Errorf("read the suite's report %s: %w", path, err)
		}
		for _, c := range report.Cases {
			name, isTest := strings.CutPrefix(c.Name, "[It] ")
			if isTest && (c.Status != "skipped" || c.Seconds != 0) {
				out[name] = c.outcome()
			}
		}
	}
	return out, nil
}

func (c reportCase) outcome() Outcome {
	o := Outcome{Status: Failed, Seconds: c.Seconds}
	switch {
	case c.Failure != nil:
		o.Message = c.Failure.best()
	case c.Error != nil:
		o.Message = c.Error.best()
	case c.Status == Passed:
		o.Status = Passed
	case c.Status == "skipped":
		o.Status, o.Message = NotRun, c.Skipped.best()
	}
	if o.Status == Failed && o.Message == "" {
		o.Message = "the suite reports it as " + c.Status + " without a message"
	}
	return o
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
