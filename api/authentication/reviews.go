// Package authentication declares the resources of authentication.k8s.io, none of
// which is stored.
//
// Owns: tokenreviews and selfsubjectreviews as objects, and the rules of the
// TokenRequests that go to serviceaccounts/token. Must not: check or issue tokens.
package authentication

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{selfSubjectReviews(), tokenReviews()}
}

func selfSubjectReviews() *api.Resource {
	return &api.Resource{
		Group: authenticationv1.GroupName, Version: "v1",
		Kind: "SelfSubjectReview", Plural: "selfsubjectreviews",
		Verbs: []string{"create"},
		New:   func() api.Object { return &authenticationv1.SelfSubjectReview{} },
	}
}

func tokenReviews() *api.Resource {
	return &api.Resource{
		Group: authenticationv1.GroupName, Version: "v1",
		Kind: "TokenReview", Plural: "tokenreviews",
		Verbs: []string{"create"},
		New:   func() api.Object { return &authenticationv1.TokenReview{} },
		Strategy: api.Strategy{
			Validate: api.Check(func(r *authenticationv1.TokenReview) field.ErrorList {
				if r.Spec.Token == "" {
					return field.ErrorList{field.Required(field.NewPath("spec", "token"), "token is required for TokenReview in authentication")}
				}
				return nil
			}),
		},
	}
}
