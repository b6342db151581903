package rest

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/apiserver/authz"
)

// mayCreate asks whether the user may create what an update or apply would create.
func (c *call) mayCreate(ctx context.Context) error {
	if c.g.Authorizer == nil {
		return nil
	}
	a := authorizer.AttributesRecord{
		User: c.user, Verb: "create", Namespace: c.info.Namespace, Name: c.info.Name,
		APIGroup: c.info.APIGroup, APIVersion: c.info.APIVersion, Resource: c.info.Resource, Subresource: c.info.Subresource,
		ResourceRequest: true, Path: c.req.URL.Path,
	}
	decision, reason, err := c.g.Authorizer.Authorize(ctx, a)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return authz.Forbidden(a, reason)
}
