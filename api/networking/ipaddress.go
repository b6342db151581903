package networking

import (
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func ipAddresses() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "IPAddress", Plural: "ipaddresses",
		ShortNames:  []string{"ip"},
		StoragePath: "ipaddresses",
		New:         func() api.Object { return &networkingv1.IPAddress{} },
		NewList:     func() runtime.Object { return &networkingv1.IPAddressList{} },
		Strategy: api.Strategy{
			NameErrors: canonicalIP,
			Validate: api.Check(func(a *networkingv1.IPAddress) field.ErrorList {
				return validateParentRef(a.Spec.ParentRef, field.NewPath("spec", "parentRef"))
			}),
			ValidateUpdate: api.CheckUpdate(func(a, old *networkingv1.IPAddress) field.ErrorList {
				p := field.NewPath("spec", "parentRef")
				errs := validateParentRef(a.Spec.ParentRef, p)
				return append(errs, api.Immutable(a.Spec.ParentRef, old.Spec.ParentRef, p)...)
			}),
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("ParentRef", "string", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"], 0),
		},
		Row: api.Cells(func(a *networkingv1.IPAddress, _ time.Time) []any {
			return []any{a.Name, parentRefCell(a.Spec.ParentRef)}
		}),
	}
}

// canonicalIP: the name is the address, in the one form that makes it unique.
func canonicalIP(name string, _ bool) []string {
	var msgs []string
	for _, err := range validation.IsValidIP(nil, name) {
		msgs = append(msgs, err.Detail)
	}
	return msgs
}

func parentRefCell(ref *networkingv1.ParentReference) string {
	if ref == nil {
		return "<none>"
	}
	gr := schema.GroupResource{Group: ref.Group, Resource: ref.Resource}
	parts := []string{strings.ToLower(gr.String())}
	if ref.Namespace != "" {
		parts = append(parts, ref.Namespace)
	}
	return strings.Join(append(parts, ref.Name), "/")
}

func validateParentRef(ref *networkingv1.ParentReference, p *field.Path) field.ErrorList {
	if ref == nil {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	if ref.Group != "" { // Services are of the core group, ""
		for _, msg := range validation.IsDNS1123Subdomain(ref.Group) {
			errs = append(errs, field.Invalid(p.Child("group"), ref.Group, msg))
		}
	}
	segment := func(value, name string, required bool) {
		if value == "" {
			if required {
				errs = append(errs, field.Required(p.Child(name), ""))
			}
			return
		}
		for _, msg := range content.IsPathSegmentName(value) {
			errs = append(errs, field.Invalid(p.Child(name), value, msg))
		}
	}
	segment(ref.Resource, "resource", true)
	segment(ref.Name, "name", true)
	segment(ref.Namespace, "namespace", false)
	return errs
}
