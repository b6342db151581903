package match

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Catalog is what the server serves.
type Catalog interface {
	// Served are the versions of a resource.
	Served(gr schema.GroupResource) []*seams.Served
	// All are all resources in all versions.
	All() []*seams.Served
	// TypeConverter gives the schema of built-in kinds.
	TypeConverter() (managedfields.TypeConverter, error)
}

// Write is one request as webhooks and policies look at it.
type Write struct {
	*seams.Attributes
	caches  lookup.Caches
	catalog Catalog

	views     map[schema.GroupVersionKind]*admission.VersionedAttributes
	namespace *corev1.Namespace
	hits      []Hit
	asked     bool
}

// NewWrite wraps attributes; catalog may be nil, which means one version of everything.
func NewWrite(a *seams.Attributes, caches lookup.Caches, catalog Catalog) *Write {
	return &Write{Attributes: a, caches: caches, catalog: catalog}
}

// TheNamespace is the namespace that the object is in; nil for cluster-scoped ones and
// namespaces themselves.
func (w *Write) TheNamespace(ctx context.Context) (*corev1.Namespace, error) {
	if w.Namespace == "" || isNamespace(w) {
		return nil, nil
	}
	return w.namespaceNamed(ctx, w.Namespace)
}

func (w *Write) namespaceNamed(ctx context.Context, name string) (*corev1.Namespace, error) {
	if w.namespace == nil {
		ns, err := lookup.CachedOrFresh[*corev1.Namespace](ctx, w.caches, schema.GroupResource{Resource: "namespaces"}, "", name)
		if err != nil {
			return nil, err
		}
		w.namespace = ns
	}
	return w.namespace, nil
}

// served is the resource of the write in one version.
func (w *Write) served(version string) *seams.Served {
	if w.catalog == nil {
		return nil
	}
	for _, s := range w.catalog.Served(w.Resource.GroupResource()) {
		if s.Version == version {
			return s
		}
	}
	return nil
}

// others are the other versions of the resource. The kind of a subresource of its own
// (Scale, Eviction) is the same in all of them.
func (w *Write) others() []Hit {
	if w.asked || w.catalog == nil {
		return w.hits
	}
	w.asked = true
	all := w.catalog.Served(w.Resource.GroupResource())
	own := w.served(w.Resource.Version)
	for _, s := range all {
		if s.Version == w.Resource.Version {
			continue
		}
		hit := Hit{s.GVR(), w.Kind}
		if own != nil && own.GVK() == w.Kind {
			hit.Kind = s.GVK()
		}
		w.hits = append(w.hits, hit)
	}
	return w.hits
}

// View shows the write with its objects in a kind.
func (w *Write) View(kind schema.GroupVersionKind) (*admission.VersionedAttributes, error) {
	if v, ok := w.views[kind]; ok {
		return v, nil
	}
	obj, err := w.as(w.Object, kind)
	if err != nil {
		return nil, err
	}
	old, err := w.as(w.OldObject, kind)
	if err != nil {
		return nil, err
	}
	v := &admission.VersionedAttributes{
		Attributes: admission.NewAttributesRecord(w.Object, w.OldObject, w.Kind, w.Namespace, w.Name, w.Resource, w.Subresource,
			admission.Operation(w.Operation), w.Options, w.DryRun, w.User),
		VersionedKind:      kind,
		VersionedObject:    admission.NewLazyObject(obj),
		VersionedOldObject: admission.NewLazyObject(old),
	}
	if w.views == nil {
		w.views = map[schema.GroupVersionKind]*admission.VersionedAttributes{}
	}
	w.views[kind] = v
	return v, nil
}

// as converts an object of the request's kind; the result names its kind, the argument stays as it is.
func (w *Write) as(obj runtime.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	if obj == nil {
		return nil, nil
	}
	if kind == w.Kind {
		return Named(obj, kind), nil
	}
	from, to := w.served(w.Kind.Version), w.served(kind.Version)
	if from == nil || to == nil {
		return nil, fmt.Errorf("convert %s to %s: not served", w.Kind, kind)
	}
	out, err := convert(obj, from, to)
	if err != nil {
		return nil, err
	}
	return Named(out, kind), nil
}

func convert(obj runtime.Object, from, to *seams.Served) (runtime.Object, error) {
	var err error
	if from.ToStored != nil {
		if obj, err = from.ToStored(obj); err != nil {
			return nil, fmt.Errorf("convert %s to its stored version: %w", from.GVK(), err)
		}
	}
	if to.FromStored != nil {
		if obj, err = to.FromStored(obj); err != nil {
			return nil, fmt.Errorf("convert to %s: %w", to.GVK(), err)
		}
	}
	return obj, nil
}

// Set makes obj, of the kind given and private to the caller, the object of the write: pruned,
// defaulted and in the version of the request.
func (w *Write) Set(obj runtime.Object, kind schema.GroupVersionKind) error {
	if s := w.served(kind.Version); s != nil && s.GVK() == kind {
		if s.Prune != nil {
			s.Prune(obj)
		}
		if s.Default != nil {
			s.Default(obj)
		}
		if kind != w.Kind {
			own := w.served(w.Kind.Version)
			if own == nil {
				return fmt.Errorf("convert %s to %s: not served", kind, w.Kind)
			}
			var err error
			if obj, err = convert(obj, s, own); err != nil {
				return err
			}
		}
	}
	if err := replace(w.Object, obj); err != nil {
		return err
	}
	w.views = nil
	return nil
}

// replace makes *dst what *src is, but for the kind and version it names.
func replace(dst, src runtime.Object) error {
	if d, ok := dst.(*unstructured.Unstructured); ok {
		s, ok := src.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("replace %T by %T", dst, src)
		}
		d.Object = s.Object
		return nil
	}
	d, s := reflect.ValueOf(dst), reflect.ValueOf(src)
	if d.Type() != s.Type() {
		return fmt.Errorf("replace %T by %T", dst, src)
	}
	kind := dst.GetObjectKind().GroupVersionKind()
	d.Elem().Set(s.Elem())
	dst.GetObjectKind().SetGroupVersionKind(kind)
	return nil
}

// Named is obj with its kind in its TypeMeta, in a shallow copy if it had none.
func Named(obj runtime.Object, kind schema.GroupVersionKind) runtime.Object {
	if obj.GetObjectKind().GroupVersionKind() == kind {
		return obj
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u = u.DeepCopy()
		u.SetGroupVersionKind(kind)
		return u
	}
	out := reflect.New(reflect.TypeOf(obj).Elem())
	out.Elem().Set(reflect.ValueOf(obj).Elem())
	named := out.Interface().(runtime.Object)
	named.GetObjectKind().SetGroupVersionKind(kind)
	return named
}
