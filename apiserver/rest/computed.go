package rest

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
)

// Computed makes the objects of a resource that is not stored.
type Computed func(ctx context.Context) []runtime.Object

// computed answers get and list.
func (c *call) computed(make Computed) error {
	if err := c.negotiate(); err != nil {
		return err
	}
	switch c.info.Verb {
	case "get":
		for _, obj := range make(c.ctx) {
			if m := accessor(obj); m.GetName() == c.name && m.GetNamespace() == c.info.Namespace {
				obj.GetObjectKind().SetGroupVersionKind(c.r.gvk)
				return c.object(http.StatusOK, obj)
			}
		}
		return apierrors.NewNotFound(c.r.gr, c.name)
	case "list":
	default:
		return methodNotAllowed()
	}
	opts, err := c.listOptions()
	if err != nil {
		return err
	}
	if opts.Watch {
		return apierrors.NewMethodNotSupported(c.r.gr, "watch")
	}
	var objs []runtime.Object
	for _, obj := range make(c.ctx) {
		m := accessor(obj)
		if c.info.Namespace != "" && m.GetNamespace() != c.info.Namespace {
			continue
		}
		if opts.LabelSelector != nil && !opts.LabelSelector.Matches(labels.Set(m.GetLabels())) ||
			opts.FieldSelector != nil && !opts.FieldSelector.Matches(fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}) {
			continue
		}
		objs = append(objs, obj)
	}
	if c.out.As != nil {
		for _, obj := range objs {
			obj.GetObjectKind().SetGroupVersionKind(c.r.gvk)
		}
		obj, err := c.transform(objs, &cacher.List{}, metav1.ListMeta{})
		if err != nil {
			return err
		}
		return c.encode(http.StatusOK, obj)
	}
	list := c.r.NewList()
	if err := meta.SetList(list, objs); err != nil {
		return apierrors.NewInternalError(err)
	}
	list.GetObjectKind().SetGroupVersionKind(c.r.gvk.GroupVersion().WithKind(c.r.listKind()))
	return c.encode(http.StatusOK, list)
}
