package cacher

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestHistoryAges: what all watches have read goes after historyAge, what one still has to
// read after historySlow, and a little stays in any case.
func TestHistoryAges(t *testing.T) {
	begin := time.Now()
	const n, cost = 100, historyMin / 10
	fill := func() *history {
		h := &history{limit: 1 << 30}
		for i := range n {
			h.add(&change{rev: int64(i + 1), when: begin, cost: cost})
		}
		return h
	}
	for _, c := range []struct {
		name string
		age  time.Duration
		read int64 // by the slowest watch
		kept int
	}{
		{"young", historyAge, n, n},
		{"old", historyAge + 1, n, 10},
		{"old, unread", historyAge + 1, 0, n},
		{"old, half read", historyAge + 1, n / 2, n / 2},
		{"very old, unread", historySlow + 1, 0, 10},
	} {
		h := fill()
		h.trim(begin.Add(c.age), c.read)
		if len(h.changes) != c.kept || h.end() != n || h.after != int64(n-c.kept) || h.bytes != int64(c.kept*cost) {
			t.Errorf("%s: %d changes after %d (%d bytes, end %d), want %d", c.name, len(h.changes), h.after, h.bytes, h.end(), c.kept)
		}
		if cap(h.changes) > 64 && cap(h.changes) > 4*len(h.changes) {
			t.Errorf("%s: room for %d changes is kept for %d", c.name, cap(h.changes), len(h.changes))
		}
	}
}

func TestWatchesHoldHistory(t *testing.T) {
	var s watches
	of := func(pending bool, seq int64) watcherSet {
		return watcherSet{&watcher{pending: pending, seq: seq}: struct{}{}}
	}
	s.all = of(false, 1) // has nothing to read
	s.byKey = map[string]watcherSet{"k": of(true, 7)}
	s.byField = map[string]map[string]watcherSet{"f": {"v": of(true, 5)}}
	if got := s.read(9); got != 5 {
		t.Errorf("read up to %d, want 5", got)
	}
	if got := s.read(3); got != 3 {
		t.Errorf("read up to %d, want 3", got)
	}
}

// TestSweep: a form lives on for as long as it is used between sweeps.
func TestSweep(t *testing.T) {
	b := newBudget(1 << 20)
	var used, unused, gone atomic.Pointer[form]
	for _, home := range []*atomic.Pointer[form]{&used, &unused, &gone} {
		b.keep(home, &form{cost: 1000})
	}
	b.release(&gone)
	used.Load().used.Store(true)
	b.sweep()
	if used.Load() == nil || unused.Load() != nil || b.size() != 1000+formOverhead || len(b.queue) != 1 {
		t.Errorf("used %v, unused %v, %d bytes, %d queued", used.Load(), unused.Load(), b.size(), len(b.queue))
	}
	b.sweep()
	if used.Load() != nil || b.size() != 0 {
		t.Errorf("%d bytes are kept of what is not used any more", b.size())
	}
	if b.keep(&used, &form{cost: 1}); b.size() == 0 {
		t.Error("nothing is kept after a sweep")
	}
}
