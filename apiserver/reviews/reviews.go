// Package reviews answers questions about identity and access: TokenReview,
// SelfSubjectReview, SubjectAccessReview and its kin, and issues ServiceAccount tokens
// (serviceaccounts/token).
//
// Owns: the translation between these kinds and the authenticator and authorizer. Must
// not: decide anything itself.
package reviews

import (
	"context"
	"errors"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/authentication"
	"github.com/skiff-k8s/skiff/api/authorization"
	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Config names those who know.
type Config struct {
	Tokens     authenticator.Token
	Audiences  authenticator.Audiences // the API server's own
	Authorizer authorizer.UnconditionalAuthorizer
	Rules      authorizer.RuleResolver
	// Issuer signs ServiceAccount tokens; nil: the token subresource is not served.
	Issuer *authn.Issuer
	Caches lookup.Caches
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

type reviewer struct{ Config }

// Endpoints are all of them.
func Endpoints(c Config) ([]seams.Endpoint, error) {
	if c.Tokens == nil || c.Authorizer == nil || c.Rules == nil {
		return nil, errors.New("reviews: Tokens, Authorizer and Rules must be set")
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	r := &reviewer{c}
	authnV1 := func(resource, kind string) seams.Endpoint {
		return seams.Endpoint{
			Resource: schema.GroupResource{Group: authenticationv1.GroupName, Resource: resource},
			Kind:     authenticationv1.SchemeGroupVersion.WithKind(kind),
			Owned:    true,
		}
	}
	authzV1 := func(resource, kind string) seams.Endpoint {
		return seams.Endpoint{
			Resource: schema.GroupResource{Group: authorizationv1.GroupName, Resource: resource},
			Kind:     authorizationv1.SchemeGroupVersion.WithKind(kind),
			Owned:    true,
		}
	}
	e := authnV1("tokenreviews", "TokenReview")
	e.New, e.Create = func() runtime.Object { return &authenticationv1.TokenReview{} }, r.token
	all := []seams.Endpoint{e}

	e = authnV1("selfsubjectreviews", "SelfSubjectReview")
	e.Owned = false // the answer is an object of its own
	e.New, e.Create = func() runtime.Object { return &authenticationv1.SelfSubjectReview{} }, r.self
	all = append(all, e)

	e = authzV1("subjectaccessreviews", "SubjectAccessReview")
	e.New, e.Create = func() runtime.Object { return &authorizationv1.SubjectAccessReview{} }, r.access
	all = append(all, e)

	e = authzV1("localsubjectaccessreviews", "LocalSubjectAccessReview")
	e.New, e.Create = func() runtime.Object { return &authorizationv1.LocalSubjectAccessReview{} }, r.localAccess
	all = append(all, e)

	e = authzV1("selfsubjectaccessreviews", "SelfSubjectAccessReview")
	e.New, e.Create = func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} }, r.selfAccess
	all = append(all, e)

	e = authzV1("selfsubjectrulesreviews", "SelfSubjectRulesReview")
	e.New, e.Create = func() runtime.Object { return &authorizationv1.SelfSubjectRulesReview{} }, r.selfRules
	all = append(all, e)

	if c.Issuer != nil {
		all = append(all, seams.Endpoint{
			Resource: accounts, Subresource: "token",
			Kind:    authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"),
			Owned:   true,
			New:     func() runtime.Object { return &authenticationv1.TokenRequest{} },
			Default: api.Defaults(authentication.DefaultTokenRequest),
			Create:  r.requestToken,
		})
	}
	return validated(all), nil
}

// validated puts the resources' own validation before each review.
func validated(all []seams.Endpoint) []seams.Endpoint {
	declared := map[schema.GroupResource]*api.Resource{}
	for _, r := range append(authentication.Resources(), authorization.Resources()...) {
		declared[r.GR()] = r
	}
	for i := range all {
		e := &all[i]
		r := declared[e.Resource]
		if r == nil || r.Validate == nil {
			continue
		}
		create := e.Create
		e.Create = func(ctx context.Context, req *seams.CreateRequest) (runtime.Object, error) {
			if errs := r.Validate(ctx, req.Object); len(errs) > 0 {
				if e.Kind.Kind == "TokenReview" {
					return nil, apierrors.NewBadRequest(errs[0].Detail)
				}
				for _, e := range errs {
					e.BadValue = api.Internal(e.BadValue)
				}
				// Upstream asks the object for its kind, which it has lost by then.
				return nil, apierrors.NewInvalid(schema.GroupKind{Group: e.Kind.Group}, "", errs)
			}
			return create(ctx, req)
		}
	}
	return all
}
