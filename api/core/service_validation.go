package core

import (
	"fmt"
	"net"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// validateService holds on create (old is nil) and update.
func validateService(s, old *v1.Service) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	mode, hasMode := s.Annotations[v1.AnnotationTopologyMode]
	hints, hasHints := s.Annotations[v1.DeprecatedAnnotationTopologyAwareHints]
	if hasMode && hasHints && mode != hints {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(v1.AnnotationTopologyMode), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified", v1.DeprecatedAnnotationTopologyAwareHints)))
	}
	if len(s.Spec.Ports) == 0 && !headless(s) && s.Spec.Type != v1.ServiceTypeExternalName {
		errs = append(errs, field.Required(spec.Child("ports"), ""))
	}
	errs = append(errs, validateServiceType(s, spec)...)
	errs = append(errs, validateServicePorts(s, spec.Child("ports"))...)
	errs = append(errs, metav1validation.ValidateLabels(s.Spec.Selector, spec.Child("selector"))...)
	errs = append(errs, oneOf(s.Spec.SessionAffinity, spec.Child("sessionAffinity"), v1.ServiceAffinityClientIP, v1.ServiceAffinityNone)...)
	errs = append(errs, validateSessionAffinity(&s.Spec, spec.Child("sessionAffinityConfig"))...)
	errs = append(errs, ValidateClusterIPs(s, old)...)

	var before []string
	if old != nil {
		before = old.Spec.ExternalIPs
	}
	for i, ip := range s.Spec.ExternalIPs {
		p := spec.Child("externalIPs").Index(i)
		if bad := validation.IsValidIPForLegacyField(p, ip, true, before); len(bad) > 0 {
			errs = append(errs, bad...)
		} else {
			errs = append(errs, endpointIP(ip, p)...)
		}
	}
	errs = append(errs, oneOf(s.Spec.Type, spec.Child("type"), v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort,
		v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName)...)
	errs = append(errs, validateServicePortNumbers(s, spec.Child("ports"))...)
	errs = append(errs, validateSourceRanges(s, old)...)
	errs = append(errs, validateLoadBalancerFields(s, spec)...)
	errs = append(errs, validateTrafficPolicies(s, spec)...)
	return errs
}

func validateServiceType(s *v1.Service, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch s.Spec.Type {
	case v1.ServiceTypeLoadBalancer, v1.ServiceTypeNodePort:
		if headless(s) {
			errs = append(errs, field.Invalid(spec.Child("clusterIPs").Index(0), s.Spec.ClusterIPs[0],
				fmt.Sprintf("may not be set to 'None' for %s services", s.Spec.Type)))
		}
	case v1.ServiceTypeExternalName:
		const why = "may not be set for ExternalName services"
		if len(s.Spec.ClusterIPs) > 0 {
			errs = append(errs, field.Forbidden(spec.Child("clusterIPs"), why))
		}
		if len(s.Spec.IPFamilies) > 0 {
			errs = append(errs, field.Forbidden(spec.Child("ipFamilies"), why))
		}
		if s.Spec.IPFamilyPolicy != nil {
			errs = append(errs, field.Forbidden(spec.Child("ipFamilyPolicy"), why))
		}
		if name := strings.TrimSuffix(s.Spec.ExternalName, "."); name != "" {
			errs = append(errs, dnsSubdomain(name, spec.Child("externalName"))...)
		} else {
			errs = append(errs, field.Required(spec.Child("externalName"), ""))
		}
	}
	return errs
}

func validateServicePorts(s *v1.Service, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range s.Spec.Ports {
		port, p := &s.Spec.Ports[i], p.Index(i)
		if port.Name == "" {
			if len(s.Spec.Ports) > 1 {
				errs = append(errs, field.Required(p.Child("name"), ""))
			}
		} else {
			errs = append(errs, dnsLabel(port.Name, p.Child("name"))...)
			if names.Has(port.Name) {
				errs = append(errs, field.Duplicate(p.Child("name"), port.Name))
			}
			names.Insert(port.Name)
		}
		errs = append(errs, portNumber(port.Port, p.Child("port"))...)
		errs = append(errs, oneOf(port.Protocol, p.Child("protocol"), protocols()...)...)
		errs = append(errs, portNumberOrName(port.TargetPort, p.Child("targetPort"))...)
		if port.AppProtocol != nil {
			errs = append(errs, qualifiedName(*port.AppProtocol, p.Child("appProtocol"))...)
		}
	}
	return errs
}

func validateServicePortNumbers(s *v1.Service, p *field.Path) field.ErrorList {
	type key struct {
		protocol v1.Protocol
		port     int32
	}
	var errs field.ErrorList
	if s.Spec.Type == v1.ServiceTypeClusterIP {
		for i := range s.Spec.Ports {
			if s.Spec.Ports[i].NodePort != 0 {
				errs = append(errs, field.Forbidden(p.Index(i).Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
			}
		}
	}
	nodePorts, ports := map[key]bool{}, map[key]bool{}
	for i, port := range s.Spec.Ports {
		if port.NodePort == 0 {
			continue
		}
		k := key{port.Protocol, port.NodePort}
		if nodePorts[k] {
			errs = append(errs, field.Duplicate(p.Index(i).Child("nodePort"), port.NodePort))
		}
		nodePorts[k] = true
	}
	for i, port := range s.Spec.Ports {
		k := key{port.Protocol, port.Port}
		if ports[k] {
			errs = append(errs, field.Duplicate(p.Index(i), v1.ServicePort{Protocol: port.Protocol, Port: port.Port}))
		}
		ports[k] = true
	}
	return errs
}

func validateSessionAffinity(spec *v1.ServiceSpec, p *field.Path) field.ErrorList {
	c := spec.SessionAffinityConfig
	switch spec.SessionAffinity {
	case v1.ServiceAffinityClientIP:
		const day = 24 * 60 * 60
		switch {
		case c == nil:
			return field.ErrorList{field.Required(p, "when session affinity type is ClientIP")}
		case c.ClientIP == nil:
			return field.ErrorList{field.Required(p.Child("clientIP"), "when session affinity type is ClientIP")}
		case c.ClientIP.TimeoutSeconds == nil:
			return field.ErrorList{field.Required(p.Child("clientIP").Child("timeoutSeconds"), "when session affinity type is ClientIP")}
		}
		if t := *c.ClientIP.TimeoutSeconds; t <= 0 || t > day {
			return field.ErrorList{field.Invalid(p.Child("clientIP").Child("timeoutSeconds"), t,
				fmt.Sprintf("must be greater than 0 and less than %d", day))}
		}
	case v1.ServiceAffinityNone:
		if c != nil {
			return field.ErrorList{field.Forbidden(p, "must not be set when session affinity is None")}
		}
	}
	return nil
}

func validateSourceRanges(s, old *v1.Service) field.ErrorList {
	var errs field.ErrorList
	const why = "may only be used when `type` is 'LoadBalancer'"
	annotation, annotated := s.Annotations[v1.AnnotationLoadBalancerSourceRangesKey]
	switch {
	case len(s.Spec.LoadBalancerSourceRanges) > 0:
		p := field.NewPath("spec", "LoadBalancerSourceRanges")
		if s.Spec.Type != v1.ServiceTypeLoadBalancer {
			errs = append(errs, field.Forbidden(p, why))
		}
		var before []string
		if old != nil {
			for _, cidr := range old.Spec.LoadBalancerSourceRanges {
				before = append(before, strings.TrimSpace(cidr))
			}
		}
		for i, cidr := range s.Spec.LoadBalancerSourceRanges {
			errs = append(errs, validation.IsValidCIDRForLegacyField(p.Index(i), strings.TrimSpace(cidr), true, before)...)
		}
	case annotated:
		p := field.NewPath("metadata", "annotations").Key(v1.AnnotationLoadBalancerSourceRangesKey)
		if s.Spec.Type != v1.ServiceTypeLoadBalancer {
			errs = append(errs, field.Forbidden(p, why))
		}
		if old != nil && old.Annotations[v1.AnnotationLoadBalancerSourceRangesKey] == annotation || strings.TrimSpace(annotation) == "" {
			break
		}
		for _, cidr := range strings.Split(strings.TrimSpace(annotation), ",") {
			errs = append(errs, validation.IsValidCIDRForLegacyField(p, strings.TrimSpace(cidr), true, nil)...)
		}
	}
	return errs
}

func validateLoadBalancerFields(s *v1.Service, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	const why = "may only be used when `type` is 'LoadBalancer'"
	if s.Spec.Type != v1.ServiceTypeLoadBalancer {
		if s.Spec.AllocateLoadBalancerNodePorts != nil {
			errs = append(errs, field.Forbidden(spec.Child("allocateLoadBalancerNodePorts"), why))
		}
		if s.Spec.LoadBalancerClass != nil {
			errs = append(errs, field.Forbidden(spec.Child("loadBalancerClass"), why))
		}
		return errs
	}
	if s.Spec.AllocateLoadBalancerNodePorts == nil {
		errs = append(errs, field.Required(field.NewPath("allocateLoadBalancerNodePorts"), ""))
	}
	if s.Spec.LoadBalancerClass != nil {
		errs = append(errs, qualifiedName(*s.Spec.LoadBalancerClass, spec.Child("loadBalancerClass"))...)
	}
	return errs
}

func validateTrafficPolicies(s *v1.Service, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	if external := spec.Child("externalTrafficPolicy"); externallyAccessible(s) {
		errs = append(errs, oneOf(s.Spec.ExternalTrafficPolicy, external,
			v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal)...)
	} else if s.Spec.ExternalTrafficPolicy != "" {
		errs = append(errs, field.Invalid(external, s.Spec.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
	}
	port := spec.Child("healthCheckNodePort")
	switch needs := needsHealthCheckPort(s); {
	case !needs && s.Spec.HealthCheckNodePort != 0:
		errs = append(errs, field.Invalid(port, s.Spec.HealthCheckNodePort,
			"may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	case needs && s.Spec.HealthCheckNodePort == 0:
		errs = append(errs, field.Required(port, ""))
	case needs:
		errs = append(errs, portNumber(s.Spec.HealthCheckNodePort, port)...)
	}
	if internal := spec.Child("internalTrafficPolicy"); s.Spec.InternalTrafficPolicy != nil {
		errs = append(errs, supported(*s.Spec.InternalTrafficPolicy, internal,
			v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)...)
	} else if s.Spec.Type == v1.ServiceTypeClusterIP || needsNodePort(s) {
		errs = append(errs, field.Required(internal, ""))
	}
	if t := s.Spec.TrafficDistribution; t != nil {
		known := []string{v1.ServiceTrafficDistributionPreferClose, v1.ServiceTrafficDistributionPreferSameZone, v1.ServiceTrafficDistributionPreferSameNode}
		if !slices.Contains(known, *t) {
			errs = append(errs, field.NotSupported(spec.Child("trafficDistribution"), *t, known))
		}
	}
	return errs
}

func validateServiceUpdate(s, old *v1.Service) field.ErrorList {
	errs := validateClusterIPChange(s, old)
	errs = append(errs, validateIPFamilyChange(s, old)...)
	if s.Spec.Type == v1.ServiceTypeLoadBalancer && old.Spec.Type == v1.ServiceTypeLoadBalancer &&
		!equal(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "loadBalancerClass"), s.Spec.LoadBalancerClass, "may not change once set"))
	}
	if needsHealthCheckPort(s) && needsHealthCheckPort(old) && s.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "healthCheckNodePort"), "field is immutable"))
	}
	return append(errs, validateService(s, old)...)
}

func validateLoadBalancerStatus(status, old *v1.LoadBalancerStatus, kind v1.ServiceType) field.ErrorList {
	var errs field.ErrorList
	p := field.NewPath("status", "loadBalancer", "ingress")
	if kind != v1.ServiceTypeLoadBalancer && len(status.Ingress) > 0 {
		return field.ErrorList{field.Forbidden(p, "may only be used when `spec.type` is 'LoadBalancer'")}
	}
	var before []string
	for _, in := range old.Ingress {
		before = append(before, in.IP)
	}
	for i, in := range status.Ingress {
		p := p.Index(i)
		if in.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(p.Child("ip"), in.IP, true, before)...)
		}
		switch {
		case in.IPMode == nil && in.IP != "":
			errs = append(errs, field.Required(p.Child("ipMode"), "must be specified when `ip` is set"))
		case in.IPMode != nil && in.IP == "":
			errs = append(errs, field.Forbidden(p.Child("ipMode"), "may not be specified when `ip` is not set"))
		case in.IPMode != nil:
			errs = append(errs, supported(*in.IPMode, p.Child("ipMode"), v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)...)
		}
		if in.Hostname != "" {
			errs = append(errs, dnsSubdomain(in.Hostname, p.Child("hostname"))...)
			if netutils.ParseIPSloppy(in.Hostname) != nil {
				errs = append(errs, field.Invalid(p.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
			}
		}
	}
	return errs
}

// endpointIP refuses addresses that no endpoint can have.
func endpointIP(value string, p *field.Path) field.ErrorList {
	ip := netutils.ParseIPSloppy(value)
	if ip == nil {
		return field.ErrorList{field.Invalid(p, value, "must be a valid IP address")}
	}
	var errs field.ErrorList
	for _, bad := range []struct {
		is  func(net.IP) bool
		why string
	}{
		{net.IP.IsUnspecified, fmt.Sprintf("may not be unspecified (%v)", value)},
		{net.IP.IsLoopback, "may not be in the loopback range (127.0.0.0/8, ::1/128)"},
		{net.IP.IsLinkLocalUnicast, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"},
		{net.IP.IsLinkLocalMulticast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"},
	} {
		if bad.is(ip) {
			errs = append(errs, field.Invalid(p, value, bad.why))
		}
	}
	return errs
}
