package rest

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/skiff-k8s/skiff/apiserver/apply"
)

// virtualKind is a kind that is not stored, at one subresource: Scale, TokenRequest.
type virtualKind struct {
	kind        schema.GroupVersionKind
	subresource string
}

// fieldsOf is the field manager of a kind that is not stored.
func (g *Registry) fieldsOf(kind schema.GroupVersionKind, subresource string, empty func() runtime.Object) (*managedfields.FieldManager, error) {
	build, _ := g.virtual.LoadOrStore(virtualKind{kind, subresource}, sync.OnceValues(func() (*managedfields.FieldManager, error) {
		types, err := g.types()
		if err != nil {
			return nil, fmt.Errorf("schema for managed fields: %w", err)
		}
		return apply.NewManager(apply.Config{Types: types, Scheme: g.Scheme, Kind: kind, Subresource: subresource, New: func() runtime.Object {
			o := empty()
			o.GetObjectKind().SetGroupVersionKind(kind)
			return o
		}})
	}))
	fm, err := build.(func() (*managedfields.FieldManager, error))()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return fm, nil
}

// replicaFields translates managed fields between a resource and its Scale.
func (r *resource) replicaFields(live []metav1.ManagedFieldsEntry) (*managedfields.ScaleHandler, error) {
	parts := []any{"spec", "replicas"}
	if r.Scale.Path != nil {
		parts = nil
		for _, p := range r.Scale.Path {
			parts = append(parts, p)
		}
	}
	path, err := fieldpath.MakePath(parts...)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("path of the replicas of %s: %w", r.gr, err))
	}
	gv := r.gvk.GroupVersion()
	return managedfields.NewScaleHandler(live, gv, managedfields.ResourcePathMappings{gv.String(): path}), nil
}
