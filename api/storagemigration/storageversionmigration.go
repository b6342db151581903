// Package storagemigration declares the resource of storagemigration.k8s.io.
//
// Owns: storageversionmigrations as objects. Must not: migrate.
package storagemigration

import (
	"strings"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

// Resources lists what the group serves.
func Resources() []*api.Resource { return []*api.Resource{storageVersionMigrations()} }

func storageVersionMigrations() *api.Resource {
	group := storagemigrationv1.SchemeGroupVersion.Group
	name := api.NameColumn()
	name.Format = ""
	return &api.Resource{
		Group: group, Version: "v1",
		Kind: "StorageVersionMigration", Plural: "storageversionmigrations",
		StoragePath:    "storageversionmigrations",
		StorageVersion: schema.GroupVersion{Group: group, Version: "v1beta1"},
		New:            func() api.Object { return &storagemigrationv1.StorageVersionMigration{} },
		NewList:        func() runtime.Object { return &storagemigrationv1.StorageVersionMigrationList{} },
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(m *storagemigrationv1.StorageVersionMigration) {
				m.Status = storagemigrationv1.StorageVersionMigrationStatus{}
			}),
			Validate:      api.Check(validateMigration),
			PrepareUpdate: api.OnUpdate(func(m, old *storagemigrationv1.StorageVersionMigration) { m.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(func(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
				return append(validateMigration(m), apivalidation.ValidateImmutableField(m.Spec, old.Spec, field.NewPath("spec"))...)
			}),
			RequireRevision: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(m, old *storagemigrationv1.StorageVersionMigration) {
					m.Spec = old.Spec
					metav1.ResetObjectMetaForStatus(&m.ObjectMeta, &old.ObjectMeta)
				}),
				ValidateUpdate:    api.CheckUpdate(validateMigrationStatus),
				RequireRevision:   true,
				IgnoredApplyPaths: []string{"metadata", "spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			name,
			api.Column("Resource", "string", "GroupResource to migrate", 0),
			api.Column("Status", "string", "Status of the migration", 0),
		},
		Row: api.Cells(func(m *storagemigrationv1.StorageVersionMigration, _ time.Time) []any {
			state := "Unknown"
			for _, c := range m.Status.Conditions {
				switch storagemigrationv1.MigrationConditionType(c.Type) {
				case storagemigrationv1.MigrationRunning, storagemigrationv1.MigrationFailed, storagemigrationv1.MigrationSucceeded:
					if c.Status == metav1.ConditionTrue {
						state = c.Type
					}
				}
			}
			return []any{m.Name, m.Spec.Resource.String(), state}
		}),
	}
}

func validateMigration(m *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	var errs field.ErrorList
	r, p := m.Spec.Resource, field.NewPath("spec", "resource")
	if r.Resource == "" {
		errs = append(errs, field.Required(p.Child("resource"), "resource is required to be set"))
	} else if msgs := validation.IsDNS1035Label(r.Resource); len(msgs) > 0 {
		errs = append(errs, field.Invalid(p.Child("resource"), r.Resource, strings.Join(msgs, ",")))
	}
	if msgs := validation.IsDNS1123Subdomain(r.Group); r.Group != "" && len(msgs) > 0 {
		errs = append(errs, field.Invalid(p.Child("group"), r.Group, strings.Join(msgs, ",")))
	}
	return errs
}

// validateMigrationStatus keeps the revision once set, and the outcome once true.
func validateMigrationStatus(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	var errs field.ErrorList
	p := field.NewPath("status")
	revision, conditions := p.Child("resourceVersion"), p.Child("conditions")
	s := &m.Status
	if s.ResourceVersion != "" {
		if _, err := resourceversion.CompareResourceVersion(s.ResourceVersion, s.ResourceVersion); err != nil {
			errs = append(errs, field.Invalid(revision, s.ResourceVersion, err.Error()))
		}
	}
	errs = append(errs, metav1validation.ValidateConditions(s.Conditions, conditions)...)
	if before := old.Status.ResourceVersion; before != "" && before != s.ResourceVersion {
		errs = append(errs, field.Invalid(revision, s.ResourceVersion, "field is immutable"))
	}
	holds := func(m *storagemigrationv1.StorageVersionMigration, c storagemigrationv1.MigrationConditionType) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, string(c))
	}
	const succeeded, failed = storagemigrationv1.MigrationSucceeded, storagemigrationv1.MigrationFailed
	if holds(m, succeeded) && holds(m, failed) {
		errs = append(errs, field.Invalid(conditions, s.Conditions, "Both success and failed conditions cannot be true at the same time"))
	}
	if holds(old, succeeded) && !holds(m, succeeded) {
		errs = append(errs, field.Invalid(conditions, s.Conditions, "Success condition cannot be set to false once it is true"))
	}
	if holds(old, failed) && !holds(m, failed) {
		errs = append(errs, field.Invalid(conditions, s.Conditions, "Failed condition cannot be set to false once it is true"))
	}
	return errs
}
