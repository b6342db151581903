package rest

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/apply"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// allVerbs are those of a resource that names none.
var allVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// resource is one served version with what the server knows beside its declaration.
type resource struct {
	*seams.Served
	g   *Registry
	gvk schema.GroupVersionKind
	gvr schema.GroupVersionResource
	gr  schema.GroupResource

	custom    bool   // objects are unstructured
	prefix    []byte // what every encoded object of a built-in kind begins with
	views     map[string]*view
	endpoints map[string]*seams.Endpoint
	hooks     []*seams.Hooks
	// gone closes when the resource is no longer served.
	gone chan struct{}
}

// view is the stored object under one path: the resource itself ("") or a subresource.
type view struct {
	*resource
	sub      string
	strategy *api.Strategy
	verbs    []string
	fields   func() (*managedfields.FieldManager, error)
}

func (g *Registry) newResource(s *seams.Served) *resource {
	r := &resource{Served: s, g: g, gvk: s.GVK(), gvr: s.GVR(), gr: s.GR(),
		prefix: fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, s.Kind, s.GVK().GroupVersion().String()),
		views:  map[string]*view{}, endpoints: map[string]*seams.Endpoint{}}
	if s.New != nil {
		_, r.custom = s.New().(*unstructured.Unstructured)
	}
	verbs := s.Verbs
	if verbs == nil {
		verbs = allVerbs
	}
	r.view("", &s.Strategy, verbs)
	for i := range s.Subresources {
		sub := &s.Subresources[i]
		v := sub.Verbs
		if v == nil {
			v = []string{"get", "patch", "update"}
		}
		r.view(sub.Name, &sub.Strategy, v)
	}
	for _, e := range g.EndpointsOf(r.gvr) {
		r.endpoints[e.Subresource] = e
	}
	for i := range g.Hooks {
		if g.Hooks[i].Resource == r.gr {
			r.hooks = append(r.hooks, &g.Hooks[i])
		}
	}
	return r
}

func (r *resource) view(name string, s *api.Strategy, verbs []string) {
	v := &view{resource: r, sub: name, strategy: s, verbs: verbs}
	v.fields = sync.OnceValues(func() (*managedfields.FieldManager, error) {
		types := r.Types
		if types == nil {
			var err error
			if types, err = r.g.types(); err != nil {
				return nil, fmt.Errorf("schema for managed fields: %w", err)
			}
		}
		return apply.NewManager(apply.Config{
			Types: types, Scheme: r.g.Scheme, Kind: r.gvk, Subresource: name, Custom: r.custom,
			Ignored: r.ignored(v), Default: r.fill, New: r.empty,
		})
	})
	r.views[name] = v
}

// ignored are the paths that the view does not own in managed fields.
func (r *resource) ignored(v *view) []string {
	switch {
	case v.strategy.IgnoredApplyPaths != nil:
		return v.strategy.IgnoredApplyPaths
	case v.sub == "status":
		return []string{"spec"}
	case v.sub != "":
		return nil
	}
	for _, s := range r.Subresources {
		if s.Name == "status" {
			return []string{"status"}
		}
	}
	return nil
}

func (v *view) allows(verb string) bool { return slices.Contains(v.verbs, verb) }

// fill applies defaults.
func (r *resource) fill(obj runtime.Object) {
	if r.Default != nil {
		r.Default(obj)
	}
}

// empty is a new object with its TypeMeta.
func (r *resource) empty() runtime.Object {
	obj := r.New()
	obj.GetObjectKind().SetGroupVersionKind(r.gvk)
	return obj
}

func (r *resource) listKind() string {
	if r.ListKind != "" {
		return r.ListKind
	}
	return r.Kind + "List"
}

func (r *resource) cache() (cacher.Resource, error) {
	key := r.Storage
	if key == "" {
		key = r.Group + "/" + r.Plural
	}
	c, ok := r.g.Caches.Resource(key)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("no storage for %s", r.gvr))
	}
	return c, nil
}

// seen is a stored object in this version. It is shared, never to be changed.
func (r *resource) seen(o cacher.Object) (runtime.Object, error) {
	if r.FromStored == nil {
		return o.Runtime(), nil
	}
	obj, err := r.FromStored(o.Runtime())
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("converting %s to %s: %w", r.gr, r.Version, err))
	}
	obj.GetObjectKind().SetGroupVersionKind(r.gvk)
	return obj, nil
}

func (r *resource) stored(obj runtime.Object) (runtime.Object, error) {
	if r.ToStored == nil {
		return obj, nil
	}
	out, err := r.ToStored(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("converting %s for storage: %w", r.gr, err))
	}
	return out, nil
}

func accessor(obj runtime.Object) metav1.Object {
	if m, ok := obj.(metav1.Object); ok {
		return m
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return &metav1.ObjectMeta{}
	}
	return m
}

// specChanged compares everything but metadata and status.
func specChanged(obj, old runtime.Object) bool {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return specMapChanged(u.Object, old.(*unstructured.Unstructured).Object)
	}
	a, b := reflect.ValueOf(obj).Elem(), reflect.ValueOf(old).Elem()
	if a.Type() != b.Type() {
		return true
	}
	for i := range a.NumField() {
		switch a.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
			continue
		}
		if !equal(a.Field(i).Interface(), b.Field(i).Interface()) {
			return true
		}
	}
	return false
}

func specMapChanged(a, b map[string]any) bool {
	skip := func(k string) bool { return k == "metadata" || k == "status" || k == "apiVersion" || k == "kind" }
	for k, v := range a {
		if w, ok := b[k]; !skip(k) && (!ok || !equal(v, w)) {
			return true
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok && !skip(k) {
			return true
		}
	}
	return false
}
