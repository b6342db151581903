package rest

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// direct is a resource for the server's own endpoints: generic behaviour without
// authorization, admission and managed fields.
type direct struct{ r *resource }

var _ seams.Store = (*direct)(nil)

func (d *direct) Get(ctx context.Context, namespace, name, resourceVersion string) (cacher.Object, error) {
	cache, err := d.r.cache()
	if err != nil {
		return nil, err
	}
	return cache.Get(ctx, namespace, name, resourceVersion)
}

func (d *direct) Update(ctx context.Context, namespace, name, subresource string, dryRun bool,
	change func(runtime.Object) (runtime.Object, error)) (runtime.Object, error) {
	v := d.r.views[subresource]
	if v == nil {
		return nil, apierrors.NewNotFound(d.r.gr, name+"/"+subresource)
	}
	w := &write{view: v, namespace: namespace, name: name, dryRun: dryRun, options: &metav1.UpdateOptions{}}
	res, err := w.update(ctx, false, cacher.Preconditions{}, func(_ context.Context, live runtime.Object) (runtime.Object, error) {
		return change(live.DeepCopyObject())
	})
	return d.object(res, err)
}

func (d *direct) Delete(ctx context.Context, namespace, name string, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if o == nil {
		o = &metav1.DeleteOptions{}
	}
	w := &write{view: d.r.views[""], namespace: namespace, name: name, dryRun: len(o.DryRun) > 0, options: o}
	res, err := w.delete(ctx, o)
	obj, err := d.object(res, err)
	return obj, res.gone, err
}

func (d *direct) object(res result, err error) (runtime.Object, error) {
	switch {
	case err != nil:
		return nil, err
	case res.stored != nil:
		return d.r.seen(res.stored)
	}
	return res.obj, nil
}
