package mem

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/skiff-k8s/skiff/store"
)

// maxBatch bounds the events of one batch, but for those of its last revision.
const maxBatch = 1000

// watcher reads the store's log from where it is: it has no buffer and no goroutine.
type watcher struct {
	s      *Store
	ctx    context.Context // that of Watch
	prefix string

	close  func()
	closed <-chan struct{}

	mu       sync.Mutex
	progress bool
	wake     chan struct{}

	at int64 // everything up to it has been delivered; only Next touches it
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if from == 0 {
		from = s.rev
	}
	closed := make(chan struct{})
	return &watcher{
		s: s, ctx: ctx, prefix: prefix, at: from,
		close: sync.OnceFunc(func() { close(closed) }), closed: closed,
		wake: make(chan struct{}, 1),
	}, nil
}

// Next implements store.Watcher.
func (w *watcher) Next(ctx context.Context) (store.Batch, error) {
	for {
		select {
		case <-w.closed:
			return store.Batch{}, store.ErrClosed
		default:
		}
		if err := ctx.Err(); err != nil {
			return store.Batch{}, err
		}
		b, ok, changed, err := w.read()
		if err != nil || ok {
			return b, err
		}
		select {
		case <-changed:
		case <-w.wake:
		case <-w.closed:
		case <-ctx.Done():
			return store.Batch{}, ctx.Err()
		case <-w.ctx.Done():
			return store.Batch{}, w.ctx.Err()
		}
	}
}

// read takes what the log holds for the watcher; changed is closed when it may hold more.
func (w *watcher) read() (b store.Batch, ok bool, changed <-chan struct{}, err error) {
	s := w.s
	if err := s.begin(w.ctx); err != nil {
		return b, false, nil, err
	}
	defer s.mu.Unlock()
	if w.at+1 < s.compacted {
		return b, false, nil, fmt.Errorf("watch %q from revision %d: %w", w.prefix, w.at, store.ErrCompacted)
	}
	i := sort.Search(len(s.log), func(i int) bool { return s.log[i].KV.ModRevision > w.at })
	for ; i < len(s.log); i++ {
		e := s.log[i]
		if len(b.Events) >= maxBatch && e.KV.ModRevision != b.Revision {
			break
		}
		if strings.HasPrefix(e.KV.Key, w.prefix) {
			b.Events = append(b.Events, e)
			b.Revision = e.KV.ModRevision
		}
		w.at = e.KV.ModRevision
	}
	if len(b.Events) > 0 {
		return b, true, nil, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.progress && w.at <= s.rev {
		w.progress = false
		w.at = s.rev
		return store.Batch{Revision: s.rev}, true, nil, nil
	}
	return b, false, s.changed, nil
}

// RequestProgress implements store.Watcher.
func (w *watcher) RequestProgress(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.mu.Lock()
	w.progress = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return nil
}

// Close implements store.Watcher.
func (w *watcher) Close() { w.close() }
