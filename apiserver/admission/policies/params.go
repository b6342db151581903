package policies

import (
	"context"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// params are what a policy is evaluated with through a binding, once for each: one nil where
// it has none, nothing where there are none and the binding accepts that.
func (c *Config) params(ctx context.Context, w *match.Write, kind *admissionregistrationv1.ParamKind, ref *admissionregistrationv1.ParamRef) ([]runtime.Object, error) {
	if kind == nil || ref == nil {
		return []runtime.Object{nil}, nil
	}
	served, err := c.paramResource(kind)
	if err != nil {
		return nil, err
	}
	namespace := ""
	if served.Namespaced {
		if namespace = ref.Namespace; namespace == "" {
			namespace = w.Namespace
		}
		if namespace == "" {
			return nil, errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
		}
	} else if ref.Namespace != "" {
		return nil, errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	}
	found, err := c.findParams(ctx, served, namespace, ref)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 && ref.ParameterNotFoundAction != nil && *ref.ParameterNotFoundAction == admissionregistrationv1.DenyAction {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction")
	}
	return found, nil
}

func (c *Config) paramResource(kind *admissionregistrationv1.ParamKind) (*seams.Served, error) {
	gvk := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind)
	if catalog := c.Catalog(); catalog != nil {
		for _, s := range catalog.All() {
			if s.GVK() == gvk && s.StoragePath != "" {
				return s, nil
			}
		}
	}
	return nil, fmt.Errorf("failed to find resource referenced by paramKind: '%v'", gvk)
}

func (c *Config) findParams(ctx context.Context, served *seams.Served, namespace string, ref *admissionregistrationv1.ParamRef) ([]runtime.Object, error) {
	key := served.Storage
	if key == "" {
		key = cacher.Key(served.Resource)
	}
	r, ok := c.Caches.Resource(key)
	if !ok {
		return nil, fmt.Errorf("resource %s has no cache", key)
	}
	if ref.Name != "" {
		obj, err := r.Get(ctx, namespace, ref.Name, "0")
		if apierrors.IsNotFound(err) {
			obj, err = r.Get(ctx, namespace, ref.Name, "")
		}
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		p, err := param(served, obj)
		return []runtime.Object{p}, err
	}
	selector, err := metav1.LabelSelectorAsSelector(ref.Selector)
	if err != nil {
		return nil, err
	}
	l, err := r.List(ctx, cacher.ListOptions{Selection: cacher.Selection{Namespace: namespace}, ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	var out []runtime.Object
	for _, obj := range l.Items {
		if !selector.Matches(labels.Set(obj.Meta().GetLabels())) {
			continue
		}
		p, err := param(served, obj)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// param shows a cached object as the kind that the policy names.
func param(served *seams.Served, o cacher.Object) (runtime.Object, error) {
	obj := o.Runtime()
	if served.FromStored != nil {
		var err error
		if obj, err = served.FromStored(obj); err != nil {
			return nil, err
		}
	}
	return match.Named(obj, served.GVK()), nil
}
