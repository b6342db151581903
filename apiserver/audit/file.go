package audit

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// file is a log that is put aside when it has grown, under the names that upstream's
// logs have: audit-2006-01-02T15-04-05.000.log beside audit.log, perhaps with .gz.
type file struct {
	path string // empty: standard output, which does not rotate
	c    LogConfig
	now  func() time.Time
	log  *slog.Logger

	mu       sync.Mutex
	out      *os.File
	size     int64
	tidying  sync.WaitGroup
	tidyLock sync.Mutex
}

const (
	// fileMode is that of new files: events tell who does what.
	fileMode = 0o600
	// asideTime is the time in names of files put aside, UTC.
	asideTime = "2006-01-02T15-04-05.000"
	megabyte  = 1 << 20
)

func openFile(path string, c LogConfig, clk clock.PassiveClock, log *slog.Logger) (*file, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f := &file{path: path, c: c, now: clk.Now, log: log}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *file) open() error {
	out, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	info, err := out.Stat()
	if err != nil {
		return errors.Join(err, out.Close())
	}
	f.out, f.size = out, info.Size()
	return nil
}

// Write writes whole events, in one call of the kernel, so that lines of concurrent
// requests do not mix.
func (f *file) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path != "" && f.out == nil { // the last rotation failed halfway
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	if limit := int64(f.c.MaxSize) * megabyte; f.path != "" && limit > 0 && f.size > 0 && f.size+int64(len(b)) > limit {
		if err := f.rotate(); err != nil {
			return 0, fmt.Errorf("rotate: %w", err)
		}
	}
	n, err := f.out.Write(b)
	f.size += int64(n)
	return n, err
}

// rotate puts the file aside and begins a new one.
func (f *file) rotate() error {
	old := f.out
	f.out = nil
	if err := old.Close(); err != nil {
		return err
	}
	stem, ext := splitName(f.path)
	aside := fmt.Sprintf("%s-%s%s", stem, f.now().UTC().Format(asideTime), ext)
	if err := os.Rename(f.path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := f.open(); err != nil {
		return err
	}
	f.tidying.Add(1)
	go func() { // compressing takes seconds, requests do not wait for it
		defer f.tidying.Done()
		f.tidyLock.Lock()
		defer f.tidyLock.Unlock()
		if err := f.tidy(); err != nil {
			f.log.Warn("tidy rotated audit logs, tried again at the next rotation", "path", f.path, "err", err)
		}
	}()
	return nil
}

// aside is a file put aside.
type aside struct {
	path string
	at   time.Time
}

// asides are the files put aside, youngest first.
func (f *file) asides() ([]aside, error) {
	dir := filepath.Dir(f.path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	stem, ext := splitName(filepath.Base(f.path))
	var out []aside
	for _, e := range entries {
		at, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), ".gz"), stem+"-")
		if !ok || !strings.HasSuffix(at, ext) {
			continue
		}
		t, err := time.Parse(asideTime, strings.TrimSuffix(at, ext))
		if err != nil {
			continue // another's
		}
		out = append(out, aside{filepath.Join(dir, e.Name()), t})
	}
	slices.SortStableFunc(out, func(a, b aside) int { return b.at.Compare(a.at) })
	return out, nil
}

// tidy removes what is too old or too much and compresses the rest. What fails does not
// keep it from the others.
func (f *file) tidy() error {
	oldest := time.Time{}
	if f.c.MaxAge > 0 {
		oldest = f.now().Add(-time.Duration(f.c.MaxAge) * 24 * time.Hour)
	}
	asides, err := f.asides()
	for i, a := range asides {
		switch {
		case f.c.MaxBackups > 0 && i >= f.c.MaxBackups, a.at.Before(oldest):
			err = errors.Join(err, os.Remove(a.path))
		case f.c.Compress && !strings.HasSuffix(a.path, ".gz"):
			err = errors.Join(err, compress(a.path))
		}
	}
	return err
}

// compress replaces a file by its gzipped form.
func compress(path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp, err := os.OpenFile(path+".gz.part", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(tmp)
	_, err = io.Copy(z, in)
	if err = errors.Join(err, z.Close(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path+".gz")
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return os.Remove(path)
}

// Close waits for the tidying and closes the file.
func (f *file) Close() error {
	f.tidying.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" || f.out == nil {
		return nil
	}
	out := f.out
	f.out = nil
	return out.Close()
}

// splitName divides a path before its extension.
func splitName(path string) (stem, ext string) {
	ext = filepath.Ext(path)
	return strings.TrimSuffix(path, ext), ext
}
