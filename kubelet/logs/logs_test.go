package logs

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/ptr"
)

const sample = `2026-01-01T00:00:01.000000001Z stdout F one
2026-01-01T00:00:02Z stderr F two
2026-01-01T00:00:03Z stdout P thr
2026-01-01T00:00:03Z stdout F ee
not a log line
2026-01-01T00:00:04Z stdout F
2026-01-01T00:00:05Z stdout F:x five
`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	path := write(t, sample)
	for name, tc := range map[string]struct {
		o    Options
		want string
	}{
		"all":        {Options{}, "one\ntwo\nthree\n\nfive\n"},
		"timestamps": {Options{Timestamps: true, Tail: ptr.To[int64](1)}, "2026-01-01T00:00:05Z five\n"},
		"tail 2":     {Options{Tail: ptr.To[int64](2)}, "\nfive\n"},
		"tail 0":     {Options{Tail: ptr.To[int64](0)}, ""},
		"tail many":  {Options{Tail: ptr.To[int64](100)}, "one\ntwo\nthree\n\nfive\n"},
		"since":      {Options{Since: time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC)}, "three\n\nfive\n"},
		"limit":      {Options{LimitBytes: ptr.To[int64](6)}, "one\ntw"},
	} {
		var b bytes.Buffer
		if err := Read(context.Background(), path, tc.o, &b, &b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if b.String() != tc.want {
			t.Errorf("%s: %q, want %q", name, b.String(), tc.want)
		}
	}
	var out, errs bytes.Buffer
	if err := Read(context.Background(), path, Options{}, &out, &errs); err != nil || errs.String() != "two\n" {
		t.Errorf("streams: %q %q %v", out.String(), errs.String(), err)
	}
	out.Reset()
	if err := Read(context.Background(), path, Options{}, nil, &out); err != nil || out.String() != "two\n" {
		t.Errorf("stderr alone: %q %v", out.String(), err)
	}
	if got := Tail(path, 80, 6); got != "\nfive\n" {
		t.Errorf("tail of bytes %q", got)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestFollowAcrossRotation(t *testing.T) {
	path := write(t, "2026-01-01T00:00:01Z stdout F a\n")
	var running sync.Map
	running.Store("yes", true)
	var out lockedBuffer
	done := make(chan error, 1)
	go func() {
		done <- Read(context.Background(), path, Options{Follow: true, Running: func(context.Context) (bool, error) { _, ok := running.Load("yes"); return ok, nil }}, &out, &out)
	}()
	wait := func(want string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); out.String() != want; time.Sleep(2 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("got %q, want %q", out.String(), want)
			}
		}
	}
	add := func(s string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	wait("a\n")
	add("2026-01-01T00:00:02Z stdout F half") // a line in two writes
	add(" line\n")
	wait("a\nhalf line\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	add("2026-01-01T00:00:03Z stdout F b\n")
	wait("a\nhalf line\nb\n")
	add("2026-01-01T00:00:04Z stdout F last\n")
	running.Delete("yes")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wait("a\nhalf line\nb\nlast\n")
}

func TestRotate(t *testing.T) {
	path := write(t, strings.Repeat("x", 100))
	dir := filepath.Dir(path)
	r := &Rotator{
		MaxSize: 50, MaxFiles: 3, Logger: slog.New(slog.DiscardHandler),
		Running: func(context.Context) (map[string]string, error) { return map[string]string{"id": path}, nil },
		Reopen: func(context.Context, string) error {
			return os.WriteFile(path, []byte(strings.Repeat("y", 100)), 0o600)
		},
	}
	for range 4 {
		r.Rotate(context.Background())
		time.Sleep(1100 * time.Millisecond) // names have seconds
	}
	entries, _ := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) != 3 || names[0] != "0.log" || !strings.HasSuffix(names[1], ".gz") || strings.HasSuffix(names[2], ".gz") {
		t.Fatalf("files %v", names)
	}
	f, err := os.Open(filepath.Join(dir, names[1]))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := io.ReadAll(z); err != nil || len(raw) != 100 {
		t.Errorf("compressed log: %d bytes, %v", len(raw), err)
	}
}

func FuzzParse(f *testing.F) {
	for _, l := range strings.Split(sample, "\n") {
		f.Add([]byte(l))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := Parse(line)
		if err == nil && (e.Stream != "stdout" && e.Stream != "stderr" || len(e.Text) > len(line)) {
			t.Errorf("%q parsed to %+v", line, e)
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(sample), int64(2), int64(10))
	f.Fuzz(func(t *testing.T, raw []byte, tail, limit int64) {
		path := filepath.Join(t.TempDir(), "l")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if limit < 0 {
			limit = 0
		}
		if err := Read(context.Background(), path, Options{Tail: &tail, LimitBytes: &limit}, &b, &b); err != nil {
			t.Fatal(err)
		}
		if int64(b.Len()) > limit {
			t.Errorf("%d bytes of at most %d", b.Len(), limit)
		}
	})
}
