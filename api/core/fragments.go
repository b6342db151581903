package core

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateTolerations validates tolerations outside of pods (RuntimeClass): those with
// numeric operators are refused.
func ValidateTolerations(tolerations []v1.Toleration, p *field.Path) field.ErrorList {
	return validateTolerations(tolerations, p, false)
}

// DefaultResourceList rounds amounts up to what is stored, as in a pod.
func DefaultResourceList(list v1.ResourceList) { roundUp(list) }

// ValidateNodeSelector validates a selector of nodes outside of pods and volumes.
func ValidateNodeSelector(s *v1.NodeSelector, p *field.Path) field.ErrorList {
	return validateNodeSelector(s, p, false)
}

// ValidateTemplateMeta validates the metadata of a template: labels and annotations.
func ValidateTemplateMeta(m *metav1.ObjectMeta, p *field.Path) field.ErrorList {
	return validateTemplateMeta(m, p)
}
