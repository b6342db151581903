package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// Key names an object; Namespace is empty for those of the cluster.
type Key = types.NamespacedName

// Reconcile brings one key to its desired state. It is called again after again (when
// positive), with back-off after an error, and never twice at a time for one key.
type Reconcile[K comparable] func(ctx context.Context, key K) (again time.Duration, err error)

// Loop is a queue, the informers that fill it and the workers that empty it.
type Loop[K comparable] struct {
	*Queue[K]
	Name      string
	Workers   int
	reconcile Reconcile[K]
	logger    *slog.Logger
	synced    []cache.InformerSynced
}

// NewLoop makes a loop; nothing runs before Run.
func NewLoop[K comparable](name string, workers int, c clock.WithDelayedExecution, l *slog.Logger, r Reconcile[K]) *Loop[K] {
	return &Loop[K]{Queue: NewQueue[K](c), Name: name, Workers: workers, reconcile: r, logger: l.With("controller", name)}
}

// Needs makes Run wait for more caches.
func (l *Loop[K]) Needs(synced ...cache.InformerSynced) { l.synced = append(l.synced, synced...) }

// WaitSynced blocks until every cache the loop needs is filled.
func (l *Loop[K]) WaitSynced(ctx context.Context) bool {
	return WaitSynced(ctx, l.synced...)
}

// Run waits for the caches, then works until ctx ends.
func (l *Loop[K]) Run(ctx context.Context) error {
	defer l.stop()
	if !l.WaitSynced(ctx) {
		return nil
	}
	// A worker lives as long as its key: dozens of loops are idle most of the time.
	var wg sync.WaitGroup
	defer wg.Wait()
	free := make(chan struct{}, max(1, l.Workers))
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		key, ok := l.Get(ctx)
		if !ok {
			return nil
		}
		wg.Go(func() {
			defer func() { <-free }()
			l.work(ctx, key)
		})
	}
}

func (l *Loop[K]) work(ctx context.Context, key K) {
	defer l.Done(key)
	again, err := l.reconcile(ctx, key)
	switch {
	case err == nil:
		l.Forget(key)
		if again > 0 {
			l.AddAfter(key, again)
		}
	case ctx.Err() != nil:
	default:
		// A conflict only says that the cache was behind.
		level := slog.LevelWarn
		if apierrors.IsConflict(err) || errors.Is(err, ErrStale) {
			level = slog.LevelDebug
		}
		l.logger.Log(ctx, level, "reconciling failed, it will be retried", "key", fmt.Sprint(key), "err", err)
		l.AddRateLimited(key)
	}
}

// ErrStale says that the caches do not yet show what this controller wrote.
var ErrStale = errors.New("caches are behind own writes")

// WaitSynced blocks until all are true or ctx ends. It asks every 20 ms where client-go
// asks every 100: all controllers of a fresh cluster wait here.
func WaitSynced(ctx context.Context, synced ...cache.InformerSynced) bool {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for _, s := range synced {
		for !s() {
			select {
			case <-ctx.Done():
				return false
			case <-t.C:
			}
		}
	}
	return ctx.Err() == nil
}

// Handlers are called in the informer's order; nil ones are skipped.
type Handlers[T any] struct {
	Added   func(obj T)
	Updated func(old, obj T)
	Deleted func(obj T)
}

// OnEach calls f for every change.
func OnEach[T any](f func(obj T)) Handlers[T] {
	return Handlers[T]{Added: f, Updated: func(_, obj T) { f(obj) }, Deleted: f}
}

// Handle registers typed handlers and returns what says that they have seen the
// informer's initial objects.
func Handle[T any](inf cache.SharedInformer, h Handlers[T]) (cache.InformerSynced, error) {
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if obj, ok := o.(T); ok && h.Added != nil {
				h.Added(obj)
			}
		},
		UpdateFunc: func(a, b any) {
			old, ok1 := a.(T)
			obj, ok2 := b.(T)
			if ok1 && ok2 && h.Updated != nil {
				h.Updated(old, obj)
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if obj, ok := o.(T); ok && h.Deleted != nil {
				h.Deleted(obj)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("adding event handler: %w", err)
	}
	return reg.HasSynced, nil
}

// Watch registers handlers and makes the loop wait for them.
func Watch[T any, K comparable](l *Loop[K], inf cache.SharedInformer, h Handlers[T]) error {
	synced, err := Handle(inf, h)
	if err != nil {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	l.Needs(synced)
	return nil
}

// Named is what has a namespace and a name.
type Named interface {
	GetNamespace() string
	GetName() string
}

// KeyOf is the key of an object.
func KeyOf(o Named) Key { return Key{Namespace: o.GetNamespace(), Name: o.GetName()} }

// Enqueue returns handlers that add the object's own key on every change.
func Enqueue[T Named](l *Loop[Key]) Handlers[T] {
	return OnEach(func(o T) { l.Add(KeyOf(o)) })
}
