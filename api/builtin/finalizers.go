package builtin

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/meta"
)

// holdFinalizers adds the rule for finalizers of built-in kinds to a resource's
// validation. What extends the API itself is not held to it, and neither are events.
func holdFinalizers(r *api.Resource) {
	if r.StoragePath == "" || r.Plural == "events" || r.Group == "apiextensions.k8s.io" || r.Group == "apiregistration.k8s.io" {
		return
	}
	own := r.Validate
	r.Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList {
		errs := meta.BuiltinFinalizers(obj.(api.Object))
		if own != nil {
			errs = append(errs, own(ctx, obj)...)
		}
		return errs
	}
	holdOnUpdate(&r.Strategy)
	for i := range r.Subresources {
		holdOnUpdate(&r.Subresources[i].Strategy)
	}
}

func holdOnUpdate(s *api.Strategy) {
	own := s.ValidateUpdate
	s.ValidateUpdate = func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
		errs := meta.BuiltinFinalizers(obj.(api.Object))
		if own != nil {
			errs = append(errs, own(ctx, obj, old)...)
		}
		return errs
	}
}
