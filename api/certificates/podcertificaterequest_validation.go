package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net/mail"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api/core"
)

const (
	maxUID            = 128
	maxStubRequest    = 10 << 10
	maxChain          = 100 << 10
	minExpiration     = 60 * 60
	maxExpiration     = 91 * 24 * 60 * 60
	maxOwnExpiration  = 24 * 60 * 60 // of Kubernetes' own signers
	minCertificate    = time.Hour
	maxStartSkew      = 5 * time.Minute
	minRefreshMargin  = 10 * time.Minute
	certificatePEMTag = "CERTIFICATE"
)

// What a request may come to. At most one of these conditions holds, and then for good.
var outcomes = []string{
	certificatesv1.PodCertificateRequestConditionTypeIssued,
	certificatesv1.PodCertificateRequestConditionTypeDenied,
	certificatesv1.PodCertificateRequestConditionTypeFailed,
}

func isOutcome(condition string) bool { return slices.Contains(outcomes, condition) }

// outcome is the condition that holds, or nothing.
func outcome(s *certificatesv1.PodCertificateRequestStatus) string {
	for _, c := range s.Conditions {
		if c.Status == metav1.ConditionTrue && isOutcome(c.Type) {
			return c.Type
		}
	}
	return ""
}

func validatePodRequest(s *certificatesv1.PodCertificateRequestSpec, p *field.Path) field.ErrorList {
	errs := core.ValidateSignerName(s.SignerName, p.Child("signerName"))
	ap := p.Child("unverifiedUserAnnotations")
	for _, key := range slices.Sorted(maps.Keys(s.UnverifiedUserAnnotations)) {
		errs = append(errs, validation.IsDomainPrefixedKey(ap, strings.ToLower(key))...)
	}
	if apivalidation.ValidateAnnotationsSize(s.UnverifiedUserAnnotations) != nil {
		errs = append(errs, field.TooLong(ap, "", apivalidation.TotalAnnotationSizeLimitB))
	}
	for _, r := range []struct {
		kind, name, uid string
		check           apivalidation.ValidateNameFunc
	}{
		{"pod", s.PodName, string(s.PodUID), apivalidation.NameIsDNSSubdomain},
		{"serviceAccount", s.ServiceAccountName, string(s.ServiceAccountUID), apivalidation.ValidateServiceAccountName},
		{"node", string(s.NodeName), string(s.NodeUID), apivalidation.NameIsDNSSubdomain},
	} {
		for _, msg := range r.check(r.name, false) {
			errs = append(errs, field.Invalid(p.Child(r.kind+"Name"), r.name, msg))
		}
		if r.uid == "" {
			errs = append(errs, field.Invalid(p.Child(r.kind+"UID"), r.uid, "must not be empty"))
		}
		if len(r.uid) > maxUID {
			errs = append(errs, field.TooLong(p.Child(r.kind+"UID"), r.uid, maxUID))
		}
	}
	ep := p.Child("maxExpirationSeconds")
	if s.MaxExpirationSeconds == nil {
		return append(errs, field.Required(ep, "must be set"))
	}
	var most int32 = maxExpiration
	if domain, _, _ := strings.Cut(s.SignerName, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
		most = maxOwnExpiration
	}
	if e := *s.MaxExpirationSeconds; e < minExpiration || e > most {
		errs = append(errs, field.Invalid(ep, e, fmt.Sprintf("must be in the range [%d, %d]", minExpiration, most)))
	}
	if len(s.StubPKCS10Request) == 0 {
		return append(errs, field.Invalid(p, field.OmitValueType{}, "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"))
	}
	if err := validateStub(s.StubPKCS10Request, p.Child("stubPKCS10Request")); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// validateStub checks the key and the signature of a request in which nothing else counts.
func validateStub(der []byte, p *field.Path) *field.Error {
	if len(der) > maxStubRequest {
		return field.TooLong(p, "", maxStubRequest)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return field.Invalid(p, field.OmitValueType{}, "must be a valid PKCS#10 CSR")
	}
	switch key := r.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if !slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}, key.Curve) {
			return field.Invalid(p, "curve "+key.Curve.Params().Name, "elliptic public keys must use curve P256, P384, or P521")
		}
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != 3072 && bits != 4096 {
			return field.Invalid(p, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")
		}
	default:
		return field.Invalid(p, field.OmitValueType{}, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")
	}
	if r.CheckSignature() != nil {
		return field.Invalid(p, field.OmitValueType{}, "invalid signature")
	}
	return nil
}

func validatePodRequestStatus(r, old *certificatesv1.PodCertificateRequest, now time.Time) field.ErrorList {
	var errs field.ErrorList
	s, p := &r.Status, field.NewPath("status")
	found := false
	for i, c := range s.Conditions {
		// Upstream's paths have the index as an element of its own.
		p := field.NewPath("status", "conditions", fmt.Sprintf("[%d]", i))
		if !isOutcome(c.Type) {
			errs = append(errs, field.NotSupported(p.Child("type"), c.Type, outcomes))
			continue
		}
		if found {
			errs = append(errs, field.Invalid(p.Child("type"), c.Type, `There may be at most one condition with type "Issued", "Denied", or "Failed"`))
		}
		found = true
		if c.Status != metav1.ConditionTrue {
			errs = append(errs, field.NotSupported(p.Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue}))
		}
	}
	errs = append(errs, metav1validation.ValidateConditions(s.Conditions, p.Child("conditions"))...)
	if len(errs) > 0 {
		return errs
	}
	same := func(want certificatesv1.PodCertificateRequestStatus, detail string) field.ErrorList {
		if equality.Semantic.DeepEqual(*s, want) {
			return nil
		}
		return field.ErrorList{field.Invalid(p, field.OmitValueType{}, detail)}
	}
	if outcome(&old.Status) != "" {
		return same(old.Status, "immutable after PodCertificateRequest is issued, denied, or failed")
	}
	switch outcome(s) {
	case "":
		return same(old.Status, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
	case certificatesv1.PodCertificateRequestConditionTypeIssued:
		return validateIssued(r, old.Spec.StubPKCS10Request, now)
	}
	return same(certificatesv1.PodCertificateRequestStatus{Conditions: s.Conditions},
		"non-condition status fields must be empty when denying or failing the PodCertificateRequest")
}

// validateIssued wants a chain whose leaf is for the key of the request and lives as the
// request and the status say.
func validateIssued(r *certificatesv1.PodCertificateRequest, request []byte, now time.Time) field.ErrorList {
	s, p := &r.Status, field.NewPath("status")
	chain := p.Child("certificateChain")
	one := func(p *field.Path, value any, detail string) field.ErrorList {
		return field.ErrorList{field.Invalid(p, value, detail)}
	}
	if len(s.CertificateChain) > maxChain {
		return field.ErrorList{field.TooLong(chain, "", maxChain)}
	}
	block, rest := pem.Decode([]byte(s.CertificateChain))
	if block == nil {
		return one(chain, s.CertificateChain, "issued certificate chain must contain at least one certificate")
	}
	if block.Type != certificatePEMTag {
		return one(chain, s.CertificateChain, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return one(chain, s.CertificateChain, "leaf certificate does not parse as valid X.509")
	}
	errs := validateNames(leaf, chain)
	wanted, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return append(errs, field.Invalid(field.NewPath("spec", "stubPKCS10Request"), field.OmitValueType{}, "must be a valid PKCS#10 CSR"))
	}
	if key, ok := wanted.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); ok && !key.Equal(leaf.PublicKey) {
		return append(errs, field.Invalid(chain, s.CertificateChain, "leaf certificate was not issued to the requested public key"))
	}
	start, end, refresh := p.Child("notBefore"), p.Child("notAfter"), p.Child("beginRefreshAt")
	for _, f := range []struct {
		p      *field.Path
		set    bool
		detail string
	}{
		{start, s.NotBefore != nil, "must be present and consistent with the issued certificate"},
		{end, s.NotAfter != nil, "must be present and consistent with the issued certificate"},
		{refresh, s.BeginRefreshAt != nil, "must be present and in the range [notbefore+10min, notafter-10min]"},
	} {
		if !f.set {
			errs = append(errs, field.Required(f.p, f.detail))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	lifetime := leaf.NotAfter.Sub(leaf.NotBefore)
	switch skew := s.NotBefore.Sub(now).Abs(); {
	case !s.NotBefore.Time.Equal(leaf.NotBefore):
		return one(start, s.NotBefore.Time, "must be set to the NotBefore time encoded in the leaf certificate")
	case skew >= maxStartSkew:
		return one(start, s.NotBefore.Time, "must be set to within 5 minutes of kube-apiserver's current time")
	case !s.NotAfter.Time.Equal(leaf.NotAfter):
		return one(end, s.NotAfter.Time, "must be set to the NotAfter time encoded in the leaf certificate")
	case lifetime < minCertificate:
		return one(chain, lifetime, "leaf certificate lifetime must be >= 1 hour")
	case lifetime > time.Duration(*r.Spec.MaxExpirationSeconds)*time.Second:
		return one(chain, lifetime, fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)", *r.Spec.MaxExpirationSeconds))
	case s.BeginRefreshAt.Time.Before(s.NotBefore.Add(minRefreshMargin)):
		return one(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes after status.notBefore")
	case s.BeginRefreshAt.After(s.NotAfter.Add(-minRefreshMargin)):
		return one(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes before status.notAfter")
	}
	for block, rest = pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certificatePEMTag {
			return one(chain, s.CertificateChain, "issued certificate chain must consist entirely of CERTFICATE PEM blocks")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return one(chain, s.CertificateChain, "intermediate certificate does not parse as valid X.509")
		}
	}
	return nil
}

// validateNames refuses names that no peer could verify.
func validateNames(leaf *x509.Certificate, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range leaf.DNSNames {
		if name == "" {
			errs = append(errs, field.Invalid(p, name, "leaf certificate should not contain empty DNSName"))
		}
		if strings.Contains(name, "..") {
			errs = append(errs, field.Invalid(p, name, "leaf certificate's DNSName should not contain '..'"))
		}
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			errs = append(errs, field.Invalid(p, name, "leaf certificate's DNSName should not start or end with '.'"))
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			errs = append(errs, field.Invalid(p, address, "leaf certificate should not contain invalid EmailAddress"))
		}
	}
	return errs
}
