package cacher

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/skiff-k8s/skiff/store"
)

// feed is how far the one watch on the store has come. Everything up to its revision
// has been applied to every loaded resource.
type feed struct {
	ready chan struct{} // closed once the first watch is open; loads wait for it

	mu      sync.Mutex
	rev     int64
	watcher store.Watcher // nil while there is none
	waiting []*revisionWaiter
}

type revisionWaiter struct {
	rev  int64
	done chan struct{}
}

func (f *feed) init() { f.ready = make(chan struct{}) }

func (f *feed) revision() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rev
}

// advance wakes who waits for a revision up to rev.
func (f *feed) advance(rev int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rev <= f.rev {
		return
	}
	f.rev = rev
	kept := f.waiting[:0]
	for _, w := range f.waiting {
		if w.rev <= rev {
			close(w.done)
		} else {
			kept = append(kept, w)
		}
	}
	clear(f.waiting[len(kept):])
	f.waiting = kept
}

func (f *feed) setWatcher(w store.Watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watcher = w
}

// progressEvery is how often a waiting reader asks for progress again: a request is
// lost when the store's watch is not in sync at the moment.
const progressEvery = 50 * time.Millisecond

// wait blocks until the feed has reached rev. A revision may be that of a key outside
// the watched prefix, which no event will ever carry: hence the progress requests.
func (f *feed) wait(ctx context.Context, rev int64) error {
	f.mu.Lock()
	if f.rev >= rev {
		f.mu.Unlock()
		return nil
	}
	w := &revisionWaiter{rev: rev, done: make(chan struct{})}
	f.waiting = append(f.waiting, w)
	f.mu.Unlock()

	t := time.NewTicker(progressEvery)
	defer t.Stop()
	for {
		f.requestProgress(ctx)
		select {
		case <-w.done:
			return nil
		case <-ctx.Done():
			f.forget(w)
			return ctx.Err()
		case <-t.C:
		}
	}
}

func (f *feed) requestProgress(ctx context.Context) {
	f.mu.Lock()
	w := f.watcher
	f.mu.Unlock()
	if w != nil {
		// A watch that failed is replaced by the feed, and whoever needs progress asks again.
		_ = w.RequestProgress(ctx)
	}
}

func (f *feed) forget(w *revisionWaiter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.waiting {
		if f.waiting[i] == w {
			f.waiting = append(f.waiting[:i], f.waiting[i+1:]...)
			return
		}
	}
}

const (
	feedRetryMin = 20 * time.Millisecond
	feedRetryMax = 2 * time.Second
)

// runFeed keeps one watch on the store open until ctx ends.
func (s *Caches) runFeed(ctx context.Context) {
	retry := feedRetryMin
	for ctx.Err() == nil {
		before := s.feed.revision()
		err := s.watchStore(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.feed.revision() > before {
			retry = feedRetryMin // it worked for a while: what broke it is another matter
		}
		if errors.Is(err, store.ErrCompacted) {
			s.log.Warn("the watch cache fell behind compaction and is read anew", "err", err)
			s.reset()
		} else {
			s.log.Warn("watch on the store ended", "err", err)
		}
		t := s.cfg.Clock.NewTimer(retry)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C():
		}
		retry = min(2*retry, feedRetryMax)
	}
}

// reset forgets what has been applied, so that every resource is loaded again.
func (s *Caches) reset() {
	s.feed.mu.Lock()
	s.feed.rev = 0
	s.feed.mu.Unlock()
}

func (s *Caches) watchStore(ctx context.Context) error {
	from := s.feed.revision()
	fresh := from == 0
	if fresh {
		var err error
		if from, err = s.cfg.Store.Revision(ctx); err != nil {
			return err
		}
	}
	w, err := s.cfg.Store.Watch(ctx, s.cfg.Prefix, from)
	if err != nil {
		return err
	}
	defer w.Close()
	s.feed.setWatcher(w)
	defer s.feed.setWatcher(nil)
	if fresh {
		select {
		case <-s.feed.ready:
			s.reload() // before anybody who waits for the revision reads what was before
			s.feed.advance(from)
		default: // nothing has been loaded yet
			s.feed.advance(from)
			close(s.feed.ready)
		}
	}
	for {
		b, err := w.Next(ctx)
		if err != nil {
			return err
		}
		s.apply(b)
	}
}

// reload drops and loads again what was loaded before events were lost.
func (s *Caches) reload() {
	s.mu.Lock()
	all := make([]*resource, 0, len(s.byKey))
	for _, r := range s.byKey {
		all = append(all, r)
	}
	s.mu.Unlock()
	for _, r := range all {
		r.restart()
	}
}

// apply hands a batch to the resources, each its whole part in one go: a batch is made
// of whole revisions, and so no reader ever sees part of one.
func (s *Caches) apply(b store.Batch) {
	if len(b.Events) == 1 {
		if r := s.lookup(b.Events[0].KV.Key); r != nil {
			r.apply(b.Events)
		}
	} else if len(b.Events) > 1 {
		parts := map[*resource][]store.Event{}
		for _, e := range b.Events {
			if r := s.lookup(e.KV.Key); r != nil {
				parts[r] = append(parts[r], e)
			}
		}
		for r, events := range parts {
			r.apply(events)
		}
	}
	s.feed.advance(b.Revision)
}
