package core

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateTolerations validates tolerations outside of pods (RuntimeClass): those with
// numeric operators are refused.
func ValidateTolerations(tolerations []v1.Toleration, p *field.Path) field.ErrorList {
	return validateTolerations(tolerations, p, false)
}

// DefaultResourceList rounds amounts up to what is stored, as in a pod.
func DefaultResourceList(list v1.ResourceList) { roundUp(list) }
