// Package coordination declares the resources of coordination.k8s.io.
//
// Owns: leases. Must not: elect anyone.
package coordination

import (
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

// Resources lists what the group serves.
func Resources() []*api.Resource { return []*api.Resource{leases()} }

func leases() *api.Resource {
	return &api.Resource{
		Group: coordinationv1.GroupName, Version: "v1",
		Kind: "Lease", Plural: "leases",
		Namespaced:  true,
		StoragePath: "leases",
		New:         func() api.Object { return &coordinationv1.Lease{} },
		NewList:     func() runtime.Object { return &coordinationv1.LeaseList{} },
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(l *coordinationv1.Lease) { dropCoordinated(l, &coordinationv1.Lease{}) }),
			PrepareUpdate: api.OnUpdate(dropCoordinated),
			Validate: api.Check(func(l *coordinationv1.Lease) field.ErrorList {
				return validateLeaseSpec(&l.Spec, field.NewPath("spec"))
			}),
			ValidateUpdate: api.CheckUpdate(func(l, _ *coordinationv1.Lease) field.ErrorList {
				return validateLeaseSpec(&l.Spec, field.NewPath("spec"))
			}),
			CreateOnUpdate:  true,
			RequireRevision: true,
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Holder", "string", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(l *coordinationv1.Lease, now time.Time) []any {
			return []any{l.Name, ptr.Deref(l.Spec.HolderIdentity, ""), api.Age(l.CreationTimestamp, now)}
		}),
	}
}

// dropCoordinated drops the fields of coordinated leader election (KEP-4355), whose gate
// is off, unless they are in use.
func dropCoordinated(l, old *coordinationv1.Lease) {
	if old.Spec.Strategy == nil {
		l.Spec.Strategy = nil
	}
	if old.Spec.PreferredHolder == nil {
		l.Spec.PreferredHolder = nil
	}
}

func validateLeaseSpec(s *coordinationv1.LeaseSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d := s.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(p.Child("leaseDurationSeconds"), d, "must be greater than 0"))
	}
	if n := s.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(p.Child("leaseTransitions"), n, "must be greater than or equal to 0"))
	}
	if s.Strategy != nil {
		errs = append(errs, validateStrategy(*s.Strategy, p.Child("strategy", "strategy"))...)
	}
	if ptr.Deref(s.PreferredHolder, "") != "" && ptr.Deref(s.Strategy, "") == "" {
		errs = append(errs, field.Forbidden(p.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
	}
	return errs
}

func validateStrategy(s coordinationv1.CoordinatedLeaseStrategy, p *field.Path) field.ErrorList {
	known := []coordinationv1.CoordinatedLeaseStrategy{coordinationv1.OldestEmulationVersion}
	if !strings.Contains(string(s), "/") {
		if slices.Contains(known, s) {
			return nil
		}
		return field.ErrorList{field.NotSupported(p, s, known)}
	}
	var errs field.ErrorList
	for _, msg := range validation.IsQualifiedName(string(s)) {
		errs = append(errs, field.Invalid(p, s, msg))
	}
	return errs
}
