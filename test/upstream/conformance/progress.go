package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// progress shows how far a run is: how many tests ended, each failure as it occurs, and
// the time. It is for the eye only: results come from JUnit.
type progress struct {
	out   io.Writer
	total int
	start time.Time
	now   func() time.Time
	every time.Duration

	mu           sync.Mutex
	done, failed int
	shown        time.Time
}

func (p *progress) ended() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	if p.done == p.total || p.now().Sub(p.shown) >= p.every {
		p.shown = p.now()
		fmt.Fprintln(p.out, p.line())
	}
}

// failure is told of a test that has ended already.
func (p *progress) failure(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed++
	fmt.Fprintf(p.out, "%s  FAILED %s\n", p.line(), name)
}

func (p *progress) line() string {
	took := p.now().Sub(p.start).Round(time.Second)
	s := fmt.Sprintf("%d:%02d  %d of %d", int(took.Minutes()), int(took.Seconds())%60, p.done, p.total)
	if p.failed > 0 {
		s += fmt.Sprintf(", %d failed", p.failed)
	}
	return s
}

// watcher reads ginkgo's output as it is written. A test that passes is a dot; one that
// does not is a line "• [FAILED] [1.2 seconds]" with its name in the next. (The suite's own
// --progress-report-url tells of its start and end alone.)
type watcher struct {
	progress *progress

	rest     []byte // of a rune that is not whole yet
	line     []rune
	dots     bool // the line has been dots alone so far
	expected bool // a failure's name is in this line
}

var (
	notPassed = regexp.MustCompile(`^• \[(FAILED|PANICKED|TIMEDOUT|INTERRUPTED|ABORTED)\b`)
	itsLabels = regexp.MustCompile(` \[[^\[\]]*\]$`)
)

func (w *watcher) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for utf8.FullRune(w.rest) {
		r, size := utf8.DecodeRune(w.rest)
		w.rest = w.rest[size:]
		w.take(r)
	}
	return len(b), nil
}

func (w *watcher) take(r rune) {
	if r == '\n' {
		w.endLine(string(w.line))
		w.line = w.line[:0]
		return
	}
	if len(w.line) == 0 {
		w.dots = true
	}
	w.dots = w.dots && r == '•'
	w.line = append(w.line, r)
	if w.dots {
		w.progress.ended()
	}
}

func (w *watcher) endLine(line string) {
	switch {
	case w.expected:
		w.expected = false
		// Ginkgo marks the test itself by [It] and puts all labels behind the name.
		w.progress.failure(itsLabels.ReplaceAllString(strings.Replace(line, " [It]", "", 1), ""))
	case notPassed.MatchString(line):
		w.expected = true
	}
}
