package core

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func persistentVolumeClaims() *api.Resource {
	doc := v1.PersistentVolumeClaimSpec{}.SwaggerDoc()
	status := v1.PersistentVolumeClaimStatus{}.SwaggerDoc()
	return &api.Resource{
		Version: "v1", Kind: "PersistentVolumeClaim", Plural: "persistentvolumeclaims", ShortNames: []string{"pvc"},
		Namespaced: true, StoragePath: "persistentvolumeclaims",
		New:     func() api.Object { return &v1.PersistentVolumeClaim{} },
		NewList: func() runtime.Object { return &v1.PersistentVolumeClaimList{} },
		Default: api.Defaults(DefaultPersistentVolumeClaim),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(c *v1.PersistentVolumeClaim) {
				c.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending}
				PrepareClaimSpec(&c.Spec, nil)
			}),
			Validate: api.Check(func(c *v1.PersistentVolumeClaim) field.ErrorList {
				return ValidateClaimSpec(&c.Spec, nil, field.NewPath("spec"))
			}),
			PrepareUpdate: api.OnUpdate(func(c, old *v1.PersistentVolumeClaim) {
				c.Status = old.Status
				PrepareClaimSpec(&c.Spec, &old.Spec)
			}),
			ValidateUpdate: api.CheckUpdate(validateClaimUpdate),
			Warnings:       api.Warn(func(c, _ *v1.PersistentVolumeClaim) []string { return claimWarnings(c) }),
		},
		Subresources: []api.Subresource{{Name: "status", Verbs: []string{"get", "patch", "update"}, Strategy: api.Strategy{
			PrepareUpdate: api.OnUpdate(func(c, old *v1.PersistentVolumeClaim) {
				c.Spec = old.Spec
				if old.Status.HealthStatus == nil { // CSIVolumeHealth is off
					c.Status.HealthStatus = nil
				}
			}),
			ValidateUpdate:    api.CheckUpdate(func(c, _ *v1.PersistentVolumeClaim) field.ErrorList { return validateClaimStatus(c) }),
			IgnoredApplyPaths: []string{"spec"},
		}}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Status", "string", status["phase"], 0),
			api.Column("Volume", "string", doc["volumeName"], 0),
			api.Column("Capacity", "string", status["capacity"], 0),
			api.Column("Access Modes", "string", status["accessModes"], 0),
			api.Column("StorageClass", "string", "StorageClass of the pvc", 0),
			api.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc", 0),
			api.AgeColumn(),
			api.Column("VolumeMode", "string", doc["volumeMode"], api.Wide),
		},
		Row: api.Cells(claimRow),
	}
}

func claimRow(c *v1.PersistentVolumeClaim, now time.Time) []any {
	phase := string(c.Status.Phase)
	if c.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	capacity, modes := "", ""
	if c.Spec.VolumeName != "" {
		q := c.Status.Capacity[v1.ResourceStorage]
		capacity, modes = q.String(), accessModes(c.Status.AccessModes)
	}
	class, has := c.Annotations[v1.BetaStorageClassAnnotation]
	if !has && c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	return []any{
		c.Name, phase, c.Spec.VolumeName, capacity, modes, class, orUnset(c.Spec.VolumeAttributesClassName),
		api.Age(c.CreationTimestamp, now), orUnset(c.Spec.VolumeMode),
	}
}

// PrepareClaimSpec makes dataSource and dataSourceRef agree (KEP-1495). old is
// nil on create.
func PrepareClaimSpec(s, old *v1.PersistentVolumeClaimSpec) {
	crossNamespace := s.DataSourceRef != nil && s.DataSourceRef.Namespace != nil && *s.DataSourceRef.Namespace != ""
	if crossNamespace && (old == nil || old.DataSourceRef == nil) { // CrossNamespaceVolumeDataSource is off
		s.DataSourceRef = nil
	}
	had := old != nil && (old.DataSource != nil || old.DataSourceRef != nil)
	if !had && s.DataSourceRef == nil && !claimOrSnapshot(s.DataSource) {
		s.DataSource = nil // anything else always was ignored in this field
	}
	switch {
	case s.DataSource != nil && s.DataSourceRef == nil:
		s.DataSourceRef = &v1.TypedObjectReference{APIGroup: clone(s.DataSource.APIGroup), Kind: s.DataSource.Kind, Name: s.DataSource.Name}
	case s.DataSource == nil && s.DataSourceRef != nil && (s.DataSourceRef.Namespace == nil || *s.DataSourceRef.Namespace == ""):
		s.DataSource = &v1.TypedLocalObjectReference{APIGroup: clone(s.DataSourceRef.APIGroup), Kind: s.DataSourceRef.Kind, Name: s.DataSourceRef.Name}
	}
}

func claimOrSnapshot(s *v1.TypedLocalObjectReference) bool {
	if s == nil {
		return false
	}
	group := ""
	if s.APIGroup != nil {
		group = *s.APIGroup
	}
	return s.Kind == "PersistentVolumeClaim" && group == "" || s.Kind == "VolumeSnapshot" && group == "snapshot.storage.k8s.io"
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

func claimWarnings(c *v1.PersistentVolumeClaim) []string {
	var warnings []string
	if _, has := c.Annotations[v1.BetaStorageClassAnnotation]; has {
		warnings = append(warnings, fmt.Sprintf("%s: %s",
			field.NewPath("metadata", "annotations").Key(v1.BetaStorageClassAnnotation), deprecatedClassAnnotation))
	}
	return append(warnings, ClaimSpecWarnings(&c.Spec, field.NewPath("spec"))...)
}

// ClaimSpecWarnings tells about sizes that are no whole number of bytes.
func ClaimSpecWarnings(s *v1.PersistentVolumeClaimSpec, p *field.Path) []string {
	var warnings []string
	for _, l := range []struct {
		name string
		list v1.ResourceList
	}{{"requests", s.Resources.Requests}, {"limits", s.Resources.Limits}} {
		q := l.list[v1.ResourceStorage]
		if q.MilliValue()%1000 != 0 {
			warnings = append(warnings, fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer",
				p.Child("resources").Child(l.name).Key(v1.ResourceStorage.String()), q.String()))
		}
	}
	return warnings
}
