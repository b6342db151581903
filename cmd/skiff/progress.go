package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// progressLine is a line of a terminal that is written again and again. Elsewhere nothing is
// written: logs and pipes want results alone.
type progressLine struct {
	w     io.Writer // nil: no terminal
	shown bool
}

func newProgressLine(f *os.File) *progressLine {
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return &progressLine{}
	}
	return &progressLine{w: f}
}

func (p *progressLine) set(text string) {
	if p.w != nil {
		p.shown = true
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
	}
}

// clear leaves the line empty for what comes next.
func (p *progressLine) clear() {
	if p.shown {
		p.shown = false
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
