package api

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Immutable refuses a change of a field that upstream declares immutable: unlike
// validation.ValidateImmutableField it does not show the value.
func Immutable(now, before any, p *field.Path) field.ErrorList {
	if equality.Semantic.DeepEqual(now, before) {
		return nil
	}
	return field.ErrorList{field.Invalid(p, nil, "field is immutable")}
}
