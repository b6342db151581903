package authentication

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestTokenReview(t *testing.T) {
	apitest.Want(t, apitest.Create(tokenReviews(), &authenticationv1.TokenReview{}), "spec.token: Required value: token is required for TokenReview in authentication")
	apitest.Want(t, apitest.Create(tokenReviews(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "x"}}))
}

func TestTokenRequest(t *testing.T) {
	webhook := &authenticationv1.BoundObjectReference{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfiguration", Name: "w"}
	groups := func(list ...string) map[string]authenticationv1.AttestationValue {
		return map[string]authenticationv1.AttestationValue{"admissionReviewAPIGroups": list}
	}
	for name, c := range map[string]struct {
		spec authenticationv1.TokenRequestSpec
		errs []string
	}{
		"default": {},
		"short":   {authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](599)}, []string{"spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"}},
		"long":    {authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](1<<32 + 1)}, []string{"spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds"}},
		"stray attestation": {authenticationv1.TokenRequestSpec{Attestations: groups("*")},
			[]string{"spec.attestations: Invalid value: {\"admissionReviewAPIGroups\":[\"*\"]}: attestations may only be specified with a webhook bound object reference"}},
		"webhook":        {spec: authenticationv1.TokenRequestSpec{BoundObjectRef: webhook, Audiences: []string{"a"}, Attestations: groups("apps")}},
		"webhook alone":  {authenticationv1.TokenRequestSpec{BoundObjectRef: webhook}, []string{"spec.audiences: Invalid value: null: must be length 1", "spec.attestations: Invalid value: null: webhook bound requests require exactly one"}},
		"webhook values": {authenticationv1.TokenRequestSpec{BoundObjectRef: webhook, Audiences: []string{"a"}, Attestations: groups("")}, []string{`spec.attestations[admissionReviewAPIGroups][0]: Invalid value: "": may not be an empty string`}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &authenticationv1.TokenRequest{Spec: c.spec}
			DefaultTokenRequest(r)
			apitest.Want(t, apitest.Texts(ValidateTokenRequest(r)), c.errs...)
		})
	}
}
