package admission

import (
	"context"
	"errors"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

func (n *nodeRestriction) token(ctx context.Context, name string, a *seams.Attributes) error {
	if a.Operation != seams.Create || a.Subresource != "token" {
		return nil
	}
	tr, ok := a.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return forbid(a, "unexpected type %T", a.Object)
	}
	ref := tr.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return forbid(a, "node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return forbid(a, "node requested token with a pod binding without a uid")
	}
	pod, err := n.getPod(ctx, a.Namespace, ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != pod.UID {
		return forbid(a, "the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != name {
		return forbid(a, "node requested token bound to a pod scheduled on a different node")
	}
	return n.audience(ctx, a, tr, pod)
}

// audience: the pod, or a driver of one of its volumes, must want a token for that audience (KEP-4935).
func (n *nodeRestriction) audience(ctx context.Context, a *seams.Attributes, tr *authenticationv1.TokenRequest, pod *corev1.Pod) error {
	if len(tr.Spec.Audiences) > 1 {
		return forbid(a, "node may only request 0 or 1 audiences")
	}
	audience := ""
	if len(tr.Spec.Audiences) == 1 {
		audience = tr.Spec.Audiences[0]
	}
	var errs []error
	for i := range pod.Spec.Volumes {
		found, err := n.volumeWants(ctx, pod, &pod.Spec.Volumes[i], audience)
		if found {
			return nil
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return forbid(a, "error validating audience %q: %w", audience, errors.Join(errs...))
	}
	decision, _, err := n.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.User, Verb: "request-serviceaccounts-token-audience", APIGroup: a.Resource.Group, APIVersion: a.Resource.Version,
		Resource: audience, Namespace: a.Namespace, Name: a.Name, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return forbid(a, "error authorizing %s to request tokens for audience %q: %w", a.User.GetName(), audience, err)
	}
	return forbid(a, "%s is not authorized to request tokens for audience %q", a.User.GetName(), audience)
}

var (
	csiDrivers = schema.GroupResource{Group: storagev1.GroupName, Resource: "csidrivers"}
	claims     = schema.GroupResource{Resource: "persistentvolumeclaims"}
	volumes    = schema.GroupResource{Resource: "persistentvolumes"}
)

func (n *nodeRestriction) volumeWants(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, audience string) (bool, error) {
	claim, driver := "", ""
	switch {
	case v.Projected != nil:
		return slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience
		}), nil
	case v.Ephemeral != nil:
		claim = pod.Name + "-" + v.Name
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.CSI != nil:
		driver = v.CSI.Driver
	}
	if claim != "" {
		c, err := lookup.CachedOrFresh[*corev1.PersistentVolumeClaim](ctx, n.caches, claims, pod.Namespace, claim)
		if err != nil {
			return false, err
		}
		pv, err := lookup.CachedOrFresh[*corev1.PersistentVolume](ctx, n.caches, volumes, "", c.Spec.VolumeName)
		if err != nil {
			return false, err
		}
		if pv.Spec.CSI != nil {
			driver = pv.Spec.CSI.Driver
		}
	}
	if driver == "" {
		return false, nil
	}
	d, err := lookup.CachedOrFresh[*storagev1.CSIDriver](ctx, n.caches, csiDrivers, "", driver)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(d.Spec.TokenRequests, func(t storagev1.TokenRequest) bool { return t.Audience == audience }), nil
}
