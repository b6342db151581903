package apiserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// AddStorage makes the stored resources known to caches. Resources that share a
// StoragePath (core and events.k8s.io Events) share the cache of the first.
func AddStorage(caches interface {
	Add(key string, r *api.Resource) error
}, resources []*api.Resource) error {
	first := map[string]bool{}
	for _, r := range resources {
		if r.StoragePath == "" || first[r.StoragePath] {
			continue
		}
		first[r.StoragePath] = true
		if err := caches.Add(cacher.Key(r), r); err != nil {
			return fmt.Errorf("storage of %s: %w", r.GR(), err)
		}
	}
	return nil
}

// deprecated are the served kinds that clients should leave, with what upstream warns of.
var deprecated = map[schema.GroupVersionKind]string{
	corev1.SchemeGroupVersion.WithKind("Endpoints"):       "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
	corev1.SchemeGroupVersion.WithKind("ComponentStatus"): "v1 ComponentStatus is deprecated in v1.19+",
}

// serve pairs resources with the storage that AddStorage gave them. One that shares
// another's is converted by the scheme's conversion functions.
func serve(scheme *runtime.Scheme, resources []*api.Resource) []*seams.Served {
	first := map[string]*api.Resource{}
	var out []*seams.Served
	for _, r := range resources {
		s := &seams.Served{Resource: r, Deprecated: deprecated[r.GVK()]}
		if owner := first[r.StoragePath]; r.StoragePath != "" && owner != nil {
			s.Storage = cacher.Key(owner)
			s.FromStored, s.ToStored = converter(scheme, r), converter(scheme, owner)
			s.StoredKind = owner.GVK()
		} else if r.StoragePath != "" {
			first[r.StoragePath] = r
		}
		out = append(out, s)
	}
	return out
}

// converter makes objects of a resource's kind out of those of another.
func converter(scheme *runtime.Scheme, to *api.Resource) func(runtime.Object) (runtime.Object, error) {
	return func(obj runtime.Object) (runtime.Object, error) {
		out := to.New()
		if err := scheme.Convert(obj, out, nil); err != nil {
			return nil, fmt.Errorf("converting %T to %s: %w", obj, to.GVK(), err)
		}
		out.GetObjectKind().SetGroupVersionKind(to.GVK())
		return out, nil
	}
}
