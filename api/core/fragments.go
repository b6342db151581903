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

// ValidateContainerResourceName validates the name of what containers may request.
func ValidateContainerResourceName(name v1.ResourceName, p *field.Path) field.ErrorList {
	return containerResourceName(name, p)
}

// ValidateContainerLimits validates limits as those of a container without requests.
func ValidateContainerLimits(list v1.ResourceList, p *field.Path) field.ErrorList {
	return (&podChecker{}).checkResources(&v1.ResourceRequirements{Limits: list}, containerResourceName, p)
}
