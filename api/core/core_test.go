package core

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/api"
)

// resourceNamed is the declaration that a test is about.
func resourceNamed(t *testing.T, plural string) *api.Resource {
	t.Helper()
	for _, r := range Resources() {
		if r.Plural == plural {
			return r
		}
	}
	t.Fatalf("no resource %q", plural)
	return nil
}

// parse reads an object and defaults it, as a request does.
func parse[T api.Object](t *testing.T, r *api.Resource, text string) T {
	t.Helper()
	obj := r.New()
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(text, "\t", "  ")), obj); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if r.Default != nil {
		r.Default(obj)
	}
	return obj.(T)
}

// created is what the resource makes of a new object.
func created(t *testing.T, r *api.Resource, obj runtime.Object) []string {
	t.Helper()
	if r.PrepareCreate != nil {
		r.PrepareCreate(t.Context(), obj)
	}
	return messages(r.Validate(t.Context(), obj))
}

// updated is what one of its strategies makes of an update.
func updated(t *testing.T, s api.Strategy, obj, old runtime.Object) []string {
	t.Helper()
	if s.PrepareUpdate != nil {
		s.PrepareUpdate(t.Context(), obj, old)
	}
	return messages(s.ValidateUpdate(t.Context(), obj, old))
}

func subresource(t *testing.T, r *api.Resource, name string) api.Strategy {
	t.Helper()
	for _, s := range r.Subresources {
		if s.Name == name {
			return s.Strategy
		}
	}
	t.Fatalf("%s has no subresource %q", r.Plural, name)
	return api.Strategy{}
}

func messages(errs field.ErrorList) []string {
	var list []string
	for _, e := range errs {
		list = append(list, e.Error())
	}
	return list
}

// expect compares errors; a want that ends in "…" is a prefix.
func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	same := slices.EqualFunc(got, want, func(g, w string) bool {
		if prefix, cut := strings.CutSuffix(w, "…"); cut {
			return strings.HasPrefix(g, prefix)
		}
		return g == w
	})
	if !same {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
