package csr

import (
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/certificates/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Approver approves client certificates of kubelets whose requester may have them.
type Approver struct {
	cfg  controller.Config
	loop *controller.Loop[controller.Key]
	csrs listers.CertificateSigningRequestLister
}

// NewApprover makes the approving controller.
func NewApprover(cfg controller.Config) (*Approver, error) {
	csrs := cfg.Informers.Certificates().V1().CertificateSigningRequests()
	a := &Approver{cfg: cfg, csrs: csrs.Lister()}
	a.loop = controller.NewLoop("certificatesigningrequest-approving-controller", 1, cfg.Clock, cfg.Logger, a.reconcile)
	return a, controller.Watch(a.loop, csrs.Informer(), controller.Enqueue[*certificatesv1.CertificateSigningRequest](a.loop))
}

// Run reconciles until ctx ends.
func (a *Approver) Run(ctx context.Context) error { return a.loop.Run(ctx) }

func (a *Approver) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	csr, err := a.csrs.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading CertificateSigningRequest: %w", err)
	}
	if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || len(csr.Status.Certificate) > 0 ||
		is(csr, certificatesv1.CertificateApproved) || is(csr, certificatesv1.CertificateDenied) {
		return 0, nil
	}
	request, err := parse(csr.Spec.Request)
	if err != nil || checkKubeletClient(request, csr.Spec.Usages) != nil {
		return 0, nil // for somebody else to judge
	}
	// A kubelet that renews its own certificate, or a bootstrap token that asks for a node's.
	permissions := []struct{ subresource, message string }{
		{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."},
		{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."},
	}
	for _, p := range permissions {
		if p.subresource == "selfnodeclient" && request.Subject.CommonName != csr.Spec.Username {
			continue
		}
		ok, err := a.allowed(ctx, csr, p.subresource)
		if err != nil {
			return 0, err
		}
		if ok {
			return 0, a.approve(ctx, csr, p.message)
		}
	}
	return 0, fmt.Errorf("requester %s may not have a kubelet client certificate: subresources nodeclient and selfnodeclient of certificatesigningrequests are denied", csr.Spec.Username)
}

func (a *Approver) allowed(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, subresource string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range csr.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	review, err := a.cfg.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: csr.Spec.Username, UID: csr.Spec.UID, Groups: csr.Spec.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Verb: "create", Subresource: subresource, Version: "*",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("reviewing access: %w", err)
	}
	return review.Status.Allowed, nil
}

func (a *Approver) approve(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, message string) error {
	next := csr.DeepCopy()
	next.Status.Conditions = append(next.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: message,
	})
	if _, err := a.cfg.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, next.Name, next, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("approving: %w", err)
	}
	return nil
}
