// Package authorization declares the resources of authorization.k8s.io, none of which
// is stored.
//
// Owns: the access reviews as objects. Must not: answer them.
package authorization

import (
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

// Resources lists what the group serves.
func Resources() []*api.Resource {
	review := func(kind, plural string, namespaced bool, newObject func() api.Object, s api.Strategy) *api.Resource {
		return &api.Resource{
			Group: authorizationv1.GroupName, Version: "v1",
			Kind: kind, Plural: plural, Namespaced: namespaced,
			Verbs: []string{"create"}, New: newObject, Strategy: s,
		}
	}
	return []*api.Resource{
		review("LocalSubjectAccessReview", "localsubjectaccessreviews", true,
			func() api.Object { return &authorizationv1.LocalSubjectAccessReview{} },
			api.Strategy{Validate: api.Check(validateLocalReview)}),
		review("SelfSubjectAccessReview", "selfsubjectaccessreviews", false,
			func() api.Object { return &authorizationv1.SelfSubjectAccessReview{} },
			api.Strategy{Validate: api.Check(validateSelfReview)}),
		review("SelfSubjectRulesReview", "selfsubjectrulesreviews", false,
			func() api.Object { return &authorizationv1.SelfSubjectRulesReview{} }, api.Strategy{}),
		review("SubjectAccessReview", "subjectaccessreviews", false,
			func() api.Object { return &authorizationv1.SubjectAccessReview{} },
			api.Strategy{Validate: api.Check(validateReview)}),
	}
}

func validateReview(r *authorizationv1.SubjectAccessReview) field.ErrorList {
	errs := validateSpec(&r.Spec, field.NewPath("spec"))
	return append(errs, emptyMeta(r.ObjectMeta, "must be empty")...)
}

func validateSelfReview(r *authorizationv1.SelfSubjectAccessReview) field.ErrorList {
	errs := validateAttributes(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes, field.NewPath("spec"))
	return append(errs, emptyMeta(r.ObjectMeta, "must be empty")...)
}

func validateLocalReview(r *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
	errs := validateSpec(&r.Spec, field.NewPath("spec"))
	m := r.ObjectMeta
	m.Namespace = ""
	errs = append(errs, emptyMeta(m, "must be empty except for namespace")...)
	if a := r.Spec.ResourceAttributes; a != nil && a.Namespace != r.Namespace {
		errs = append(errs, field.Invalid(field.NewPath("spec.resourceAttributes.namespace"), a.Namespace, "must match metadata.namespace"))
	}
	if a := r.Spec.NonResourceAttributes; a != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec.nonResourceAttributes"), a, "disallowed on this kind of request"))
	}
	return errs
}

// emptyMeta: reviews are questions, not objects. Managed fields come with server-side apply's defaults,
// the rest is what the server itself set on the way in.
func emptyMeta(m metav1.ObjectMeta, msg string) field.ErrorList {
	m.ManagedFields = nil
	m.UID, m.CreationTimestamp = "", metav1.Time{}
	if equality.Semantic.DeepEqual(metav1.ObjectMeta{}, m) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), m, msg)}
}

func validateSpec(s *authorizationv1.SubjectAccessReviewSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.User == "" && len(s.Groups) == 0 {
		errs = append(errs, field.Invalid(p.Child("user"), s.User, "at least one of user or group must be specified"))
	}
	return append(errs, validateAttributes(s.ResourceAttributes, s.NonResourceAttributes, p)...)
}

func validateAttributes(r *authorizationv1.ResourceAttributes, n *authorizationv1.NonResourceAttributes, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if (r == nil) == (n == nil) {
		errs = append(errs, field.Invalid(p, n, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if r == nil {
		return errs
	}
	// Operators that this server doesn't know come from newer clients and are let through
	// to the authorizers, which then ignore the requirement.
	attributes := field.NewPath("spec.resourceAttributes")
	if s := r.FieldSelector; s != nil {
		fp := attributes.Child("fieldSelector")
		errs = append(errs, rawOrRequirements(s.RawSelector, len(s.Requirements), fp)...)
		for i, q := range s.Requirements {
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(q,
				metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}, fp.Child("requirements").Index(i))...)
		}
	}
	if s := r.LabelSelector; s != nil {
		lp := attributes.Child("labelSelector")
		errs = append(errs, rawOrRequirements(s.RawSelector, len(s.Requirements), lp)...)
		for i, q := range s.Requirements {
			errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(q,
				metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}, lp.Child("requirements").Index(i))...)
		}
	}
	return errs
}

func rawOrRequirements(raw string, requirements int, p *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(p.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(p.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", p))}
	}
	return nil
}
