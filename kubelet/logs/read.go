package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options say what to read.
type Options struct {
	Follow     bool
	Tail       *int64
	LimitBytes *int64
	Since      time.Time
	Timestamps bool
	// Running tells, while following, whether more can come; asked when the log's
	// end is reached.
	Running func(context.Context) (bool, error)
}

// Read copies a container's log. stdout and stderr may be the same writer, and nil
// to leave a stream out.
func Read(ctx context.Context, path string, o Options, stdout, stderr io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open container log: %w", err)
	}
	defer func() { f.Close() }()
	if o.Tail != nil {
		start, err := tailStart(f, *o.Tail)
		if err != nil {
			return fmt.Errorf("look for the last lines of %s: %w", path, err)
		}
		if _, err := f.Seek(start, io.SeekStart); err != nil {
			return fmt.Errorf("seek in container log: %w", err)
		}
	}
	w := &writer{o: o, stdout: stdout, stderr: stderr, left: -1}
	if o.LimitBytes != nil {
		w.left = *o.LimitBytes
	}

	var watcher *fsnotify.Watcher
	if o.Follow {
		if watcher, err = fsnotify.NewWatcher(); err == nil {
			defer watcher.Close()
			// The directory: a rotated log is a new file of the same name.
			if err := watcher.Add(filepath.Dir(path)); err != nil {
				return fmt.Errorf("watch container log: %w", err)
			}
		}
	}
	r := bufio.NewReaderSize(f, 64<<10)
	var part []byte
	for {
		line, err := r.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read container log: %w", err)
		}
		if errors.Is(err, io.EOF) {
			part = append(part, line...)
			if !o.Follow {
				if len(part) > 0 { // cut off in the middle of being written
					if _, werr := w.line(part); werr != nil {
						return werr
					}
				}
				return nil
			}
			next, more, err := waitMore(ctx, watcher, path, f, o)
			if err != nil || !more {
				return err
			}
			if next != nil {
				f.Close()
				f, part = next, nil
			}
			r.Reset(f)
			continue
		}
		if len(part) > 0 {
			line = append(part, line...)
			part = nil
		}
		done, err := w.line(line[:len(line)-1])
		if err != nil || done {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// waitMore waits at the end of a log. It returns the file that replaced it, if it
// was rotated, and whether there is any point in reading on.
func waitMore(ctx context.Context, w *fsnotify.Watcher, path string, f *os.File, o Options) (*os.File, bool, error) {
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, false, err
	}
	running := true
	for {
		if cur, err := os.Stat(path); err == nil {
			mine, serr := f.Stat()
			switch {
			case serr != nil:
				return nil, false, serr
			case mine.Size() > at:
				return nil, true, nil
			case !os.SameFile(cur, mine):
				next, err := os.Open(path)
				if err == nil {
					return next, true, nil
				}
				if !errors.Is(err, fs.ErrNotExist) {
					return nil, false, fmt.Errorf("open rotated log: %w", err)
				}
			case cur.Size() < at: // truncated in place
				if _, err := f.Seek(0, io.SeekStart); err != nil {
					return nil, false, err
				}
				return nil, true, nil
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, false, err
		} else if !running {
			return nil, false, nil // removed
		}
		if !running {
			return nil, false, nil
		}
		if o.Running != nil {
			if running, err = o.Running(ctx); err != nil {
				return nil, false, nil // as good as gone
			}
			if !running {
				continue // what it wrote last may have come since
			}
		}
		var events chan fsnotify.Event
		if w != nil {
			events = w.Events
		}
		t := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, false, nil
		case <-events:
		case <-t.C:
		}
		t.Stop()
	}
}

type writer struct {
	o              Options
	stdout, stderr io.Writer
	left           int64 // bytes; -1: no limit
	inLine         map[string]bool
}

// line writes one record; true: the limit is reached.
func (w *writer) line(raw []byte) (bool, error) {
	if len(raw) == 0 {
		return false, nil
	}
	e, err := Parse(raw)
	if err != nil {
		return false, nil // a broken record does not hide the others
	}
	if e.Time.Before(w.o.Since) {
		return false, nil
	}
	out := w.stdout
	if e.Stream == "stderr" {
		out = w.stderr
	}
	if out == nil {
		return false, nil
	}
	buf := make([]byte, 0, len(e.raw)+len(e.Text)+2)
	if w.o.Timestamps && !w.inLine[e.Stream] {
		buf = append(append(buf, e.raw...), ' ')
	}
	if w.inLine == nil {
		w.inLine = map[string]bool{}
	}
	w.inLine[e.Stream] = e.Partial
	buf = append(buf, e.Text...)
	if !e.Partial {
		buf = append(buf, '\n')
	}
	done := false
	if w.left >= 0 {
		if int64(len(buf)) >= w.left {
			buf, done = buf[:w.left], true
		}
		w.left -= int64(len(buf))
	}
	if _, err := out.Write(buf); err != nil {
		return true, nil // the reader has gone
	}
	return done, nil
}

// tailStart finds where the last n lines begin, reading backwards in blocks.
// Partial records count as the line that they belong to only once.
func tailStart(f io.ReadSeeker, n int64) (int64, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if n <= 0 {
		return size, nil
	}
	const block = 16 << 10
	buf := make([]byte, block)
	found := int64(0)
	for end := size; end > 0; {
		start := max(end-block, 0)
		if _, err := f.Seek(start, io.SeekStart); err != nil {
			return 0, err
		}
		b := buf[:end-start]
		if _, err := io.ReadFull(f, b); err != nil {
			return 0, err
		}
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] != '\n' || start+int64(i) == size-1 {
				continue
			}
			if found++; found == n {
				return start + int64(i) + 1, nil
			}
		}
		end = start
	}
	return 0, nil
}

// Tail is the text of a log's last lines, as much of it as fits.
func Tail(path string, lines int64, limit int) string {
	var b bytes.Buffer
	if err := Read(context.Background(), path, Options{Tail: &lines}, &b, &b); err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err)
	}
	raw := b.Bytes()
	if len(raw) > limit {
		raw = raw[len(raw)-limit:]
	}
	return string(raw)
}
