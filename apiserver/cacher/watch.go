package cacher

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

const (
	// watchBuffer is how many events a watch's channel holds. What else waits for a
	// slow consumer waits in the history, once for all watches.
	watchBuffer = 16
	// watchRead is how many changes a watch takes from the history at a time.
	watchRead = 64
)

// watcher implements Watcher: a goroutine that reads the resource's history from where
// it is and sends what matches.
type watcher struct {
	r     *resource
	match *matcher
	out   chan Event

	stopOnce sync.Once
	stopped  chan struct{}
	epoch    chan struct{} // the resource's stop of when the watch began
	wake     chan struct{}
	ask      chan struct{} // a bookmark is wanted

	bookmarks bool
	initial   *view // sent as Added events first
	mark      bool  // tell when they have been sent
	after     int64 // events up to it are skipped

	// The resource's lock guards these: whether changes of interest wait in the
	// history, and the sequence number of the next one to read if so.
	pending bool
	seq     int64
}

// Events implements Watcher.
func (w *watcher) Events() <-chan Event { return w.out }

// Stop implements Watcher.
func (w *watcher) Stop() { w.stopOnce.Do(func() { close(w.stopped) }) }

// RequestBookmark asks for a bookmark as soon as all events so far have been sent.
func (w *watcher) RequestBookmark() {
	select {
	case w.ask <- struct{}{}:
	default:
	}
}

// Watch implements Resource. Like upstream, it reports what goes wrong after the
// parameters were understood as an event, not as an error.
func (r *resource) Watch(ctx context.Context, o WatchOptions) (Watcher, error) {
	rev, err := parseRevision(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	w := &watcher{
		r: r, match: newMatcher(r, o.Selection),
		out:       make(chan Event, watchBuffer),
		stopped:   make(chan struct{}),
		wake:      make(chan struct{}, 1),
		ask:       make(chan struct{}, 1),
		bookmarks: o.Bookmarks,
	}
	initial := rev == 0
	if o.SendInitialEvents != nil {
		initial = *o.SendInitialEvents
		w.mark = initial && o.Bookmarks
	}
	if initial || rev == 0 {
		if err := r.fresh(ctx, o.ResourceVersion); err != nil {
			return w.failed(err), nil
		}
	}

	if !initial && rev != 0 && rev < r.oldest() {
		if err := r.extend(ctx, rev); err != nil {
			r.caches.log.Debug("a watch cannot be resumed", "resource", r.api.GR().String(), "revision", rev, "err", err)
		}
	}

	r.mu.Lock()
	v, err := r.currentLocked()
	if err != nil {
		r.mu.Unlock()
		return w.failed(err), nil
	}
	w.epoch = r.stop
	if initial {
		w.initial = v
	} else if rev != 0 {
		if rev < r.history.after {
			oldest := r.history.after
			r.mu.Unlock()
			return w.failed(tooOld(rev, oldest)), nil
		}
		w.after, w.pending, w.seq = rev, true, r.history.seek(rev)
	}
	r.watches.add(w)
	r.mu.Unlock()

	if !r.caches.spawn(func(running context.Context) { w.run(ctx, running) }) {
		w.forget()
		return w.failed(notReady(r)), nil
	}
	return w, nil
}

// failed is a watch that only tells its error.
func (w *watcher) failed(err error) *watcher {
	w.out <- Event{Type: watch.Error, Err: err}
	close(w.out)
	return w
}

func (w *watcher) forget() {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.r.watches.remove(w)
}

func (w *watcher) run(ctx, running context.Context) {
	defer close(w.out)
	defer w.forget()
	send := func(e Event) bool {
		select {
		case w.out <- e:
			return true
		case <-w.stopped:
		case <-w.epoch:
		case <-ctx.Done():
		case <-running.Done():
		}
		return false
	}
	if w.initial != nil && !w.sendInitial(ctx, send) {
		return
	}

	if !w.bookmarks {
		w.loop(ctx, running, send, nil, func() {})
		return
	}
	interval := w.r.caches.cfg.BookmarkInterval
	t := w.r.caches.cfg.Clock.NewTimer(jitter(interval))
	defer t.Stop()
	w.loop(ctx, running, send, t.C(), func() { t.Reset(jitter(interval)) })
}

// jitter spreads bookmarks, so that watches begun together do not stay together.
func jitter(d time.Duration) time.Duration {
	return d*9/10 + rand.N(d/5+1)
}

func (w *watcher) sendInitial(ctx context.Context, send func(Event) bool) bool {
	v := w.initial
	w.initial = nil
	ok := true
	// Views are in memory: ascending one does not fail.
	_ = v.ascend(ctx, max(w.match.prefix, w.match.exact), func(e *entry) bool {
		if !strings.HasPrefix(e.key, w.match.prefix) || w.match.exact != "" && e.key > w.match.exact {
			return false
		}
		selected, err := w.match.match(e)
		if err != nil {
			send(Event{Type: watch.Error, Err: err})
			ok = false
		} else if selected {
			ok = send(Event{Type: watch.Added, Object: e, Revision: e.rev})
		}
		return ok
	})
	if ok && w.mark {
		ok = send(Event{Type: watch.Bookmark, Revision: v.rev, InitialEventsEnd: true})
	}
	return ok
}

func (w *watcher) loop(ctx, running context.Context, send func(Event) bool, due <-chan time.Time, again func()) {
	r := w.r
	var buf [watchRead]*change
	bookmark := false
	for {
		r.mu.Lock()
		n, ok := 0, true
		if w.pending {
			n, ok = r.history.read(w.seq, buf[:])
			w.seq += int64(n)
			w.pending = w.seq < r.history.end()
		}
		rev := max(r.rev, r.caches.feed.revision())
		ended := r.phase != serving || r.stop != w.epoch // rev is then not ours to tell
		r.mu.Unlock()
		if ended {
			return
		}
		if !ok {
			send(Event{Type: watch.Error, Err: slowWatcher(r)})
			return
		}
		for _, c := range buf[:n] {
			if c.rev <= w.after {
				continue
			}
			e, ok := w.event(c)
			if ok && !send(e) || e.Err != nil {
				return
			}
		}
		clear(buf[:n])
		if n > 0 {
			continue
		}
		if bookmark {
			bookmark = false
			again()
			if rev >= w.after && !send(Event{Type: watch.Bookmark, Revision: rev}) {
				return
			}
		}
		select {
		case <-w.wake:
		case <-due:
			bookmark = true
		case <-w.ask:
			bookmark = w.bookmarks
		case <-w.stopped:
			return
		case <-w.epoch:
			return
		case <-ctx.Done():
			return
		case <-running.Done():
			return
		}
	}
}

// event is what a change is to this watch; false: nothing.
func (w *watcher) event(c *change) (Event, bool) {
	if !w.match.scope(c.key) {
		return Event{}, false
	}
	var now, before bool
	var err error
	if c.cur != nil {
		now, err = w.match.match(c.cur)
	}
	if c.prev != nil && err == nil {
		before, err = w.match.match(c.prev)
	}
	switch {
	case err != nil:
		return Event{Type: watch.Error, Err: err}, true
	case now && before:
		return Event{Type: watch.Modified, Object: c.cur, Revision: c.rev}, true
	case now:
		return Event{Type: watch.Added, Object: c.cur, Revision: c.rev}, true
	case before:
		return Event{Type: watch.Deleted, Object: c.deleted(), Revision: c.rev}, true
	}
	return Event{}, false
}
