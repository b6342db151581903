package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api/resource"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// deviceAdmin lets only namespaces that are meant for it hold claims to devices as their
// administrator (KEP-5018). Upstream checks it where it validates; it needs the namespace, which
// validation here does not see.
type deviceAdmin struct {
	validating
	caches lookup.Caches
}

// Validate implements seams.Admission.
func (d *deviceAdmin) Validate(ctx context.Context, a *seams.Attributes) error {
	if a.Resource.Group != resourcev1.GroupName || a.Object == nil || a.Operation == seams.Delete {
		return nil
	}
	var old runtime.Object
	if a.Operation == seams.Update {
		if a.Subresource != "status" {
			return nil // the spec does not change
		}
		old = a.OldObject
	}
	path := resource.WantsAdmin(a.Object, old)
	if path == nil {
		return nil
	}
	invalid := func(err *field.Error) error {
		return apierrors.NewInvalid(a.Kind.GroupKind(), nameOf(a), field.ErrorList{err})
	}
	ns, err := lookup.CachedOrFresh[*corev1.Namespace](ctx, d.caches, namespaces, "", a.Namespace)
	if err != nil {
		return invalid(field.InternalError(path, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err)))
	}
	if ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] != "true" {
		return invalid(field.Forbidden(path, fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace", resourcev1.DRAAdminNamespaceLabelKey)))
	}
	return nil
}
