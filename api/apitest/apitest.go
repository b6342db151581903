// Package apitest runs declared resources in tests the way the API server runs them.
//
// Owns: the order of defaulting, preparing and validating. Must not: be imported by
// anything but tests.
package apitest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

// Create defaults, prepares and validates a new object, and returns the errors as text.
func Create(r *api.Resource, obj runtime.Object) []string {
	ctx := context.Background()
	if r.Default != nil {
		r.Default(obj)
	}
	if r.PrepareCreate != nil {
		r.PrepareCreate(ctx, obj)
	}
	if r.Validate == nil {
		return nil
	}
	return Texts(r.Validate(ctx, obj))
}

// Update defaults, prepares and validates a changed object.
func Update(r *api.Resource, obj, old runtime.Object) []string {
	return update(r, r.Strategy, obj, old)
}

// UpdateSub does the same through a subresource.
func UpdateSub(t testing.TB, r *api.Resource, name string, obj, old runtime.Object) []string {
	t.Helper()
	for i := range r.Subresources {
		if r.Subresources[i].Name == name {
			return update(r, r.Subresources[i].Strategy, obj, old)
		}
	}
	t.Fatalf("%s has no subresource %s", r.Plural, name)
	return nil
}

func update(r *api.Resource, s api.Strategy, obj, old runtime.Object) []string {
	ctx := context.Background()
	if r.Default != nil {
		r.Default(obj)
	}
	if s.PrepareUpdate != nil {
		s.PrepareUpdate(ctx, obj, old)
	}
	if s.ValidateUpdate == nil {
		return nil
	}
	return Texts(s.ValidateUpdate(ctx, obj, old))
}

// Texts are the messages of errors.
func Texts(errs field.ErrorList) []string {
	var out []string
	for _, e := range errs {
		out = append(out, e.Error())
	}
	return out
}

// Want checks that each wanted text starts one error, in any order, and that there are
// no others.
func Want(t testing.TB, got []string, prefixes ...string) {
	t.Helper()
	rest := slices.Clone(got)
	for _, p := range prefixes {
		i := slices.IndexFunc(rest, func(s string) bool { return strings.HasPrefix(s, p) })
		if i < 0 {
			t.Errorf("no error %q in\n%s", p, strings.Join(got, "\n"))
			continue
		}
		rest = slices.Delete(rest, i, i+1)
	}
	if len(rest) > 0 {
		t.Errorf("unexpected errors:\n%s", strings.Join(rest, "\n"))
	}
}

// Row checks a printed row.
func Row(t testing.TB, got []any, want ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("row\n %q\nwant\n %q", got, want)
	}
}
