package policy

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// feed keeps what is read of the objects of one kind, and which have changed since they were asked for. It
// is the store of a reflector: the objects themselves, which are many times larger, are garbage at once.
type feed[T any] struct {
	read func(runtime.Object) (name, *T) // nil: of no interest
	same func(a, b *T) bool
	kick func()

	mu     sync.Mutex
	items  map[name]*T
	dirty  map[name]bool
	synced bool
}

func newFeed[T any](read func(runtime.Object) (name, *T), same func(a, b *T) bool, kick func()) *feed[T] {
	return &feed[T]{read: read, same: same, kick: kick, items: map[name]*T{}, dirty: map[name]bool{}}
}

// watch until ctx ends.
func (f *feed[T]) watch(ctx context.Context, lw cache.ListerWatcher, kind runtime.Object) {
	cache.NewReflector(lw, kind, f, 0).RunWithContext(ctx)
}

func (f *feed[T]) set(n name, v *T) {
	was := f.items[n]
	if was == nil && v == nil || was != nil && v != nil && f.same(was, v) {
		return
	}
	if v == nil {
		delete(f.items, n)
	} else {
		f.items[n] = v
	}
	f.dirty[n] = true
}

// Add implements cache.ReflectorStore.
func (f *feed[T]) Add(o any) error { return f.Update(o) }

// Update implements cache.ReflectorStore.
func (f *feed[T]) Update(o any) error {
	obj, ok := o.(runtime.Object)
	if !ok {
		return fmt.Errorf("got a %T", o)
	}
	n, v := f.read(obj)
	f.mu.Lock()
	f.set(n, v)
	f.mu.Unlock()
	f.kick()
	return nil
}

// Delete implements cache.ReflectorStore.
func (f *feed[T]) Delete(o any) error {
	obj, ok := o.(runtime.Object)
	if !ok {
		return fmt.Errorf("got a %T", o)
	}
	n, _ := f.read(obj)
	f.mu.Lock()
	f.set(n, nil)
	f.mu.Unlock()
	f.kick()
	return nil
}

// Replace implements cache.ReflectorStore.
func (f *feed[T]) Replace(all []any, _ string) error {
	f.mu.Lock()
	there := make(map[name]bool, len(all))
	for _, o := range all {
		if obj, ok := o.(runtime.Object); ok {
			n, v := f.read(obj)
			there[n] = true
			f.set(n, v)
		}
	}
	for n := range f.items {
		if !there[n] {
			f.set(n, nil)
		}
	}
	f.synced = true
	f.mu.Unlock()
	f.kick()
	return nil
}

// Resync implements cache.ReflectorStore.
func (f *feed[T]) Resync() error { return nil }

// take calls f with what has changed since the last time; nil is gone.
func (f *feed[T]) take(do func(name, *T)) {
	f.mu.Lock()
	dirty := f.dirty
	f.dirty = map[name]bool{}
	changed := make(map[name]*T, len(dirty))
	for n := range dirty {
		changed[n] = f.items[n]
	}
	f.mu.Unlock()
	for n, v := range changed {
		do(n, v)
	}
}

func (f *feed[T]) hasSynced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.synced
}

// clear forgets all, as if nothing had been read.
func (f *feed[T]) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.items, f.dirty, f.synced = map[name]*T{}, map[name]bool{}, false
}

func (f *feed[T]) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.items)
}
