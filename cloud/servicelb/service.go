package servicelb

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	servicehelpers "k8s.io/cloud-provider/service/helpers"
)

// wants tells whether a Service is to have a load balancer of the provider's.
func wants(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil
}

// needsCleanup tells whether a Service has our finalizer and no more use for a load balancer.
func needsCleanup(s *corev1.Service) bool {
	return servicehelpers.HasLBFinalizer(s) && (s.DeletionTimestamp != nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer)
}

// needsUpdate tells whether a change of a Service matters to its load balancer. What is not named
// here, labels and selectors for instance, does not.
func needsUpdate(old, s *corev1.Service) bool {
	if !wants(old) && !wants(s) {
		return false
	}
	if wants(old) != wants(s) || old.UID != s.UID {
		return true
	}
	a, b := &old.Spec, &s.Spec
	return !apiequality.Semantic.DeepEqual(a.LoadBalancerSourceRanges, b.LoadBalancerSourceRanges) ||
		!slices.EqualFunc(a.Ports, b.Ports, samePort) ||
		a.SessionAffinity != b.SessionAffinity ||
		!apiequality.Semantic.DeepEqual(a.SessionAffinityConfig, b.SessionAffinityConfig) ||
		a.LoadBalancerIP != b.LoadBalancerIP ||
		!slices.Equal(a.ExternalIPs, b.ExternalIPs) ||
		!apiequality.Semantic.DeepEqual(old.Annotations, s.Annotations) ||
		a.ExternalTrafficPolicy != b.ExternalTrafficPolicy ||
		a.HealthCheckNodePort != b.HealthCheckNodePort ||
		// Families come and go, but never change places.
		len(a.IPFamilies) != len(b.IPFamilies)
}

func samePort(a, b corev1.ServicePort) bool {
	return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port && a.NodePort == b.NodePort &&
		a.TargetPort == b.TargetPort && apiequality.Semantic.DeepEqual(a.AppProtocol, b.AppProtocol)
}
