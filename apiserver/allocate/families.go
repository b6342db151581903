package allocate

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api/core"
)

// chooseFamilies fills ipFamilyPolicy and ipFamilies from what the client gave, by the
// rules of KEP-563. old is nil on create.
func (a *Allocator) chooseFamilies(s, old *corev1.Service) error {
	spec := &s.Spec
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if old != nil && unchangedPreference(s, old) {
		return nil
	}
	selectorlessHeadless := spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0
	if spec.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		switch {
		case old != nil && old.Spec.IPFamilyPolicy != nil:
			policy = *old.Spec.IPFamilyPolicy
		case selectorlessHeadless:
			// Nothing of ours chooses its endpoints, so it may have those of any family.
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		spec.IPFamilyPolicy = &policy
	}
	if errs := core.ValidateClusterIPs(s, old); len(errs) > 0 {
		return invalid(s, errs...)
	}
	var errs field.ErrorList
	single := *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	policyPath := field.NewPath("spec", "ipFamilyPolicy")
	if old != nil {
		errs = append(errs, reduce(s, old, single, policyPath)...)
	}
	if single {
		if len(spec.ClusterIPs) == 2 {
			errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy,
				"must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
		}
		if len(spec.IPFamilies) == 2 {
			errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy,
				"must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
		}
	}
	for i := len(spec.IPFamilies); i < len(spec.ClusterIPs); i++ {
		ip := spec.ClusterIPs[i]
		if ip == corev1.ClusterIPNone {
			break
		}
		family := familyOf(ip)
		if !slices.Contains(a.families, family) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", family)))
			continue
		}
		spec.IPFamilies = append(slices.Clone(spec.IPFamilies), family)
	}
	if len(errs) > 0 {
		return invalid(s, errs...)
	}
	if selectorlessHeadless {
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = a.families[:1:1]
		}
		if len(spec.IPFamilies) < 2 && !single {
			spec.IPFamilies = append(slices.Clone(spec.IPFamilies), other(spec.IPFamilies[0]))
		}
		return nil
	}
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(a.families) < 2 {
		errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, family := range spec.IPFamilies {
		if !slices.Contains(a.families, family) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), family, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return invalid(s, errs...)
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = a.families[:1:1]
	}
	if !single && len(spec.IPFamilies) == 1 && len(a.families) == 2 {
		spec.IPFamilies = append(slices.Clone(spec.IPFamilies), other(spec.IPFamilies[0]))
	}
	return nil
}

// reduce gives up the second family of a Service that becomes SingleStack, and refuses
// losing it otherwise.
func reduce(s, old *corev1.Service, single bool, policyPath *field.Path) field.ErrorList {
	spec := &s.Spec
	if single {
		if slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs) && len(spec.ClusterIPs) > 1 {
			spec.ClusterIPs = spec.ClusterIPs[:1:1]
		}
		if slices.Equal(spec.IPFamilies, old.Spec.IPFamilies) && len(spec.IPFamilies) > 1 {
			spec.IPFamilies = spec.IPFamilies[:1:1]
		}
		return nil
	}
	var errs field.ErrorList
	if len(old.Spec.ClusterIPs) == 2 && len(spec.ClusterIPs) == 1 {
		errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
	}
	if len(old.Spec.IPFamilies) == 2 && len(spec.IPFamilies) == 1 {
		errs = append(errs, field.Invalid(policyPath, spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
	}
	return errs
}

// unchangedPreference: a PreferDualStack Service made while the cluster had one family
// stays as it is until somebody touches its families or addresses.
func unchangedPreference(s, old *corev1.Service) bool {
	prefer := func(s *corev1.Service) bool {
		return s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy == corev1.IPFamilyPolicyPreferDualStack
	}
	return prefer(s) && (old.Spec.IPFamilyPolicy == nil || prefer(old)) && s.Spec.Type == old.Spec.Type &&
		s.Spec.ClusterIP == old.Spec.ClusterIP &&
		slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies)
}

func other(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}
