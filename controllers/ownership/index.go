// Package ownership is how controllers own dependents: finding them by their controller
// reference, adopting and releasing them, making pods from templates, choosing which to
// delete. Shared by every controller that owns pods (or ReplicaSets).
//
// Must not: decide how many dependents there should be.
package ownership

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

const (
	indexName    = "controllerUID"
	orphanPrefix = "orphans/"
)

// Index finds the objects of one informer by the uid of their controller.
type Index[T metav1.Object] struct {
	indexer cache.Indexer
}

// NewIndex adds the index to a shared informer, once for all its users.
func NewIndex[T metav1.Object](inf cache.SharedIndexInformer) (Index[T], error) {
	if _, ok := inf.GetIndexer().GetIndexers()[indexName]; !ok {
		err := inf.AddIndexers(cache.Indexers{indexName: func(o any) ([]string, error) {
			obj, ok := o.(metav1.Object)
			if !ok {
				return nil, nil
			}
			if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
				return []string{string(ref.UID)}, nil
			}
			return []string{orphanPrefix + obj.GetNamespace()}, nil
		}})
		if err != nil {
			return Index[T]{}, fmt.Errorf("indexing by controller: %w", err)
		}
	}
	return Index[T]{inf.GetIndexer()}, nil
}

// OwnedBy returns the shared objects whose controller has that uid.
func (x Index[T]) OwnedBy(uid types.UID) []T { return x.by(string(uid)) }

// Orphans returns the shared objects of a namespace that have no controller.
func (x Index[T]) Orphans(namespace string) []T { return x.by(orphanPrefix + namespace) }

func (x Index[T]) by(value string) []T {
	found, err := x.indexer.ByIndex(indexName, value)
	if err != nil { // the index exists: NewIndex added it
		return nil
	}
	objs := make([]T, 0, len(found))
	for _, o := range found {
		if obj, ok := o.(T); ok {
			objs = append(objs, obj)
		}
	}
	return objs
}
