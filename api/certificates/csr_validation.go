package certificates

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api/core"
)

// The signer name that certificates.k8s.io/v1beta1 gave requests that named none.
const legacyUnknownSigner = "kubernetes.io/legacy-unknown"

const minExpirationSeconds = 600

var knownUsages = sets.New(
	certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment,
	certificatesv1.UsageKeyEncipherment, certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment,
	certificatesv1.UsageCertSign, certificatesv1.UsageCRLSign, certificatesv1.UsageEncipherOnly,
	certificatesv1.UsageDecipherOnly, certificatesv1.UsageAny, certificatesv1.UsageServerAuth,
	certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning, certificatesv1.UsageEmailProtection,
	certificatesv1.UsageSMIME, certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
	certificatesv1.UsageIPsecUser, certificatesv1.UsageTimestamping, certificatesv1.UsageOCSPSigning,
	certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC)

// validateCSR takes a nil old on create. What an old object holds already is not refused.
func validateCSR(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	var errs field.ErrorList
	p := field.NewPath("spec")
	if err := verifyRequest(c.Spec.Request); err != nil {
		errs = append(errs, field.Invalid(p.Child("request"), c.Spec.Request, err.Error()))
	}
	errs = append(errs, validateUsages(c, old, p.Child("usages"))...)
	if c.Spec.SignerName == legacyUnknownSigner && (old == nil || old.Spec.SignerName != legacyUnknownSigner) {
		errs = append(errs, field.Invalid(p.Child("signerName"), c.Spec.SignerName, "the legacy signerName is not allowed via this API version"))
	} else {
		errs = append(errs, core.ValidateSignerName(c.Spec.SignerName, p.Child("signerName"))...)
	}
	if s := c.Spec.ExpirationSeconds; s != nil && *s < minExpirationSeconds {
		errs = append(errs, field.Invalid(p.Child("expirationSeconds"), *s, "may not specify a duration less than 600 seconds (10 minutes)"))
	}
	errs = append(errs, validateConditions(c, old, field.NewPath("status", "conditions"))...)
	tolerated := old != nil && (bytes.Equal(c.Status.Certificate, old.Status.Certificate) || verifyCertificates(old.Status.Certificate) != nil)
	if err := verifyCertificates(c.Status.Certificate); err != nil && !tolerated {
		errs = append(errs, field.Invalid(field.NewPath("status", "certificate"), "<certificate data>", err.Error()))
	}
	return errs
}

func validateUsages(c, old *certificatesv1.CertificateSigningRequest, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	usages := c.Spec.Usages
	if len(usages) == 0 {
		errs = append(errs, field.Required(p, ""))
	}
	hadUnknown := old != nil && !knownUsages.HasAll(old.Spec.Usages...)
	hadDuplicates := old != nil && sets.New(old.Spec.Usages...).Len() < len(old.Spec.Usages)
	seen := sets.New[certificatesv1.KeyUsage]()
	for i, u := range usages {
		if !hadUnknown && !knownUsages.Has(u) {
			errs = append(errs, field.NotSupported(p.Index(i), u, sets.List(knownUsages)))
		}
		if !hadDuplicates && seen.Has(u) {
			errs = append(errs, field.Duplicate(p.Index(i), u))
		}
		seen.Insert(u)
	}
	return errs
}

func verifyRequest(text []byte) error {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	return r.CheckSignature()
}

func verifyCertificates(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	blocks := 0
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) != 0 {
			return errors.New("no PEM block headers are permitted")
		}
		certs, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return err
		}
		if len(certs) == 0 {
			return errors.New("found CERTIFICATE PEM block containing 0 certificates")
		}
		blocks++
		text = rest
	}
	if blocks == 0 {
		return errors.New("must contain at least one CERTIFICATE PEM block")
	}
	return nil
}

func validateConditions(c, old *certificatesv1.CertificateSigningRequest, p *field.Path) field.ErrorList {
	var hadEmpty, hadDuplicates, hadBoth bool
	if old != nil {
		seen := sets.New[certificatesv1.RequestConditionType]()
		for _, o := range old.Status.Conditions {
			hadEmpty = hadEmpty || o.Type == ""
			hadDuplicates = hadDuplicates || seen.Has(o.Type)
			seen.Insert(o.Type)
		}
		hadBoth = seen.HasAll(certificatesv1.CertificateApproved, certificatesv1.CertificateDenied)
	}
	decisions := []certificatesv1.RequestConditionType{
		certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed}
	anyStatus := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}

	var errs field.ErrorList
	seen := sets.New[certificatesv1.RequestConditionType]()
	for i, n := range c.Status.Conditions {
		cp := p.Index(i)
		if n.Type == "" && !hadEmpty {
			errs = append(errs, field.Required(cp.Child("type"), ""))
		}
		allowed := anyStatus
		if slices.Contains(decisions, n.Type) {
			allowed = []corev1.ConditionStatus{corev1.ConditionTrue} // a decision is never taken back
		}
		switch {
		case n.Status == "":
			errs = append(errs, field.Required(cp.Child("status"), ""))
		case !slices.Contains(allowed, n.Status):
			errs = append(errs, field.NotSupported(cp.Child("status"), n.Status, allowed))
		}
		other := map[certificatesv1.RequestConditionType]certificatesv1.RequestConditionType{
			certificatesv1.CertificateApproved: certificatesv1.CertificateDenied,
			certificatesv1.CertificateDenied:   certificatesv1.CertificateApproved,
		}[n.Type]
		if other != "" && seen.Has(other) && !hadBoth {
			errs = append(errs, field.Invalid(p, n.Type, "Approved and Denied conditions are mutually exclusive"))
		}
		if seen.Has(n.Type) && !hadDuplicates {
			errs = append(errs, field.Duplicate(cp.Child("type"), n.Type))
		}
		seen.Insert(n.Type)
	}
	return errs
}

// mayChange is what an endpoint lets a client change.
type mayChange struct{ approval, certificate bool }

func validateCSRUpdate(c, old *certificatesv1.CertificateSigningRequest, may mayChange) field.ErrorList {
	errs := validateCSR(c, old)
	p := field.NewPath("status", "conditions")
	for _, t := range []certificatesv1.RequestConditionType{
		certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed,
	} {
		now, before := pick(c, t), pick(old, t)
		if len(now) < len(before) {
			errs = append(errs, field.Forbidden(p, fmt.Sprintf("updates may not remove a condition of type %q", t)))
			continue
		}
		if may.approval || t == certificatesv1.CertificateFailed {
			continue
		}
		if len(now) > len(before) {
			errs = append(errs, field.Forbidden(p, fmt.Sprintf("updates may not add a condition of type %q", t)))
		} else if !equality.Semantic.DeepEqual(now, before) {
			errs = append(errs, field.Forbidden(p, fmt.Sprintf("updates may not modify a condition of type %q", t)))
		}
	}
	if !bytes.Equal(c.Status.Certificate, old.Status.Certificate) {
		cp := field.NewPath("status", "certificate")
		if !may.certificate {
			errs = append(errs, field.Forbidden(cp, "updates may not set certificate content"))
		} else if len(old.Status.Certificate) > 0 {
			errs = append(errs, field.Forbidden(cp, "updates may not modify existing certificate content"))
		}
	}
	return errs
}

func pick(c *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
	var list []certificatesv1.CertificateSigningRequestCondition
	for _, i := range conditions(c, t) {
		list = append(list, c.Status.Conditions[i])
	}
	return list
}
