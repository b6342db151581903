package robustness

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/skiff-k8s/skiff/store"
)

// faulty is the way of one API server to a store that all share.
type faulty struct {
	store.Store

	mu sync.Mutex
	// uncertain and unavailable are of how many writes, and reads, the one or the other comes.
	uncertain, unavailable float64
	watchers               map[*faultyWatcher]struct{}
	held                   chan struct{} // closed when watches deliver again; nil: they do
}

func newFaulty(s store.Store) *faulty {
	return &faulty{Store: s, watchers: map[*faultyWatcher]struct{}{}}
}

// often sets of how many calls fail.
func (f *faulty) often(uncertain, unavailable float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uncertain, f.unavailable = uncertain, unavailable
}

// cut breaks every watch.
func (f *faulty) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		w.once.Do(func() { close(w.broken) })
	}
}

// hold keeps back what watches have to deliver until the function it returns is called.
func (f *faulty) hold() (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held != nil {
		return func() {}
	}
	held := make(chan struct{})
	f.held = held
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.held = nil
		close(held)
	}
}

func (f *faulty) fails() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rand.Float64() < f.unavailable {
		return store.ErrUnavailable
	}
	return nil
}

// lost is the error of a write whose answer is lost, or nil.
func (f *faulty) lost() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rand.Float64() < f.uncertain {
		return store.ErrUncertain
	}
	return nil
}

// write does a write, and loses it or its answer now and then.
func (f *faulty) write(do func() (int64, error)) (int64, error) {
	if err := f.fails(); err != nil {
		return 0, err
	}
	if f.lost() != nil && rand.IntN(2) == 0 {
		return 0, store.ErrUncertain // it never got there
	}
	rev, err := do()
	if err == nil {
		if err = f.lost(); err != nil {
			return 0, err
		}
	}
	return rev, err
}

func (f *faulty) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (int64, error) {
	return f.write(func() (int64, error) { return f.Store.Create(ctx, key, value, ttl) })
}

func (f *faulty) Update(ctx context.Context, key string, value []byte, expected int64, ttl time.Duration) (int64, error) {
	return f.write(func() (int64, error) { return f.Store.Update(ctx, key, value, expected, ttl) })
}

func (f *faulty) Delete(ctx context.Context, key string, expected int64) (int64, error) {
	return f.write(func() (int64, error) { return f.Store.Delete(ctx, key, expected) })
}

func (f *faulty) Get(ctx context.Context, key string) (store.KV, int64, error) {
	if err := f.fails(); err != nil {
		return store.KV{}, 0, err
	}
	return f.Store.Get(ctx, key)
}

func (f *faulty) List(ctx context.Context, prefix string, o store.ListOptions) (store.Page, error) {
	if err := f.fails(); err != nil {
		return store.Page{}, err
	}
	return f.Store.List(ctx, prefix, o)
}

func (f *faulty) Revision(ctx context.Context) (int64, error) {
	if err := f.fails(); err != nil {
		return 0, err
	}
	return f.Store.Revision(ctx)
}

func (f *faulty) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	w, err := f.Store.Watch(ctx, prefix, from)
	if err != nil {
		return nil, err
	}
	fw := &faultyWatcher{Watcher: w, f: f, broken: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers[fw] = struct{}{}
	return fw, nil
}

type faultyWatcher struct {
	store.Watcher
	f      *faulty
	once   sync.Once
	broken chan struct{}
}

var errCut = errors.New("the watch was cut")

func (w *faultyWatcher) Next(ctx context.Context) (store.Batch, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-w.broken:
			cancel(errCut)
		case <-stop:
		}
	}()
	b, err := w.Watcher.Next(ctx)
	w.f.mu.Lock()
	held := w.f.held
	w.f.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
		}
	}
	if context.Cause(ctx) == errCut {
		return store.Batch{}, errCut // what it has read is lost, as on a broken connection
	}
	return b, err
}

func (w *faultyWatcher) Close() {
	w.f.mu.Lock()
	delete(w.f.watchers, w)
	w.f.mu.Unlock()
	w.Watcher.Close()
}
