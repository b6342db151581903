// Package certificates declares the resources of certificates.k8s.io.
//
// Owns: certificatesigningrequests and clustertrustbundles as objects. Must not: approve
// or sign, nor decide who may: that is the controllers' and the API server's.
package certificates

import (
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

var groupVersion = certificatesv1.SchemeGroupVersion

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{
		certificateSigningRequests(metav1.Now),
		clusterTrustBundles(),
	}
}

// A signer's name is <domain>/<path>; the path has room for <namespace>.<name>.
const maxSignerName = validation.DNS1123SubdomainMaxLength + 1 +
	validation.DNS1123LabelMaxLength + 1 + validation.DNS1123SubdomainMaxLength

func validateSignerName(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	domain, path, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(path, "/") {
		return field.ErrorList{field.Invalid(p, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var errs field.ErrorList
	if len(domain) > validation.DNS1123SubdomainMaxLength {
		errs = append(errs, field.TooLong(p, "", validation.DNS1123SubdomainMaxLength))
	}
	labels := strings.Split(domain, ".")
	errs = append(errs, firstBadPart(domain, labels, validation.IsDNS1123Label, p)...)
	if len(labels) < 2 {
		errs = append(errs, field.Invalid(p, domain, "should be a domain with at least two segments separated by dots"))
	}
	errs = append(errs, firstBadPart(path, strings.Split(path, "."), validation.IsDNS1123Subdomain, p)...)
	if len(name) > maxSignerName {
		errs = append(errs, field.TooLong(p, "", maxSignerName))
	}
	return errs
}

func firstBadPart(value string, parts []string, check func(string) []string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, part := range parts {
		for _, msg := range check(part) {
			errs = append(errs, field.Invalid(p, value, fmt.Sprintf("validating label %q: %s", part, msg)))
		}
		if len(errs) > 0 {
			break
		}
	}
	return errs
}
