package authentication

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	defaultTokenSeconds = 60 * 60
	minTokenSeconds     = 10 * 60
	maxTokenSeconds     = 1 << 32
)

// admissionReviewGroups is the one attestation that a token bound to a webhook carries (KEP-6060).
const admissionReviewGroups = "admissionReviewAPIGroups"

// DefaultTokenRequest fills in what the client left out.
func DefaultTokenRequest(r *authenticationv1.TokenRequest) {
	if r.Spec.ExpirationSeconds == nil {
		hour := int64(defaultTokenSeconds)
		r.Spec.ExpirationSeconds = &hour
	}
}

// ValidateTokenRequest validates a defaulted request.
func ValidateTokenRequest(r *authenticationv1.TokenRequest) field.ErrorList {
	var errs field.ErrorList
	p := field.NewPath("spec")
	switch s := r.Spec.ExpirationSeconds; {
	case s == nil:
		errs = append(errs, field.Required(p.Child("expirationSeconds"), ""))
	case *s < minTokenSeconds:
		errs = append(errs, field.Invalid(p.Child("expirationSeconds"), *s, "may not specify a duration less than 10 minutes"))
	case *s > maxTokenSeconds:
		errs = append(errs, field.Invalid(p.Child("expirationSeconds"), *s, "may not specify a duration larger than 2^32 seconds"))
	}
	attestations := p.Child("attestations")
	if !boundToWebhook(r.Spec.BoundObjectRef) {
		if len(r.Spec.Attestations) != 0 {
			return field.ErrorList{field.Invalid(attestations, r.Spec.Attestations, "attestations may only be specified with a webhook bound object reference")}
		}
		return errs
	}
	if len(r.Spec.Audiences) != 1 {
		errs = append(errs, field.Invalid(p.Child("audiences"), r.Spec.Audiences, "must be length 1 when bound to a webhook config"))
	}
	return append(errs, validateAttestations(r.Spec.Attestations, attestations)...)
}

func boundToWebhook(ref *authenticationv1.BoundObjectReference) bool {
	if ref == nil || ref.APIVersion != "admissionregistration.k8s.io/v1" {
		return false
	}
	return ref.Kind == "ValidatingWebhookConfiguration" || ref.Kind == "MutatingWebhookConfiguration"
}

func validateAttestations(attestations map[string]authenticationv1.AttestationValue, p *field.Path) field.ErrorList {
	if len(attestations) != 1 {
		return field.ErrorList{field.Invalid(p, attestations, "webhook bound requests require exactly one admissionReviewAPIGroups attestation")}
	}
	var errs field.ErrorList
	for key, values := range attestations {
		switch {
		case key != admissionReviewGroups:
			errs = append(errs, field.NotSupported(p.Key(key), key, []string{admissionReviewGroups}))
		case len(values) != 1:
			errs = append(errs, field.Invalid(p.Key(key), values, "must specify a single value"))
		default:
			errs = append(errs, validateReviewGroup(values[0], p.Key(key).Index(0))...)
		}
	}
	return errs
}

// validateReviewGroup refuses "", which would mean the core group here but everything in
// the authorization check of the same value.
func validateReviewGroup(group string, p *field.Path) field.ErrorList {
	switch group {
	case "":
		return field.ErrorList{field.Invalid(p, group, "may not be an empty string")}
	case "*":
		return nil
	}
	var errs field.ErrorList
	for _, reason := range validation.IsDNS1123Subdomain(group) {
		errs = append(errs, field.Invalid(p, group, "must specify a valid API Group: "+reason))
	}
	return errs
}
