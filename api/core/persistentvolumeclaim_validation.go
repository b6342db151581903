package core

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/podfit"
)

// ValidateClaimSpec validates the spec of a claim, or of a template for claims.
// What old (nil on create) already holds is not refused for newer rules.
func ValidateClaimSpec(s, old *v1.PersistentVolumeClaimSpec, p *field.Path) field.ErrorList {
	errs := validateAccessModes(s.AccessModes, "at least 1 access mode is required", p.Child("accessModes"))
	if s.Selector != nil {
		lax := old != nil && old.Selector != nil &&
			len(metav1validation.ValidateLabelSelector(old.Selector, metav1validation.LabelSelectorValidationOptions{}, p)) > 0
		errs = append(errs, metav1validation.ValidateLabelSelector(s.Selector,
			metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: lax}, p.Child("selector"))...)
	}
	storage := p.Child("resources").Key(string(v1.ResourceStorage))
	if q, has := s.Resources.Requests[v1.ResourceStorage]; !has {
		errs = append(errs, field.Required(storage, ""))
	} else if q.Sign() <= 0 {
		errs = append(errs, field.Invalid(storage, q.String(), "must be greater than zero"))
	}
	if s.StorageClassName != nil && *s.StorageClassName != "" {
		errs = append(errs, dnsSubdomain(*s.StorageClassName, p.Child("storageClassName"))...)
	}
	if s.VolumeMode != nil {
		errs = append(errs, supported(*s.VolumeMode, p.Child("volumeMode"), v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem)...)
	}
	errs = append(errs, validateDataSources(s, old, p)...)
	if c := s.VolumeAttributesClassName; c != nil && *c != "" {
		errs = append(errs, dnsSubdomain(*c, p.Child("volumeAttributesClassName"))...)
	}
	return errs
}

func validateDataSources(s, old *v1.PersistentVolumeClaimSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	laxGroup := old != nil && (old.DataSource != nil && old.DataSource.APIGroup != nil || old.DataSourceRef != nil && old.DataSourceRef.APIGroup != nil)
	source := func(group *string, kind, name string, p *field.Path) {
		if name == "" {
			errs = append(errs, field.Required(p.Child("name"), ""))
		}
		if kind == "" {
			errs = append(errs, field.Required(p.Child("kind"), ""))
		}
		if group == nil || *group == "" {
			if kind != "PersistentVolumeClaim" {
				errs = append(errs, field.Invalid(p, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
			}
		} else if !laxGroup {
			errs = append(errs, dnsSubdomain(*group, p.Child("apiGroup"))...)
		}
	}
	if d := s.DataSource; d != nil {
		source(d.APIGroup, d.Kind, d.Name, p.Child("dataSource"))
	}
	d := s.DataSourceRef
	if d == nil {
		return errs
	}
	source(d.APIGroup, d.Kind, d.Name, p.Child("dataSourceRef"))
	if d.Namespace != nil && *d.Namespace != "" {
		errs = append(errs, invalid(p.Child("dataSourceRef", "namespace"), *d.Namespace, apivalidation.ValidateNamespaceName(*d.Namespace, false))...)
		if s.DataSource != nil {
			errs = append(errs, field.Invalid(p, p.Child("dataSource"), "may not be specified when dataSourceRef.namespace is specified"))
		}
	} else if s.DataSource != nil && (!equal(s.DataSource.APIGroup, d.APIGroup) || s.DataSource.Kind != d.Kind || s.DataSource.Name != d.Name) {
		errs = append(errs, field.Invalid(p, p.Child("dataSource"), "must match dataSourceRef"))
	}
	return errs
}

// validateClaimUpdate keeps the spec as it is but for what binding, expansion and
// attribute classes change.
func validateClaimUpdate(c, old *v1.PersistentVolumeClaim) field.ErrorList {
	errs := ValidateClaimSpec(&c.Spec, &old.Spec, field.NewPath("spec"))
	now, before := c.DeepCopy(), old.DeepCopy()
	if before.Spec.VolumeName == "" {
		before.Spec.VolumeName = now.Spec.VolumeName
	}
	const beta = v1.BetaStorageClassAnnotation
	class, newClass := before.Spec.StorageClassName, now.Spec.StorageClassName
	oldBeta, hadBeta := old.Annotations[beta]
	newBeta, hasBeta := c.Annotations[beta]
	unset := class == nil && newClass != nil
	switch {
	case unset && hadBeta && *newClass == oldBeta && (!hasBeta || newBeta == oldBeta):
		// The class moves from the annotation to the field.
		now.Spec.StorageClassName = nil
		metav1.SetMetaDataAnnotation(&now.ObjectMeta, beta, oldBeta)
	default:
		if oldBeta != newBeta {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations", beta), newBeta, apivalidation.FieldImmutableErrorMsg))
		}
		if unset && (!hadBeta || *newClass == oldBeta) {
			now.Spec.StorageClassName = nil // a default class was found later
		}
	}
	if c.Status.Phase == v1.ClaimBound {
		if now.Spec.Resources.Requests != nil {
			now.Spec.Resources.Requests[v1.ResourceStorage] = old.Spec.Resources.Requests[v1.ResourceStorage]
		}
		now.Spec.VolumeAttributesClassName = before.Spec.VolumeAttributesClassName
	}
	p := field.NewPath("spec")
	// The same normalisation that the new spec went through.
	PrepareClaimSpec(&before.Spec, &old.Spec)
	if !equality.Semantic.DeepEqual(now.Spec, before.Spec) {
		errs = append(errs, field.Forbidden(p, fmt.Sprintf(
			"spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n%v",
			diff.Diff(api.Internal(before.Spec), api.Internal(now.Spec)))))
	}
	size, oldSize := c.Spec.Resources.Requests[v1.ResourceStorage], old.Spec.Resources.Requests[v1.ResourceStorage]
	if granted := old.Status.Capacity[v1.ResourceStorage]; size.Cmp(oldSize) < 0 && size.Cmp(granted) <= 0 {
		errs = append(errs, field.Forbidden(p.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
	}
	errs = append(errs, immutable(c.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	attributes := p.Child("volumeAttributesClassName")
	if !equal(c.Spec.VolumeAttributesClassName, old.Spec.VolumeAttributesClassName) && old.Status.CurrentVolumeAttributesClassName != nil {
		switch name := c.Spec.VolumeAttributesClassName; {
		case name == nil:
			errs = append(errs, field.Forbidden(attributes, "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil"))
		case *name == "":
			errs = append(errs, field.Forbidden(attributes, "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil"))
		}
	}
	return errs
}

func validateClaimStatus(c *v1.PersistentVolumeClaim) field.ErrorList {
	var errs field.ErrorList
	if len(c.Spec.AccessModes) == 0 {
		errs = append(errs, field.Required(field.NewPath("Spec", "accessModes"), ""))
	}
	p := field.NewPath("status")
	for _, name := range sortedKeys(c.Status.Capacity) {
		errs = append(errs, amount(c.Status.Capacity[name], p.Child("capacity").Key(string(name)))...)
	}
	for _, name := range sortedKeys(c.Status.AllocatedResourceStatuses) {
		errs = append(errs, claimResourceName(name, p.Child("allocatedResourceStatuses"))...)
		statuses := []v1.ClaimResourceStatus{
			v1.PersistentVolumeClaimControllerResizeInProgress, v1.PersistentVolumeClaimControllerResizeInfeasible,
			v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimNodeResizeInProgress,
			v1.PersistentVolumeClaimNodeResizeInfeasible,
		}
		if !slices.Contains(statuses, c.Status.AllocatedResourceStatuses[name]) {
			slices.Sort(statuses)
			// Upstream names the resource here, not the status.
			errs = append(errs, field.NotSupported(p.Child("allocatedResourceStatuses"), v1.ClaimResourceStatus(name), statuses))
		}
	}
	for _, name := range sortedKeys(c.Status.AllocatedResources) {
		if bad := claimResourceName(name, p.Child("allocatedResources")); len(bad) > 0 {
			errs = append(errs, bad...)
			continue
		}
		q, p := c.Status.AllocatedResources[name], p.Child("allocatedResources").Key(string(name))
		if bad := amount(q, p); len(bad) > 0 {
			errs = append(errs, bad...)
		} else {
			errs = append(errs, quantity(v1.ResourceStorage, q, p)...)
		}
	}
	return errs
}

func claimResourceName(name v1.ResourceName, p *field.Path) field.ErrorList {
	errs := invalid(p, name, validation.IsQualifiedName(string(name)))
	if len(errs) == 0 && podfit.IsNative(name) && name != v1.ResourceStorage {
		errs = append(errs, field.NotSupported(p, name, []v1.ResourceName{v1.ResourceStorage}))
	}
	return errs
}
