package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/store"
)

// Two API servers share the work: each interval one of them compacts to where the
// store was an interval ago, never further.
func TestCompactorsShare(t *testing.T) {
	s, _ := run(t, Config{DataDir: t.TempDir(), CompactInterval: -1})
	a := &compactor{kv: &s.kv, log: slog.New(slog.DiscardHandler)}
	b := &compactor{kv: &s.kv, log: slog.New(slog.DiscardHandler)}
	write := func(i int) int64 {
		t.Helper()
		rev, err := s.Create(t.Context(), fmt.Sprintf("/a/%d", i), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	round := func(c *compactor) {
		t.Helper()
		if err := c.round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	readable := func(rev int64) bool {
		t.Helper()
		_, err := s.List(t.Context(), "/a/", store.ListOptions{Revision: rev})
		if err != nil && !errors.Is(err, store.ErrCompacted) {
			t.Fatal(err)
		}
		return err == nil
	}

	first := write(1)
	round(a) // learns where the store is
	round(b)
	second := write(2)
	if !readable(first) {
		t.Error("the first round compacted already")
	}
	round(a)
	round(b) // loses: the interval is done
	if readable(first - 1) {
		t.Error("nothing was compacted after an interval")
	}
	if !readable(second) {
		t.Error("history of this interval is gone")
	}
	third := write(3)
	round(b) // a is gone: b takes over
	if readable(first) || !readable(third) {
		t.Errorf("after taking over, revision %d is readable: %t, %d: %t", first, readable(first), third, readable(third))
	}
	kv, _, err := s.Get(t.Context(), compactKey)
	if err != nil {
		t.Fatal(err)
	}
	if string(kv.Value) == "0" || string(kv.Value) == "" {
		t.Errorf("%s is %q", compactKey, kv.Value)
	}
}

func TestCompactsOnSchedule(t *testing.T) {
	s, _ := run(t, Config{DataDir: t.TempDir(), CompactInterval: 20 * time.Millisecond})
	rev, err := s.Create(t.Context(), "/a", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(t.Context(), compactKey, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for range 4 {
		if _, err := w.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.List(t.Context(), "/", store.ListOptions{Revision: rev - 1}); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("list of old history: %v, want ErrCompacted", err)
	}
}
