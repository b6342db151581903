package core

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// ValidateClusterIPs validates clusterIP, clusterIPs, ipFamilies and
// ipFamilyPolicy against one another; allocation needs that before the rest of
// the Service can be validated. old is nil on create.
func ValidateClusterIPs(s, old *v1.Service) field.ErrorList {
	if s.Spec.Type == v1.ServiceTypeExternalName {
		return nil // all must be unset, which validation of the type sees to
	}
	var errs field.ErrorList
	spec := field.NewPath("spec")
	ips, families := spec.Child("clusterIPs"), spec.Child("ipFamilies")
	switch {
	case s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) > 0:
		errs = append(errs, field.Invalid(ips, s.Spec.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	case s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0:
		errs = append(errs, field.Required(ips, ""))
	case s.Spec.ClusterIP != "" && s.Spec.ClusterIPs[0] != s.Spec.ClusterIP:
		errs = append(errs, field.Invalid(ips, s.Spec.ClusterIPs, "first value must match `clusterIP`"))
	}
	seen := map[v1.IPFamily]bool{}
	for i, f := range s.Spec.IPFamilies {
		errs = append(errs, supported(f, families.Index(i), v1.IPv4Protocol, v1.IPv6Protocol)...)
		if seen[f] {
			errs = append(errs, field.Duplicate(families.Index(i), f))
		}
		seen[f] = true
	}
	if s.Spec.IPFamilyPolicy != nil {
		errs = append(errs, supported(*s.Spec.IPFamilyPolicy, spec.Child("ipFamilyPolicy"),
			v1.IPFamilyPolicySingleStack, v1.IPFamilyPolicyPreferDualStack, v1.IPFamilyPolicyRequireDualStack)...)
	}
	bad := validateClusterIPFormats(s, old, ips)
	errs = append(errs, bad...)
	if len(s.Spec.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(ips, s.Spec.ClusterIPs, "may only hold up to 2 values"))
	}
	if len(bad) > 0 {
		return errs // what follows would only repeat it in other words
	}
	if len(s.Spec.ClusterIPs) > 1 {
		dual, err := netutils.IsDualStackIPStrings(s.Spec.ClusterIPs)
		if err != nil {
			errs = append(errs, field.InternalError(ips, fmt.Errorf("failed to check for dual stack with error:%w", err)))
		}
		if !dual {
			errs = append(errs, field.Invalid(ips, s.Spec.ClusterIPs, "may specify no more than one IP for each IP family"))
		}
	}
	if headless(s) {
		return errs
	}
	for i, ip := range s.Spec.ClusterIPs {
		if i >= len(s.Spec.IPFamilies) {
			break
		}
		switch v6 := netutils.IsIPv6String(ip); {
		case s.Spec.IPFamilies[i] == v1.IPv4Protocol && v6:
			errs = append(errs, field.Invalid(ips.Index(i), ip, fmt.Sprintf("expected an IPv4 value as indicated by `ipFamilies[%v]`", i)))
		case s.Spec.IPFamilies[i] == v1.IPv6Protocol && !v6:
			errs = append(errs, field.Invalid(ips.Index(i), ip, fmt.Sprintf("expected an IPv6 value as indicated by `ipFamilies[%v]`", i)))
		}
	}
	return errs
}

func validateClusterIPFormats(s, old *v1.Service, p *field.Path) field.ErrorList {
	var before []string
	if old != nil {
		before = old.Spec.ClusterIPs
	}
	var errs field.ErrorList
	for i, ip := range s.Spec.ClusterIPs {
		if i > 0 || ip != v1.ClusterIPNone {
			errs = append(errs, validation.IsValidIPForLegacyField(p.Index(i), ip, true, before)...)
		} else if len(s.Spec.ClusterIPs) > 1 {
			errs = append(errs, field.Invalid(p, s.Spec.ClusterIPs, "'None' must be the first and only value"))
		}
	}
	return errs
}

// validateClusterIPChange allows a second family's address to come and go. The
// primary one stays, except from, to or on ExternalName.
func validateClusterIPChange(s, old *v1.Service) field.ErrorList {
	if s.Spec.Type == v1.ServiceTypeExternalName || old.Spec.Type == v1.ServiceTypeExternalName || headless(s) && headless(old) {
		return nil
	}
	var errs field.ErrorList
	now, before := s.Spec.ClusterIPs, old.Spec.ClusterIPs
	changed := func(i int) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), now, "may not change once set"))
	}
	if len(now) == len(before) {
		for i := range before {
			if now[i] != before[i] {
				changed(i)
			}
		}
		return errs
	}
	if len(before) > 0 && len(now) > 0 && now[0] != before[0] {
		changed(0)
	}
	if len(before) > len(now) {
		if len(now) == 0 {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(0), now, "primary clusterIP can not be unset"))
		}
		errs = append(errs, validateSecondaryReleased(s, len(now), "clusterIP")...)
	}
	return errs
}

func validateIPFamilyChange(s, old *v1.Service) field.ErrorList {
	if s.Spec.Type == v1.ServiceTypeExternalName || old.Spec.Type == v1.ServiceTypeExternalName || headless(s) || headless(old) {
		return nil
	}
	var errs field.ErrorList
	now, before := s.Spec.IPFamilies, old.Spec.IPFamilies
	first := field.NewPath("spec", "ipFamilies").Index(0)
	if len(now) == len(before) {
		for i := range before {
			if now[i] != before[i] {
				errs = append(errs, field.Invalid(first, now, "may not change once set"))
			}
		}
		return errs
	}
	if len(before) > len(now) && len(s.Spec.ClusterIPs) == 0 {
		errs = append(errs, field.Invalid(first, now, "primary ipFamily can not be unset"))
	}
	if len(before) > 0 && len(now) > 0 && now[0] != before[0] {
		errs = append(errs, field.Invalid(first, s.Spec.ClusterIPs, "may not change once set"))
	}
	if len(before) > len(now) {
		errs = append(errs, validateSecondaryReleased(s, len(now), "ipFamily")...)
	}
	return errs
}

func validateSecondaryReleased(s *v1.Service, left int, what string) field.ErrorList {
	if left != 1 || s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy == v1.IPFamilyPolicySingleStack {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), s.Spec.IPFamilyPolicy,
		fmt.Sprintf("must be set to 'SingleStack' when releasing the secondary %s", what))}
}
