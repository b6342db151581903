package core

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestReadService(t *testing.T) {
	policy := func(p v1.IPFamilyPolicy) *v1.IPFamilyPolicy { return &p }
	cluster := v1.ServiceInternalTrafficPolicyCluster
	for name, test := range map[string]struct {
		stored   v1.ServiceSpec
		ips      []string
		families []v1.IPFamily
		policy   *v1.IPFamilyPolicy
	}{
		"one address":       {v1.ServiceSpec{ClusterIP: "10.96.0.7"}, []string{"10.96.0.7"}, []v1.IPFamily{v1.IPv4Protocol}, policy(v1.IPFamilyPolicySingleStack)},
		"one of IPv6":       {v1.ServiceSpec{ClusterIP: "fd00::7"}, []string{"fd00::7"}, []v1.IPFamily{v1.IPv6Protocol}, policy(v1.IPFamilyPolicySingleStack)},
		"two":               {v1.ServiceSpec{ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7", "fd00::7"}}, []string{"10.96.0.7", "fd00::7"}, []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, policy(v1.IPFamilyPolicyRequireDualStack)},
		"headless":          {v1.ServiceSpec{ClusterIP: "None", Selector: map[string]string{"a": "b"}}, []string{"None"}, []v1.IPFamily{v1.IPv4Protocol}, policy(v1.IPFamilyPolicySingleStack)},
		"headless, no pods": {v1.ServiceSpec{ClusterIP: "None"}, []string{"None"}, []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, policy(v1.IPFamilyPolicyRequireDualStack)},
		"of today":          {v1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}, IPFamilies: []v1.IPFamily{v1.IPv6Protocol}, IPFamilyPolicy: policy(v1.IPFamilyPolicyPreferDualStack)}, []string{"None"}, []v1.IPFamily{v1.IPv6Protocol}, policy(v1.IPFamilyPolicyPreferDualStack)},
		"another name":      {v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "a.b", InternalTrafficPolicy: &cluster}, nil, nil, nil},
		"a node's port":     {v1.ServiceSpec{Type: v1.ServiceTypeNodePort, ClusterIP: "10.96.0.7"}, []string{"10.96.0.7"}, []v1.IPFamily{v1.IPv4Protocol}, policy(v1.IPFamilyPolicySingleStack)},
	} {
		t.Run(name, func(t *testing.T) {
			s := &v1.Service{Spec: test.stored}
			defaultService(s)
			readService(s)
			if !slices.Equal(s.Spec.ClusterIPs, test.ips) || !slices.Equal(s.Spec.IPFamilies, test.families) {
				t.Errorf("addresses %v of %v, want %v of %v", s.Spec.ClusterIPs, s.Spec.IPFamilies, test.ips, test.families)
			}
			if (s.Spec.IPFamilyPolicy == nil) != (test.policy == nil) || test.policy != nil && *s.Spec.IPFamilyPolicy != *test.policy {
				t.Errorf("policy %v, want %v", s.Spec.IPFamilyPolicy, test.policy)
			}
			if s.Spec.Type == v1.ServiceTypeExternalName && s.Spec.InternalTrafficPolicy != nil {
				t.Error("a name has an internal traffic policy")
			}
		})
	}
}
