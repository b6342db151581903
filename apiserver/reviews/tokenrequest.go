package reviews

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/skiff-k8s/skiff/api/authentication"
	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

var (
	accounts = schema.GroupResource{Resource: "serviceaccounts"}
	pods     = schema.GroupResource{Resource: "pods"}
	nodes    = schema.GroupResource{Resource: "nodes"}
	secrets  = schema.GroupResource{Resource: "secrets"}
)

const (
	// podTokenSeconds is what the tokens that admission mounts ask for. Clients of old that never read
	// the file again go on working for a year, noted in the audit log (KEP-1205).
	podTokenSeconds = 60*60 + 7
	extended        = 365 * 24 * time.Hour
)

// requestToken issues a token for a ServiceAccount, bound to an object if asked.
func (r *reviewer) requestToken(ctx context.Context, req *seams.CreateRequest) (runtime.Object, error) {
	tr := req.Object.(*authenticationv1.TokenRequest)
	kind := authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
	mismatch := func(f, value string) error {
		return apierrors.NewInvalid(kind.GroupKind(), req.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", f), value, fmt.Sprintf("must match the service account %s if specified", f))})
	}
	if tr.Name != "" && tr.Name != req.Name {
		return nil, mismatch("name", tr.Name)
	}
	if tr.Namespace != "" && tr.Namespace != req.Namespace {
		return nil, mismatch("namespace", tr.Namespace)
	}
	sa, err := lookup.Fresh[*corev1.ServiceAccount](ctx, r.Caches, accounts, req.Namespace, req.Name)
	if err != nil {
		return nil, err
	}
	if tr.UID != "" && tr.UID != sa.UID {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, req.Name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", tr.UID, sa.UID))
	}
	if len(tr.Spec.Audiences) == 0 {
		tr.Spec.Audiences = r.Issuer.Audiences()
	}
	now := r.Clock.Now()
	tr.Name, tr.Namespace, tr.UID = sa.Name, sa.Namespace, sa.UID
	tr.CreationTimestamp = metav1.NewTime(now).Rfc3339Copy()
	tr.Status = authenticationv1.TokenRequestStatus{}
	if errs := authentication.ValidateTokenRequest(tr); len(errs) > 0 {
		return nil, apierrors.NewInvalid(kind.GroupKind(), "", errs)
	}
	bound, err := r.bound(ctx, req, tr.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	expiration := time.Duration(*tr.Spec.ExpirationSeconds) * time.Second
	lifetime, warnAfter := expiration, time.Duration(0)
	if bound.Pod != nil && *tr.Spec.ExpirationSeconds == podTokenSeconds && sets.New(r.Issuer.Audiences()...).HasAll(tr.Spec.Audiences...) {
		lifetime, warnAfter = extended, expiration
	}
	token, jti, err := r.Issuer.Sign(sa, bound, tr.Spec.Audiences, lifetime, warnAfter)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("failed to generate token: %w", err))
	}
	tr.Status.Token = token
	tr.Status.ExpirationTimestamp = metav1.NewTime(now.Add(expiration)).Rfc3339Copy()
	audit.AddAuditAnnotation(ctx, serviceaccount.IssuedCredentialIDAuditAnnotationKey, "JTI="+jti)
	return tr, nil
}

func (r *reviewer) bound(ctx context.Context, req *seams.CreateRequest, ref *authenticationv1.BoundObjectReference) (b authn.Bound, err error) {
	if ref == nil {
		return b, nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	var uid types.UID
	switch {
	case gvk.Group == "" && gvk.Kind == "Pod":
		if b.Pod, err = lookup.Fresh[*corev1.Pod](ctx, r.Caches, pods, req.Namespace, ref.Name); err != nil {
			return b, err
		}
		if b.Pod.Spec.ServiceAccountName != req.Name {
			return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", req.Name))
		}
		uid = b.Pod.UID
		if name := b.Pod.Spec.NodeName; name != "" {
			b.Node, err = lookup.CachedOrFresh[*corev1.Node](ctx, r.Caches, nodes, "", name)
			if apierrors.IsNotFound(err) {
				b.Node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} // where it runs is known all the same
			} else if err != nil {
				return b, err
			}
		}
	case gvk.Group == "" && gvk.Kind == "Node":
		if b.Node, err = lookup.Fresh[*corev1.Node](ctx, r.Caches, nodes, "", ref.Name); err != nil {
			return b, err
		}
		uid = b.Node.UID
	case gvk.Group == "" && gvk.Kind == "Secret":
		if b.Secret, err = lookup.Fresh[*corev1.Secret](ctx, r.Caches, secrets, req.Namespace, ref.Name); err != nil {
			return b, err
		}
		uid = b.Secret.UID
	default:
		return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk.String()))
	}
	if ref.UID != "" && ref.UID != uid {
		return b, apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return b, nil
}
