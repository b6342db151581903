// Package apply keeps metadata.managedFields and merges server-side apply
// configurations, over apimachinery's managedfields (KEP-555).
//
// Owns: the wiring of a field manager to kinds that have no internal version.
// Must not: store, or know HTTP.
package apply

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Config describes one endpoint to manage fields for.
type Config struct {
	Types       managedfields.TypeConverter
	Scheme      *runtime.Scheme
	Kind        schema.GroupVersionKind
	Subresource string
	// Custom objects are unstructured.
	Custom bool
	// Ignored are dotted paths whose ownership the endpoint does not track.
	Ignored []string
	Default func(runtime.Object)
	New     func() runtime.Object
}

// NewManager returns the field manager of an endpoint.
func NewManager(c Config) (*managedfields.FieldManager, error) {
	var reset map[fieldpath.APIVersion]fieldpath.Filter
	if len(c.Ignored) > 0 {
		set := fieldpath.NewSet()
		for _, p := range c.Ignored {
			var parts []any
			for _, s := range strings.Split(p, ".") {
				parts = append(parts, s)
			}
			path, err := fieldpath.MakePath(parts...)
			if err != nil {
				return nil, fmt.Errorf("field path %q of %s: %w", p, c.Kind, err)
			}
			set.Insert(path)
		}
		reset = map[fieldpath.APIVersion]fieldpath.Filter{
			fieldpath.APIVersion(c.Kind.GroupVersion().String()): fieldpath.NewExcludeSetFilter(set),
		}
	}
	k := kinds{c}
	build := managedfields.NewDefaultFieldManager
	if c.Custom {
		build = managedfields.NewDefaultCRDFieldManager
	}
	m, err := build(c.Types, k, k, k, c.Kind, c.Kind.GroupVersion(), c.Subresource, reset)
	if err != nil {
		return nil, fmt.Errorf("field manager of %s: %w", c.Kind, err)
	}
	return m, nil
}

// kinds converts, defaults and creates for a kind that lives in its served version.
type kinds struct{ c Config }

func (k kinds) Default(obj runtime.Object) {
	if k.c.Default != nil {
		k.c.Default(obj)
	}
}

func (k kinds) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	if kind == k.c.Kind {
		return k.c.New(), nil
	}
	return k.c.Scheme.New(kind)
}

func (k kinds) Convert(in, out, context any) error { return k.c.Scheme.Convert(in, out, context) }

func (k kinds) ConvertFieldLabel(gvk schema.GroupVersionKind, label, value string) (string, string, error) {
	return k.c.Scheme.ConvertFieldLabel(gvk, label, value)
}

// ConvertToVersion returns its argument where nothing is to be done: the manager
// does not change what it gets.
func (k kinds) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	from := in.GetObjectKind().GroupVersionKind()
	target, ok := to.KindForGroupVersionKinds([]schema.GroupVersionKind{from})
	if !ok || target.GroupVersion() != from.GroupVersion() {
		if k.c.Custom {
			return k.convertCustom(in, from, to)
		}
		return k.c.Scheme.ConvertToVersion(in, to)
	}
	u, ok := in.(*unstructured.Unstructured)
	if !ok || k.c.Custom {
		return in, nil
	}
	// What merges by a deduced schema comes back unstructured.
	obj, err := k.New(from)
	if err != nil {
		return nil, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj); err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(from)
	return obj, nil
}

// convertCustom moves a custom object to another version of its group: the only
// conversion there is without a webhook.
func (k kinds) convertCustom(in runtime.Object, from schema.GroupVersionKind, to runtime.GroupVersioner) (runtime.Object, error) {
	gv, ok := to.(schema.GroupVersion)
	u, isCustom := in.(*unstructured.Unstructured)
	if !ok || !isCustom || gv.Group != from.Group {
		return nil, runtime.NewNotRegisteredGVKErrForTarget("custom resources", from, to)
	}
	out := u.DeepCopy()
	out.SetGroupVersionKind(gv.WithKind(from.Kind))
	return out, nil
}
