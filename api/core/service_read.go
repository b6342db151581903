package core

import (
	v1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"
)

// readService shows Services that were stored before there were several cluster IPs and
// families (KEP-563) as if they had been made today.
func readService(s *v1.Service) {
	spec := &s.Spec
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if !needsClusterIP(s) {
		spec.InternalTrafficPolicy = nil // was once a default here too
		return
	}
	if len(spec.IPFamilies) > 0 {
		return
	}
	single, dual := v1.IPFamilyPolicySingleStack, v1.IPFamilyPolicyRequireDualStack
	switch {
	case !headless(s):
		spec.IPFamilies = make([]v1.IPFamily, len(spec.ClusterIPs))
		for i, ip := range spec.ClusterIPs {
			spec.IPFamilies[i] = v1.IPv4Protocol
			if netutils.IsIPv6String(ip) {
				spec.IPFamilies[i] = v1.IPv6Protocol
			}
		}
		if len(spec.IPFamilies) == 1 {
			spec.IPFamilyPolicy = &single
		} else if len(spec.IPFamilies) == 2 {
			spec.IPFamilyPolicy = &dual
		}
	case len(spec.Selector) > 0:
		// Clusters of that time had one family, and nearly all of them this one.
		spec.IPFamilyPolicy, spec.IPFamilies = &single, []v1.IPFamily{v1.IPv4Protocol}
	default:
		// Whose endpoints nobody knows.
		spec.IPFamilyPolicy, spec.IPFamilies = &dual, []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	}
}
