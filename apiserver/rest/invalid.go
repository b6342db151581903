package rest

import (
	"slices"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

// invalid is the 422 of an object, with bad values as upstream shows them.
func invalid(kind schema.GroupKind, name string, errs field.ErrorList) error {
	// Rules that upstream declares speak once where written ones speak twice.
	errs = slices.CompactFunc(errs, func(a, b *field.Error) bool { return a.Field == b.Field && a.Error() == b.Error() })
	for _, e := range errs {
		e.BadValue = api.Internal(e.BadValue)
	}
	if kind.Group == eventsv1.GroupName {
		kind.Group = "" // events are validated as those of the core group
	}
	return apierrors.NewInvalid(kind, name, errs)
}
