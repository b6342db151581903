package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// ginkgoOutput is of three tests that pass and two that do not; a test's output has dots
// and headings of its own.
const ginkgoOutput = `Running Suite: Kubernetes e2e suite
Will run 5 of 3206 specs
Running in parallel across 2 processes
••
------------------------------
• [FAILED] [0.131 seconds]
[sig-architecture] Conformance Tests [It] should have [LinuxOnly] [Conformance] [sig-architecture, Conformance]
/mod/test/e2e/architecture/conformance.go:39

  Timeline >>
  • a list in its output • [FAILED]
  << Timeline
------------------------------
•
------------------------------
• [PANICKED] [2 seconds]
[sig-node] Pods [It] should run [Conformance] [sig-node, Conformance]
------------------------------

Ran 5 of 3206 Specs in 29.124 seconds
FAIL! -- 3 Passed | 2 Failed | 0 Pending | 3201 Skipped
`

func TestProgress(t *testing.T) {
	for name, reader := range map[string]io.Reader{
		"at once":      strings.NewReader(ginkgoOutput),
		"byte by byte": iotest.OneByteReader(strings.NewReader(ginkgoOutput)),
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			now := monday
			p := &progress{out: &out, total: 5, start: monday, every: 10 * time.Second, now: func() time.Time {
				now = now.Add(time.Second)
				return now
			}}
			// Without WriterTo, so that it is read as it comes.
			if _, err := io.Copy(&watcher{progress: p}, struct{ io.Reader }{reader}); err != nil {
				t.Fatal(err)
			}
			if p.done != 5 || p.failed != 2 {
				t.Errorf("%d done, %d failed; want 5 and 2", p.done, p.failed)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			var endings []string
			for _, l := range lines {
				_, ending, _ := strings.Cut(l, "  ")
				endings = append(endings, ending)
			}
			want := []string{
				"1 of 5",
				"3 of 5, 1 failed  FAILED [sig-architecture] Conformance Tests should have [LinuxOnly] [Conformance]",
				"5 of 5, 1 failed",
				"5 of 5, 2 failed  FAILED [sig-node] Pods should run [Conformance]",
			}
			if fmt.Sprint(endings) != fmt.Sprint(want) {
				t.Errorf("shown:\n%s\nwant endings:\n%s", out.String(), strings.Join(want, "\n"))
			}
		})
	}
}

func TestProgressShowsTheTime(t *testing.T) {
	p := &progress{total: 462, done: 12, start: monday, now: func() time.Time { return monday.Add(61*time.Minute + 5*time.Second) }}
	if got := p.line(); got != "61:05  12 of 462" {
		t.Errorf("shown as %q", got)
	}
}
