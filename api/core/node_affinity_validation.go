package core

import (
	v1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateNodeSelector checks required node affinity of pods and volumes. With
// lax set, label values are not checked: stored objects may hold bad ones.
func validateNodeSelector(s *v1.NodeSelector, p *field.Path, lax bool) field.ErrorList {
	terms := p.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		return field.ErrorList{field.Required(terms, "must have at least one node selector term")}
	}
	var errs field.ErrorList
	for i := range s.NodeSelectorTerms {
		errs = append(errs, validateNodeSelectorTerm(&s.NodeSelectorTerms[i], terms.Index(i), lax)...)
	}
	return errs
}

func validateNodeSelectorTerm(t *v1.NodeSelectorTerm, p *field.Path, lax bool) field.ErrorList {
	var errs field.ErrorList
	for i := range t.MatchExpressions {
		errs = append(errs, validateNodeRequirement(&t.MatchExpressions[i], p.Child("matchExpressions").Index(i), lax)...)
	}
	for i := range t.MatchFields {
		errs = append(errs, validateNodeFieldRequirement(&t.MatchFields[i], p.Child("matchFields").Index(i))...)
	}
	return errs
}

func validateNodeRequirement(r *v1.NodeSelectorRequirement, p *field.Path, lax bool) field.ErrorList {
	var errs field.ErrorList
	values := p.Child("values")
	switch r.Operator {
	case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(values, "must be specified when `operator` is 'In' or 'NotIn'"))
		}
	case v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			errs = append(errs, field.Forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
		}
	case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'"))
		}
	default:
		errs = append(errs, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	errs = append(errs, metav1validation.ValidateLabelName(r.Key, p.Child("key"))...)
	if !lax {
		for i, value := range r.Values {
			errs = append(errs, invalid(values.Index(i), value, validation.IsValidLabelValue(value))...)
		}
	}
	return errs
}

func validateNodeFieldRequirement(r *v1.NodeSelectorRequirement, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch r.Operator {
	case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(p.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
		}
	default:
		errs = append(errs, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	if r.Key != "metadata.name" {
		return append(errs, field.Invalid(p.Child("key"), r.Key, "not a valid field selector key"))
	}
	for i, value := range r.Values {
		errs = append(errs, dnsSubdomain(value, p.Child("values").Index(i))...)
	}
	return errs
}
