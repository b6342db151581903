package core

import v1 "k8s.io/api/core/v1"

// DropDisabledTemplateFields clears fields of feature gates that upstream keeps
// off, unless old (nil on create) uses them already.
func DropDisabledTemplateFields(t, old *v1.PodTemplateSpec) {
	if t == nil {
		return
	}
	var oldSpec *v1.PodSpec
	if old != nil {
		oldSpec = &old.Spec
	}
	dropDisabledSpecFields(&t.Spec, oldSpec)
	dropInitContainerAnnotations(t.Annotations)
}
