package core

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podChecker) checkProjected(v *v1.ProjectedVolumeSource, p *field.Path) field.ErrorList {
	errs := fileMode(v.DefaultMode, p.Child("defaultMode"))
	errs = append(errs, userID(v.DefaultUser, p.Child("defaultUser"))...)
	paths := sets.New[string]()
	unique := func(path string, shown any) {
		if path != "" && paths.Has(path) {
			errs = append(errs, field.Invalid(p, shown, "conflicting duplicate paths"))
		}
		paths.Insert(path)
	}
	for i := range v.Sources {
		s, at := &v.Sources[i], p.Child("sources").Index(i)
		count := 0
		if s.Secret != nil {
			count++
			errs = append(errs, required(s.Secret.Name, at.Child("secret", "name"))...)
			errs = append(errs, validateKeyPaths(s.Secret.Items, at.Child("secret", "items"))...)
			for _, k := range s.Secret.Items {
				unique(k.Path, s.Secret.Name)
			}
		}
		if s.ConfigMap != nil {
			count++
			errs = append(errs, required(s.ConfigMap.Name, at.Child("configMap", "name"))...)
			errs = append(errs, validateKeyPaths(s.ConfigMap.Items, at.Child("configMap", "items"))...)
			for _, k := range s.ConfigMap.Items {
				unique(k.Path, s.ConfigMap.Name)
			}
		}
		if s.DownwardAPI != nil {
			count++
			for j := range s.DownwardAPI.Items {
				errs = append(errs, validateDownwardAPIFile(&s.DownwardAPI.Items[j], at.Child("downwardAPI"))...)
				unique(s.DownwardAPI.Items[j].Path, s.DownwardAPI.Items[j].Path)
			}
		}
		if s.ServiceAccountToken != nil {
			count++
			errs = append(errs, c.checkTokenProjection(s.ServiceAccountToken, p, at.Child("serviceAccountToken"))...)
		}
		if s.ClusterTrustBundle != nil {
			count++
			errs = append(errs, validateTrustBundleProjection(s.ClusterTrustBundle, at.Child("clusterTrustBundle"))...)
			unique(s.ClusterTrustBundle.Path, s.ClusterTrustBundle.Path)
		}
		if s.PodCertificate != nil {
			count++
			errs = append(errs, validateCertificateProjection(s.PodCertificate, at.Child("podCertificate"))...)
			unique(s.PodCertificate.CredentialBundlePath, s.PodCertificate.CredentialBundlePath)
			unique(s.PodCertificate.KeyPath, s.PodCertificate.KeyPath)
			unique(s.PodCertificate.CertificateChainPath, s.PodCertificate.CertificateChainPath)
		}
		if count > 1 {
			errs = append(errs, field.Forbidden(at, "may not specify more than 1 volume type per source"))
		}
	}
	return errs
}

func (c *podChecker) checkTokenProjection(t *v1.ServiceAccountTokenProjection, volume, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := p.Child("expirationSeconds")
	switch e := t.ExpirationSeconds; {
	case e == nil:
		errs = append(errs, field.Required(at, ""))
	case *e < 10*60:
		errs = append(errs, field.Invalid(at, *e, "may not specify a duration less than 10 minutes"))
	case *e > 1<<32:
		errs = append(errs, field.Invalid(at, *e, "may not specify a duration larger than 2^32 seconds"))
	}
	if t.Path == "" {
		errs = append(errs, field.Required(volume.Child("path"), ""))
	} else if !c.lax.tokenPaths {
		errs = append(errs, localPath(t.Path, volume.Child("path"))...)
	}
	return append(errs, userID(t.User, p.Child("user"))...)
}

func validateTrustBundleProjection(b *v1.ClusterTrustBundleProjection, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case b.Name != nil && b.SignerName != nil:
		errs = append(errs, field.Invalid(p, b, "only one of name and signerName may be used"))
	case b.Name != nil:
		if *b.Name == "" {
			errs = append(errs, field.Required(p.Child("name"), "must be a valid object name"))
		}
		for _, msg := range trustBundleName(*b.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), *b.Name, fmt.Sprintf("not a valid clustertrustbundlename: %v", msg)))
		}
		if b.LabelSelector != nil {
			errs = append(errs, field.Invalid(p.Child("labelSelector"), b.LabelSelector, "labelSelector must be unset if name is specified"))
		}
	case b.SignerName != nil:
		if *b.SignerName == "" {
			errs = append(errs, field.Required(p.Child("signerName"), "must be a valid signer name"))
		}
		errs = append(errs, ValidateSignerName(*b.SignerName, p.Child("signerName"))...)
		errs = append(errs, metav1validation.ValidateLabelSelector(b.LabelSelector, metav1validation.LabelSelectorValidationOptions{}, p.Child("labelSelector"))...)
	default:
		errs = append(errs, field.Required(p, "either name or signerName must be specified"))
	}
	errs = append(errs, required(b.Path, p.Child("path"))...)
	errs = append(errs, userID(b.User, p.Child("user"))...)
	return append(errs, localPath(b.Path, p.Child("path"))...)
}

// trustBundleName: bundles of a signer carry its name, with ':' for '/', as prefix.
func trustBundleName(name string) []string {
	if i := strings.LastIndex(name, ":"); i >= 0 {
		name = name[i+1:]
	}
	return apivalidation.NameIsDNSSubdomain(name, false)
}

func validateCertificateProjection(c *v1.PodCertificateProjection, p *field.Path) field.ErrorList {
	errs := ValidateSignerName(c.SignerName, p.Child("signerName"))
	annotations := p.Child("userAnnotations")
	for _, key := range sortedKeys(c.UserAnnotations) {
		errs = append(errs, validation.IsDomainPrefixedKey(annotations, strings.ToLower(key))...)
	}
	if err := apivalidation.ValidateAnnotationsSize(c.UserAnnotations); err != nil {
		errs = append(errs, field.TooLong(annotations, "", apivalidation.TotalAnnotationSizeLimitB))
	}
	errs = append(errs, userID(c.User, p.Child("user"))...)
	switch c.KeyType {
	case "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519":
	default:
		errs = append(errs, field.NotSupported(p.Child("keyType"), c.KeyType,
			[]string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}))
	}
	if m := c.MaxExpirationSeconds; m != nil {
		p := p.Child("maxExpirationSeconds")
		// Ninety-one days, and one for signers of Kubernetes' own.
		const most, mostKubernetes = 91 * 86400, 86400
		limit := int32(most)
		if host, _, _ := strings.Cut(c.SignerName, "/"); host == "kubernetes.io" || strings.HasSuffix(host, ".kubernetes.io") {
			limit = mostKubernetes
		}
		if *m < 3600 {
			errs = append(errs, field.Invalid(p, *m, "if provided, maxExpirationSeconds must be >= 3600"))
		}
		if *m > limit {
			errs = append(errs, field.Invalid(p, *m, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", limit)))
		}
	}
	found := false
	for _, f := range []struct{ name, path string }{
		{"credentialBundlePath", c.CredentialBundlePath}, {"keyPath", c.KeyPath}, {"certificateChainPath", c.CertificateChainPath},
	} {
		if f.path != "" {
			found = true
			errs = append(errs, localPath(f.path, p.Child(f.name))...)
		}
	}
	if !found {
		errs = append(errs, field.Required(p, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"))
	}
	return errs
}

// ValidateSignerName checks a certificate signer's name: a domain, a slash and a
// path of DNS subdomains.
func ValidateSignerName(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	domain, path, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(path, "/") {
		return field.ErrorList{field.Invalid(p, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var errs field.ErrorList
	const maxDomain, maxPath = validation.DNS1123SubdomainMaxLength, validation.DNS1123SubdomainMaxLength + validation.DNS1123LabelMaxLength + 1
	if len(domain) > maxDomain {
		errs = append(errs, field.TooLong(p, "", maxDomain))
	}
	parts := func(value string, check func(string) []string) {
		for _, part := range strings.Split(value, ".") {
			if msgs := check(part); len(msgs) > 0 {
				for _, m := range msgs {
					errs = append(errs, field.Invalid(p, value, fmt.Sprintf("validating label %q: %s", part, m)))
				}
				return // one bad part is enough
			}
		}
	}
	parts(domain, validation.IsDNS1123Label)
	if !strings.Contains(domain, ".") {
		errs = append(errs, field.Invalid(p, domain, "should be a domain with at least two segments separated by dots"))
	}
	parts(path, validation.IsDNS1123Subdomain)
	if most := maxDomain + maxPath + 1; len(name) > most {
		errs = append(errs, field.TooLong(p, "", most))
	}
	return errs
}
