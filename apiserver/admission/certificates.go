package admission

import (
	"bytes"
	"context"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/apiserver/seams"
)

var (
	signingRequests = schema.GroupResource{Group: certificatesv1.GroupName, Resource: "certificatesigningrequests"}
	trustBundles    = schema.GroupResource{Group: certificatesv1.GroupName, Resource: "clustertrustbundles"}
)

// certificates asks, for whoever approves or signs a request, or attests a bundle, whether they may
// do so for that signer; and keeps the client signer from making members of system:masters.
type certificates struct {
	validating
	authorizer authorizer.UnconditionalAuthorizer
}

func (c *certificates) Validate(ctx context.Context, a *seams.Attributes) error {
	switch {
	case a.Operation == seams.Update && is(a, signingRequests, "approval"):
		old, ok := a.OldObject.(*certificatesv1.CertificateSigningRequest)
		if ok && !mayFor(ctx, c.authorizer, a.User, "approve", old.Spec.SignerName) {
			return forbid(a, "user not permitted to approve requests with signerName %q", old.Spec.SignerName)
		}
	case a.Operation == seams.Update && is(a, signingRequests, "status"):
		old, ok := a.OldObject.(*certificatesv1.CertificateSigningRequest)
		next, isNew := a.Object.(*certificatesv1.CertificateSigningRequest)
		if !ok || !isNew || bytes.Equal(old.Status.Certificate, next.Status.Certificate) &&
			apiequality.Semantic.DeepEqual(old.Status.Conditions, next.Status.Conditions) {
			return nil
		}
		if !mayFor(ctx, c.authorizer, a.User, "sign", old.Spec.SignerName) {
			return forbid(a, "user not permitted to sign requests with signerName %q", old.Spec.SignerName)
		}
	case a.Operation == seams.Create && is(a, signingRequests, ""):
		csr, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
		if !ok || csr.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
			return nil
		}
		parsed, err := parseCSR(csr.Spec.Request)
		if err != nil {
			return forbid(a, "failed to parse CSR: %w", err)
		}
		if slices.Contains(parsed.Subject.Organization, user.SystemPrivilegedGroup) {
			return forbid(a, "use of %s signer with system:masters group is not allowed", certificatesv1.KubeAPIServerClientSignerName)
		}
	case (a.Operation == seams.Create || a.Operation == seams.Update) && is(a, trustBundles, ""):
		return c.attest(ctx, a)
	}
	return nil
}

func (c *certificates) attest(ctx context.Context, a *seams.Attributes) error {
	bundle, ok := a.Object.(*certificatesv1.ClusterTrustBundle)
	if !ok || bundle.Spec.SignerName == "" {
		return nil
	}
	if old, ok := a.OldObject.(*certificatesv1.ClusterTrustBundle); ok && apiequality.Semantic.DeepEqual(old.Spec, bundle.Spec) &&
		apiequality.Semantic.DeepEqual(old.Labels, bundle.Labels) && apiequality.Semantic.DeepEqual(old.Annotations, bundle.Annotations) {
		return nil // owners and finalizers are the garbage collector's
	}
	if !mayFor(ctx, c.authorizer, a.User, "attest", bundle.Spec.SignerName) {
		return forbid(a, "user not permitted to attest for signerName %q", bundle.Spec.SignerName)
	}
	return nil
}

// mayFor asks for a verb on one signer, then on all signers of its domain.
func mayFor(ctx context.Context, z authorizer.UnconditionalAuthorizer, u user.Info, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, err := z.Authorize(ctx, authorizer.AttributesRecord{
			User: u, Verb: verb, APIGroup: certificatesv1.GroupName, APIVersion: "*", Resource: "signers", Name: name, ResourceRequest: true,
		})
		if err == nil && decision == authorizer.DecisionAllow {
			return true
		}
	}
	return false
}
