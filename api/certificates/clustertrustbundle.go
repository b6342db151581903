package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/core"
)

const maxTrustBundle = 1 << 20

func clusterTrustBundles() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ClusterTrustBundle", Plural: "clustertrustbundles",
		StoragePath:    "clustertrustbundles",
		StorageVersion: schema.GroupVersion{Group: groupVersion.Group, Version: "v1beta1"},
		New:            func() api.Object { return &certificatesv1.ClusterTrustBundle{} },
		NewList:        func() runtime.Object { return &certificatesv1.ClusterTrustBundleList{} },
		Strategy: api.Strategy{
			// The name depends on the signer: validated with the object.
			NameErrors: func(string, bool) []string { return nil },
			Validate: api.Check(func(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
				return append(validateBundle(b), validateTrustAnchors(b.Spec.TrustBundle, field.NewPath("spec", "trustBundle"))...)
			}),
			ValidateUpdate: api.CheckUpdate(func(b, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
				errs := validateBundle(b)
				// Unchanged anchors are not parsed anew: parsers get stricter.
				if b.Spec.TrustBundle != old.Spec.TrustBundle {
					errs = append(errs, validateTrustAnchors(b.Spec.TrustBundle, field.NewPath("spec", "trustBundle"))...)
				}
				return append(errs, apivalidation.ValidateImmutableField(b.Spec.SignerName, old.Spec.SignerName, field.NewPath("spec", "signerName"))...)
			}),
			RequireRevision: true,
		},
		Fields: api.Selectable(func(b *certificatesv1.ClusterTrustBundle) fields.Set {
			return fields.Set{"spec.signerName": b.Spec.SignerName}
		}),
		FieldLabels: []string{"spec.signerName"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("SignerName", "string", certificatesv1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"], 0),
		},
		Row: api.Cells(func(b *certificatesv1.ClusterTrustBundle, _ time.Time) []any {
			if b.Spec.SignerName == "" {
				return []any{b.Name, "<none>"}
			}
			return []any{b.Name, b.Spec.SignerName}
		}),
	}
}

func validateBundle(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
	var errs field.ErrorList
	if b.Name != "" {
		for _, msg := range bundleNameErrors(b.Name, b.Spec.SignerName) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), b.Name, msg))
		}
	}
	if b.Spec.SignerName != "" {
		errs = append(errs, core.ValidateSignerName(b.Spec.SignerName, field.NewPath("spec", "signerName"))...)
	}
	return errs
}

func bundleNameErrors(name, signer string) []string {
	if signer == "" {
		if strings.Contains(name, ":") {
			return []string{`ClusterTrustBundle without signer name must not have ":" in its name`}
		}
		return apivalidation.NameIsDNSSubdomain(name, false)
	}
	prefix := strings.ReplaceAll(signer, "/", ":") + ":"
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, prefix)}
	}
	return apivalidation.NameIsDNSSubdomain(rest, false)
}

func validateTrustAnchors(text string, p *field.Path) field.ErrorList {
	if len(text) > maxTrustBundle {
		return field.ErrorList{field.TooLong(p, "", maxTrustBundle)}
	}
	var errs field.ErrorList
	refuse := func(format string, args ...any) {
		errs = append(errs, field.Invalid(p, "<value omitted>", fmt.Sprintf(format, args...)))
	}
	at := map[string][]int{}
	rest := []byte(text)
	for i := 0; ; i++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			refuse("entry %d has bad block type: %v", i, block.Type)
			continue
		}
		if len(block.Headers) != 0 {
			refuse("entry %d has PEM block headers", i)
			continue
		}
		switch cert, err := x509.ParseCertificate(block.Bytes); {
		case err != nil:
			refuse("entry %d does not parse as X.509", i)
		case !cert.IsCA:
			refuse("entry %d does not have the CA bit set", i)
		case !cert.BasicConstraintsValid:
			refuse("entry %d has invalid basic constraints", i)
		default:
			at[string(block.Bytes)] = append(at[string(block.Bytes)], i)
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if len(at) == 0 {
		refuse("at least one trust anchor must be provided")
	}
	for _, indexes := range at {
		if len(indexes) > 1 {
			refuse("duplicate trust anchor (indices %v)", indexes)
		}
	}
	return errs
}
