package core

import (
	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidatePodTemplate validates a pod template on its own; what its owner
// requires beyond (restart policy, selector) is the owner's to check.
func ValidatePodTemplate(t *v1.PodTemplateSpec, p *field.Path) field.ErrorList {
	return ValidatePodTemplateUpdate(t, nil, p)
}

// ValidatePodTemplateUpdate validates a changed template; it may change in any
// way. Rules that old (nil on create) breaks already do not bind the new one.
func ValidatePodTemplateUpdate(t, old *v1.PodTemplateSpec, p *field.Path) field.ErrorList {
	var oldSpec *v1.PodSpec
	laxCost := false
	if old != nil {
		oldSpec = &old.Spec
		laxCost = !validDeletionCost(old.Annotations)
	}
	errs := metav1validation.ValidateLabels(t.Labels, p.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(t.Annotations, p.Child("annotations"))...)
	errs = append(errs, validatePodAnnotations(t.Annotations, &t.Spec, p.Child("annotations"), laxCost)...)
	errs = append(errs, newPodChecker(&t.Spec, oldSpec, nil).check(p.Child("spec"))...)
	errs = append(errs, validateProfileAnnotations(t.Annotations, &t.Spec, p.Child("spec"))...)
	if len(t.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(p.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template"))
	}
	return errs
}
