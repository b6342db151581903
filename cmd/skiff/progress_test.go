package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProgressLine(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := newProgressLine(f)
	p.set("half")
	p.clear()
	if st, err := f.Stat(); err != nil || st.Size() != 0 {
		t.Errorf("a file got %d bytes of progress (%v)", st.Size(), err)
	}
	var b strings.Builder
	p = &progressLine{w: &b}
	p.clear()
	p.set("half")
	p.set("all")
	p.clear()
	if got := b.String(); got != "\r\x1b[Khalf\r\x1b[Kall\r\x1b[K" {
		t.Errorf("%q", got)
	}
}
