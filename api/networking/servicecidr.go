package networking

import (
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/skiff-k8s/skiff/api"
)

func serviceCIDRs() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ServiceCIDR", Plural: "servicecidrs",
		StoragePath: "servicecidrs",
		New:         func() api.Object { return &networkingv1.ServiceCIDR{} },
		NewList:     func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(c *networkingv1.ServiceCIDR) { c.Status = networkingv1.ServiceCIDRStatus{} }),
			Validate: api.Check(func(c *networkingv1.ServiceCIDR) field.ErrorList {
				return validateCIDRs(c.Spec.CIDRs, field.NewPath("spec", "cidrs"))
			}),
			PrepareUpdate: api.OnUpdate(func(c, old *networkingv1.ServiceCIDR) { c.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(func(c, old *networkingv1.ServiceCIDR) field.ErrorList {
				return validateCIDRsUpdate(c.Spec.CIDRs, old.Spec.CIDRs, field.NewPath("spec", "cidrs"))
			}),
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(c, old *networkingv1.ServiceCIDR) {
					c.Spec = old.Spec
					metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
				}),
				IgnoredApplyPaths: []string{"metadata", "spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("CIDRs", "string", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(c *networkingv1.ServiceCIDR, now time.Time) []any {
			return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), api.Age(c.CreationTimestamp, now)}
		}),
	}
}

// validateCIDRs wants one range, or one of each IP family.
func validateCIDRs(cidrs []string, p *field.Path) field.ErrorList {
	switch n := len(cidrs); {
	case n == 0:
		return field.ErrorList{field.Required(p, "at least one CIDR required")}
	case n > 2:
		return field.ErrorList{field.Invalid(p, networkingv1.ServiceCIDRSpec{CIDRs: cidrs}, "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	for i, cidr := range cidrs {
		errs = append(errs, validation.IsValidCIDR(p.Index(i), cidr)...)
	}
	if len(cidrs) == 2 {
		family := netutils.IPFamilyOfCIDRString(cidrs[0])
		if family != netutils.IPFamilyUnknown && family == netutils.IPFamilyOfCIDRString(cidrs[1]) {
			errs = append(errs, field.Invalid(p, cidrs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
		}
	}
	return errs
}

// validateCIDRsUpdate lets a second family be added, nothing else.
func validateCIDRsUpdate(cidrs, old []string, p *field.Path) field.ErrorList {
	if len(cidrs) != len(old) && (len(old) != 1 || len(cidrs) != 2) {
		return field.ErrorList{field.Invalid(p, cidrs, apivalidation.FieldImmutableErrorMsg)}
	}
	var errs field.ErrorList
	for i := range old {
		if cidrs[i] != old[i] {
			errs = append(errs, field.Invalid(p.Index(i), cidrs[i], apivalidation.FieldImmutableErrorMsg))
		}
	}
	if len(cidrs) > len(old) {
		errs = append(errs, validateCIDRs(cidrs, p)...)
	}
	return errs
}
