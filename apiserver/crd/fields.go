package crd

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// selectByVersion makes lists and watches select by the fields of the version that they are
// for (KEP-4358), whichever version the cached object is in: the cache knows a field of a
// version as VERSION/field. Where a webhook converts, an object is converted only for
// a selector that names a field of another version than its own.
func selectByVersion(cached *api.Resource, served []*seams.Served, versions []*version, convert converter, mixed bool) {
	if len(versions) == 1 {
		return
	}
	cached.Fields, cached.FieldLabels = nil, nil
	of := map[string]func(runtime.Object) (fields.Set, error){}
	for _, v := range versions {
		labels, values := v.selectable()
		if len(labels) == 0 {
			continue
		}
		for _, s := range served {
			if s.Version != v.Name {
				continue
			}
			s.FieldAliases = make(map[string]string, len(labels))
			for _, l := range labels {
				s.FieldAliases[l] = v.Name + "/" + l
			}
		}
		seen := convert.converted(v)
		of[v.Name] = func(obj runtime.Object) (fields.Set, error) {
			if u := obj.(*unstructured.Unstructured); mixed && u.GroupVersionKind() != v.gvk {
				var err error
				if obj, err = seen(obj); err != nil {
					return nil, err
				}
			}
			set := make(fields.Set, len(labels))
			for l, value := range values(obj) {
				set[v.Name+"/"+l] = value
			}
			return set, nil
		}
	}
	if len(of) == 0 {
		return
	}
	cached.SelectedFields = func(obj runtime.Object, names []string) (fields.Set, error) {
		all := fields.Set{}
		for _, name := range names {
			version, _, _ := strings.Cut(name, "/")
			if _, have := all[name]; have || of[version] == nil {
				continue
			}
			set, err := of[version](obj)
			if err != nil {
				return nil, fmt.Errorf("select by a field of %s: %w", version, err)
			}
			for k, v := range set {
				all[k] = v
			}
		}
		return all, nil
	}
}
