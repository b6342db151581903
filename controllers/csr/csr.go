// Package csr approves, signs and cleans up CertificateSigningRequests of the signers that
// Kubernetes names (https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/).
//
// Owns: approval of kubelets' client certificates and of serving certificates for their own
// names, status.certificate of the built-in signers, deletion of old requests. Must not: approve anything else by itself, nor keep
// the CA's key: it is given in.
package csr

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// parse reads spec.request and checks that who made it has the key.
func parse(request []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parsing certificate request: %w", err)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("checking certificate request's signature: %w", err)
	}
	return r, nil
}

func is(c *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(x certificatesv1.CertificateSigningRequestCondition) bool {
		return x.Type == t && (x.Status == corev1.ConditionTrue || x.Status == "")
	})
}

const (
	nodesGroup = "system:nodes"
	nodePrefix = "system:node:"
)

var (
	errOrganization = errors.New("subject organization is not system:nodes")
	errName         = errors.New("subject common name does not begin with system:node: and a name")
	errNames        = errors.New("DNS, IP, email and URI subject alternative names are not allowed")
	errNoAddress    = errors.New("DNS or IP subject alternative name is required")
	errEmailURI     = errors.New("email and URI subject alternative names are not allowed")
	errUsages       = errors.New("usages do not match the signer's")
)

// checkNode checks the subject of a kubelet's certificate.
func checkNode(r *x509.CertificateRequest) error {
	if !slices.Equal(r.Subject.Organization, []string{nodesGroup}) {
		return errOrganization
	}
	if len(r.Subject.CommonName) <= len(nodePrefix) || !strings.HasPrefix(r.Subject.CommonName, nodePrefix) {
		return errName
	}
	return nil
}

// checkKubeletClient is what kubernetes.io/kube-apiserver-client-kubelet demands.
func checkKubeletClient(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if err := checkNode(r); err != nil {
		return err
	}
	if len(r.DNSNames)+len(r.IPAddresses)+len(r.EmailAddresses)+len(r.URIs) > 0 {
		return errNames
	}
	return checkUsages(usages, certificatesv1.UsageClientAuth)
}

// checkKubeletServing is what kubernetes.io/kubelet-serving demands.
func checkKubeletServing(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if err := checkNode(r); err != nil {
		return err
	}
	if len(r.EmailAddresses)+len(r.URIs) > 0 {
		return errEmailURI
	}
	if len(r.DNSNames)+len(r.IPAddresses) == 0 {
		return errNoAddress
	}
	return checkUsages(usages, certificatesv1.UsageServerAuth)
}

// checkUsages: digital signature and purpose, and key encipherment for RSA keys.
func checkUsages(usages []certificatesv1.KeyUsage, purpose certificatesv1.KeyUsage) error {
	for _, u := range usages {
		if u != purpose && u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment {
			return errUsages
		}
	}
	if !slices.Contains(usages, purpose) || !slices.Contains(usages, certificatesv1.UsageDigitalSignature) {
		return errUsages
	}
	return nil
}

// checkClient is what kubernetes.io/kube-apiserver-client demands.
func checkClient(usages []certificatesv1.KeyUsage) error {
	for _, u := range usages {
		if u != certificatesv1.UsageClientAuth && u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment {
			return errUsages
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return errUsages
	}
	return nil
}
