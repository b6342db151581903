package core

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// PodTemplateWarnings tells clients about deprecated or useless settings in a template.
func PodTemplateWarnings(t, old *v1.PodTemplateSpec, p *field.Path) []string {
	return nil
}

func podSpecWarnings(meta *metav1.ObjectMeta, s *v1.PodSpec, p *field.Path) []string { return nil }
