package csr

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/certificates/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

const (
	// Duration of certificates, as upstream's --cluster-signing-duration.
	Duration = 365 * 24 * time.Hour
	// backdate allows for clocks that are behind.
	backdate = 5 * time.Minute
	// short is a life that backdating takes nothing from.
	short = 8 * time.Hour
)

// legacySigner is of requests made through certificates.k8s.io/v1beta1.
const legacySigner = "kubernetes.io/legacy-unknown"

// CA signs. The zero value is none.
type CA struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

func (ca CA) ok() bool { return ca.Certificate != nil && ca.Key != nil }

// SignerConfig names the CAs of the built-in signers; those without do not sign.
type SignerConfig struct {
	controller.Config
	KubeletServing, KubeletClient, APIServerClient, LegacyUnknown CA
	Duration                                                      time.Duration // 0: the default
}

// Signer signs approved requests.
type Signer struct {
	cfg  SignerConfig
	loop *controller.Loop[controller.Key]
	csrs listers.CertificateSigningRequestLister
}

// NewSigner makes the signing controller.
func NewSigner(cfg SignerConfig) (*Signer, error) {
	if cfg.Duration == 0 {
		cfg.Duration = Duration
	}
	if !cfg.KubeletServing.ok() && !cfg.KubeletClient.ok() && !cfg.APIServerClient.ok() && !cfg.LegacyUnknown.ok() {
		return nil, errors.New("certificatesigningrequest-signing-controller: no CA is configured")
	}
	csrs := cfg.Informers.Certificates().V1().CertificateSigningRequests()
	s := &Signer{cfg: cfg, csrs: csrs.Lister()}
	s.loop = controller.NewLoop("certificatesigningrequest-signing-controller", 1, cfg.Clock, cfg.Logger, s.reconcile)
	return s, controller.Watch(s.loop, csrs.Informer(), controller.Enqueue[*certificatesv1.CertificateSigningRequest](s.loop))
}

// Run reconciles until ctx ends.
func (s *Signer) Run(ctx context.Context) error { return s.loop.Run(ctx) }

// signer returns the CA of a signer and its check.
func (s *Signer) signer(name string) (CA, func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error) {
	switch name {
	case certificatesv1.KubeletServingSignerName:
		return s.cfg.KubeletServing, checkKubeletServing
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		return s.cfg.KubeletClient, checkKubeletClient
	case certificatesv1.KubeAPIServerClientSignerName:
		return s.cfg.APIServerClient, func(_ *x509.CertificateRequest, u []certificatesv1.KeyUsage) error { return checkClient(u) }
	case legacySigner:
		return s.cfg.LegacyUnknown, func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error { return nil }
	}
	return CA{}, nil
}

func (s *Signer) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	csr, err := s.csrs.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading CertificateSigningRequest: %w", err)
	}
	ca, check := s.signer(csr.Spec.SignerName)
	if !ca.ok() || len(csr.Status.Certificate) > 0 || !is(csr, certificatesv1.CertificateApproved) ||
		is(csr, certificatesv1.CertificateDenied) || is(csr, certificatesv1.CertificateFailed) {
		return 0, nil
	}
	next := csr.DeepCopy()
	request, err := parse(csr.Spec.Request)
	if err == nil {
		err = check(request, csr.Spec.Usages)
	}
	if err != nil {
		next.Status.Conditions = append(next.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure",
			Message: err.Error(), LastUpdateTime: metav1.NewTime(s.cfg.Clock.Now()),
		})
	} else {
		lasts := s.cfg.Duration
		if e := csr.Spec.ExpirationSeconds; e != nil {
			lasts = min(lasts, max(10*time.Minute, time.Duration(*e)*time.Second))
		}
		if next.Status.Certificate, err = Sign(ca, request, csr.Spec.Usages, lasts, s.cfg.Clock.Now()); err != nil {
			return 0, err
		}
	}
	if _, err := s.cfg.Client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
		return 0, fmt.Errorf("writing certificate: %w", err)
	}
	return 0, nil
}

var keyUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
	certificatesv1.UsageSigning: x509.KeyUsageDigitalSignature, certificatesv1.UsageDigitalSignature: x509.KeyUsageDigitalSignature,
	certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment, certificatesv1.UsageKeyEncipherment: x509.KeyUsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement: x509.KeyUsageKeyAgreement, certificatesv1.UsageDataEncipherment: x509.KeyUsageDataEncipherment,
	certificatesv1.UsageCertSign: x509.KeyUsageCertSign, certificatesv1.UsageCRLSign: x509.KeyUsageCRLSign,
	certificatesv1.UsageEncipherOnly: x509.KeyUsageEncipherOnly, certificatesv1.UsageDecipherOnly: x509.KeyUsageDecipherOnly,
}

var extUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
	certificatesv1.UsageAny: x509.ExtKeyUsageAny, certificatesv1.UsageServerAuth: x509.ExtKeyUsageServerAuth,
	certificatesv1.UsageClientAuth: x509.ExtKeyUsageClientAuth, certificatesv1.UsageCodeSigning: x509.ExtKeyUsageCodeSigning,
	certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection, certificatesv1.UsageSMIME: x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageIPsecEndSystem: x509.ExtKeyUsageIPSECEndSystem, certificatesv1.UsageIPsecTunnel: x509.ExtKeyUsageIPSECTunnel,
	certificatesv1.UsageIPsecUser: x509.ExtKeyUsageIPSECUser, certificatesv1.UsageTimestamping: x509.ExtKeyUsageTimeStamping,
	certificatesv1.UsageOCSPSigning: x509.ExtKeyUsageOCSPSigning, certificatesv1.UsageMicrosoftSGC: x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certificatesv1.UsageNetscapeSGC: x509.ExtKeyUsageNetscapeServerGatedCrypto,
}

// Sign makes the certificate, PEM, which never outlives the CA's.
func Sign(ca CA, r *x509.CertificateRequest, usages []certificatesv1.KeyUsage, lasts time.Duration, now time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, fmt.Errorf("making serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: r.Subject,
		DNSNames: r.DNSNames, IPAddresses: r.IPAddresses, EmailAddresses: r.EmailAddresses, URIs: r.URIs,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(lasts),
		BasicConstraintsValid: true,
	}
	// As upstream: a short life counts from now on, a long one from the backdated start.
	if lasts >= short {
		template.NotAfter = template.NotAfter.Add(-backdate)
	}
	if template.NotAfter.After(ca.Certificate.NotAfter) {
		template.NotAfter = ca.Certificate.NotAfter
	}
	if !template.NotAfter.After(now) {
		return nil, fmt.Errorf("the signer's certificate expired at %s", ca.Certificate.NotAfter)
	}
	for _, u := range usages {
		if k, ok := keyUsages[u]; ok {
			template.KeyUsage |= k
		} else if e, ok := extUsages[u]; ok {
			template.ExtKeyUsage = append(template.ExtKeyUsage, e)
		} else {
			return nil, fmt.Errorf("usage %q is unknown", u)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Certificate, r.PublicKey, ca.Key)
	if err != nil {
		return nil, fmt.Errorf("signing certificate: %w", err)
	}
	var b bytes.Buffer
	if err := pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
		return nil, fmt.Errorf("encoding certificate: %w", err)
	}
	return b.Bytes(), nil
}
