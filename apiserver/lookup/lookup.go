// Package lookup reads objects from the watch caches for the parts of the API server
// that decide about requests: typed gets and lists, and a follower that keeps an
// index up to date.
//
// Owns: nothing but the way to ask. Must not: write, authorize, or know any kind.
package lookup

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
)

// Caches is the part of cacher.Set that reading needs.
type Caches interface {
	Resource(key string) (cacher.Resource, bool)
}

// Resource returns the cache of a resource.
func Resource(caches Caches, gr schema.GroupResource) (cacher.Resource, error) {
	r, ok := caches.Resource(gr.Group + "/" + gr.Resource)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("resource %s has no cache", gr))
	}
	return r, nil
}

// Cached returns what the cache holds now, which may lag behind other API servers' writes.
// The object is shared and must not be changed.
func Cached[T runtime.Object](ctx context.Context, caches Caches, gr schema.GroupResource, namespace, name string) (T, error) {
	return get[T](ctx, caches, gr, namespace, name, "0")
}

// Fresh returns the newest state, confirmed by the quorum.
func Fresh[T runtime.Object](ctx context.Context, caches Caches, gr schema.GroupResource, namespace, name string) (T, error) {
	return get[T](ctx, caches, gr, namespace, name, "")
}

// CachedOrFresh asks the cache and, when the object is not there, the quorum: an
// object just made through another API server must not be called missing.
func CachedOrFresh[T runtime.Object](ctx context.Context, caches Caches, gr schema.GroupResource, namespace, name string) (T, error) {
	obj, err := get[T](ctx, caches, gr, namespace, name, "0")
	if apierrors.IsNotFound(err) {
		return get[T](ctx, caches, gr, namespace, name, "")
	}
	return obj, err
}

func get[T runtime.Object](ctx context.Context, caches Caches, gr schema.GroupResource, namespace, name, rv string) (T, error) {
	var none T
	r, err := Resource(caches, gr)
	if err != nil {
		return none, err
	}
	obj, err := r.Get(ctx, namespace, name, rv)
	if err != nil {
		return none, err
	}
	t, ok := obj.Runtime().(T)
	if !ok {
		return none, apierrors.NewInternalError(fmt.Errorf("cache of %s holds a %T", gr, obj.Runtime()))
	}
	return t, nil
}

// CachedList returns what the cache holds in a namespace, or everywhere when namespace is empty.
func CachedList[T runtime.Object](ctx context.Context, caches Caches, gr schema.GroupResource, namespace string) ([]T, error) {
	return list[T](ctx, caches, gr, namespace, "0")
}

// FreshList is CachedList as of a revision confirmed by the quorum.
func FreshList[T runtime.Object](ctx context.Context, caches Caches, gr schema.GroupResource, namespace string) ([]T, error) {
	return list[T](ctx, caches, gr, namespace, "")
}

func list[T runtime.Object](ctx context.Context, caches Caches, gr schema.GroupResource, namespace, rv string) ([]T, error) {
	r, err := Resource(caches, gr)
	if err != nil {
		return nil, err
	}
	l, err := r.List(ctx, cacher.ListOptions{Selection: cacher.Selection{Namespace: namespace}, ResourceVersion: rv})
	if err != nil {
		return nil, err
	}
	out := make([]T, 0, len(l.Items))
	for _, item := range l.Items {
		t, ok := item.Runtime().(T)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("cache of %s holds a %T", gr, item.Runtime()))
		}
		out = append(out, t)
	}
	return out, nil
}
