package admission

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

func (n *nodeRestriction) lease(name string, a *seams.Attributes) error {
	if a.Namespace != corev1.NamespaceNodeLease {
		return forbid(a, "can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	wanted := a.Name
	if l, ok := a.Object.(*coordinationv1.Lease); ok && a.Operation == seams.Create {
		wanted = l.Name
	}
	if wanted != name {
		return forbid(a, "can only access node lease with the same name as the requesting node")
	}
	return nil
}

func (n *nodeRestriction) csiNode(name string, a *seams.Attributes) error {
	wanted := a.Name
	if m, ok := a.Object.(metav1.Object); ok && a.Operation == seams.Create {
		wanted = m.GetName()
	}
	if wanted != name {
		return forbid(a, "can only access CSINode with the same name as the requesting node")
	}
	return nil
}

func (n *nodeRestriction) slice(name string, a *seams.Attributes) error {
	own := func(s *resourcev1.ResourceSlice) bool { return s.Spec.NodeName != nil && *s.Spec.NodeName == name }
	if s, ok := a.Object.(*resourcev1.ResourceSlice); ok && a.Operation == seams.Create && !own(s) {
		return forbid(a, "can only create ResourceSlice with the same NodeName as the requesting node")
	}
	if s, ok := a.OldObject.(*resourcev1.ResourceSlice); ok && a.Operation == seams.Delete && !own(s) {
		return forbid(a, "can only delete ResourceSlice with the same NodeName as the requesting node")
	}
	return nil
}

func (n *nodeRestriction) certificate(name string, a *seams.Attributes) error {
	csr, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok || a.Operation != seams.Create ||
		csr.Spec.SignerName != certificatesv1.KubeletServingSignerName && csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	parsed, err := parseCSR(csr.Spec.Request)
	if err != nil {
		return forbid(a, "unable to parse csr: %w", err)
	}
	if parsed.Subject.CommonName != "system:node:"+name {
		return forbid(a, "can only create a node CSR with CN=system:node:%s", name)
	}
	return nil
}

func parseCSR(request []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// podCertificate: a node asks for certificates of pods that run on it, as they are.
func (n *nodeRestriction) podCertificate(ctx context.Context, name string, a *seams.Attributes) error {
	req, ok := a.Object.(*certificatesv1.PodCertificateRequest)
	if !ok || a.Operation != seams.Create || a.Subresource != "" {
		return forbid(a, "unexpected operation %v", a.Operation)
	}
	s := &req.Spec
	if string(s.NodeName) != name {
		return forbid(a, "PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", s.NodeName, name)
	}
	pod, err := n.getPod(ctx, a.Namespace, s.PodName)
	if err != nil {
		return fmt.Errorf("while retrieving pod %q named in the PodCertificateRequest: %w", a.Namespace+"/"+s.PodName, err)
	}
	host, err := lookup.CachedOrFresh[*corev1.Node](ctx, n.caches, nodes, "", name)
	if err != nil {
		return err
	}
	account, err := lookup.CachedOrFresh[*corev1.ServiceAccount](ctx, n.caches, accounts, a.Namespace, s.ServiceAccountName)
	if err != nil {
		return err
	}
	who := a.Namespace + "/" + s.PodName
	switch {
	case host.UID != s.NodeUID:
		return forbid(a, "PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", who, s.NodeUID, host.UID)
	case pod.UID != s.PodUID:
		return forbid(a, "PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", who, s.PodUID, pod.UID)
	case pod.Spec.NodeName != name:
		return forbid(a, "pod %q is not running on node %q named in the PodCertificateRequest", who, name)
	case isMirror(pod):
		return forbid(a, "pod %q is a mirror pod", who)
	case pod.Spec.ServiceAccountName != s.ServiceAccountName:
		return forbid(a, "PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", who, s.ServiceAccountName, pod.Spec.ServiceAccountName)
	case account.UID != s.ServiceAccountUID:
		return forbid(a, "PodCertificateRequest for pod %q names service account UID %q, which differs from the running service account (%q)", who, s.ServiceAccountUID, account.UID)
	}
	for _, v := range pod.Spec.Volumes {
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool {
			return p.PodCertificate != nil && p.PodCertificate.SignerName == s.SignerName
		}) {
			return nil
		}
	}
	decision, _, _ := n.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.User, Verb: "request-serviceaccounts-podcertificate-signer", APIGroup: a.Resource.Group, APIVersion: a.Resource.Version,
		Resource: strings.ReplaceAll(s.SignerName, "/", ":"), Namespace: a.Namespace, Name: s.ServiceAccountName, ResourceRequest: true,
	})
	if decision != authorizer.DecisionAllow {
		return forbid(a, "pod %q does not mount a podCertificate projected volume for signer %q", who, s.SignerName)
	}
	return nil
}
