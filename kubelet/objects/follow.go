// Package objects is how the kubelet follows what it needs of the API: single
// ConfigMaps and Secrets that pods of this node refer to (the Node authorizer
// grants nothing wider), and Services.
//
// What it hands out is shared: readers must not change it.
package objects

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Source lists and watches one kind.
type Source struct {
	// Client decides whether streaming lists are in order; the fake one can't.
	Client any
	List   func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch  func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// Feed receives what a Source has: all of it, then single changes. Calls come
// from one goroutine.
type Feed[T runtime.Object] struct {
	Replaced func([]T)
	Changed  func(T)
	Deleted  func(T)
}

// Follow feeds until the context ends, through interruptions of the API server.
func Follow[T runtime.Object](ctx context.Context, log *slog.Logger, src Source, example T, feed Feed[T]) {
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{ListWithContextFunc: src.List, WatchFuncWithContext: src.Watch}, src.Client)
	l := logr.FromSlogHandler(log.Handler())
	cache.NewReflectorWithOptions(lw, example, store[T]{feed}, cache.ReflectorOptions{Logger: &l, Name: "kubelet"}).RunWithContext(ctx)
}

// store makes a Feed a cache.ReflectorStore.
type store[T runtime.Object] struct{ feed Feed[T] }

func (s store[T]) Add(obj any) error { return s.Update(obj) }

func (s store[T]) Update(obj any) error {
	if o, ok := obj.(T); ok {
		s.feed.Changed(o)
	}
	return nil
}

func (s store[T]) Delete(obj any) error {
	if o, ok := obj.(T); ok {
		s.feed.Deleted(o)
	}
	return nil
}

func (s store[T]) Replace(list []any, _ string) error {
	all := make([]T, 0, len(list))
	for _, obj := range list {
		if o, ok := obj.(T); ok {
			all = append(all, o)
		}
	}
	s.feed.Replaced(all)
	return nil
}

func (s store[T]) Resync() error { return nil }
