package core

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// A Service's type decides which of its fields mean something. The functions
// below guess what clients that know only some of the linked fields meant; what
// they guess wrong, validation refuses.

// NormalizeClusterIPs makes clusterIP and clusterIPs agree where the client set
// only one. old is nil on create.
func NormalizeClusterIPs(s, old *v1.Service) {
	if old == nil {
		if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		}
		return
	}
	if s.Spec.ClusterIP == old.Spec.ClusterIP {
		// A client that knows clusterIP alone left the list out.
		if len(s.Spec.ClusterIPs) == 0 && len(old.Spec.ClusterIPs) > 0 {
			s.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
		return
	}
	// It changed clusterIP: the list follows unless the client changed that too.
	if !slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		return
	}
	if s.Spec.ClusterIP == "" {
		s.Spec.ClusterIPs = nil
	} else {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
}

// KeepAllocated copies the addresses and ports that old was given to an update
// that left them out.
func KeepAllocated(s, old *v1.Service) {
	if needsClusterIP(old) && needsClusterIP(s) {
		setIfEmpty(&s.Spec.ClusterIP, old.Spec.ClusterIP)
		if len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
	}
	if needsNodePort(old) && needsNodePort(s) {
		byName := map[string]int32{}
		for _, p := range old.Spec.Ports {
			byName[p.Name] = p.NodePort
		}
		taken := nodePorts(s)
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			if port := byName[p.Name]; p.NodePort == 0 && !taken[port] {
				p.NodePort = port
			}
		}
	}
	if needsHealthCheckPort(old) && needsHealthCheckPort(s) {
		setIfEmpty(&s.Spec.HealthCheckNodePort, old.Spec.HealthCheckNodePort)
	}
}

// dropFieldsOfOldType clears what the old type needed and the new one refuses,
// unless the client touched it.
func dropFieldsOfOldType(s, old *v1.Service) {
	if needsClusterIP(old) && !needsClusterIP(s) {
		if s.Spec.ClusterIP == old.Spec.ClusterIP && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		}
		if slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies) {
			s.Spec.IPFamilies = nil
		}
		if equal(s.Spec.IPFamilyPolicy, old.Spec.IPFamilyPolicy) {
			s.Spec.IPFamilyPolicy = nil
		}
		if equal(s.Spec.InternalTrafficPolicy, old.Spec.InternalTrafficPolicy) {
			s.Spec.InternalTrafficPolicy = nil
		}
	}
	if needsNodePort(old) && !needsNodePort(s) && noNewNodePorts(s, old) {
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	}
	if needsHealthCheckPort(old) && !needsHealthCheckPort(s) && s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		s.Spec.HealthCheckNodePort = 0
	}
	if old.Spec.Type == v1.ServiceTypeLoadBalancer && s.Spec.Type != v1.ServiceTypeLoadBalancer {
		if equal(s.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts) {
			s.Spec.AllocateLoadBalancerNodePorts = nil
		}
		if equal(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
			s.Spec.LoadBalancerClass = nil
		}
	}
	if externallyAccessible(old) && !externallyAccessible(s) && s.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		s.Spec.ExternalTrafficPolicy = ""
	}
	if s.Spec.Type != v1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer = v1.LoadBalancerStatus{}
	}
}

func needsClusterIP(s *v1.Service) bool { return s.Spec.Type != v1.ServiceTypeExternalName }

func needsNodePort(s *v1.Service) bool {
	return s.Spec.Type == v1.ServiceTypeNodePort || s.Spec.Type == v1.ServiceTypeLoadBalancer
}

func needsHealthCheckPort(s *v1.Service) bool {
	return s.Spec.Type == v1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
}

func externallyAccessible(s *v1.Service) bool {
	return needsNodePort(s) || s.Spec.Type == v1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

func headless(s *v1.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == v1.ClusterIPNone
}

func nodePorts(s *v1.Service) map[int32]bool {
	ports := map[int32]bool{}
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			ports[p.NodePort] = true
		}
	}
	return ports
}

func noNewNodePorts(s, old *v1.Service) bool {
	before := nodePorts(old)
	for port := range nodePorts(s) {
		if !before[port] {
			return false
		}
	}
	return true
}
