package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Port is one port of a Service in one family, as traffic sees it. Immutable.
type Port struct {
	// Name is namespace/service:port.
	Name     string
	V6       bool
	Protocol uint8 // IP protocol number
	Port     uint16
	NodePort uint16 // 0: none
	// HealthPort is where the Service's health is served, which rules may have to let in; 0: none.
	HealthPort uint16
	// ClusterIP is reached from inside; ExternalIPs and LoadBalancerIPs from anywhere.
	ClusterIP                    netip.Addr
	ExternalIPs, LoadBalancerIPs []netip.Addr
	// Sources may reach LoadBalancerIPs; none: everyone.
	Sources []netip.Prefix
	// Affinity is how long a client stays with its endpoint; 0: not at all.
	Affinity time.Duration
	// Cluster are the endpoints that a Cluster traffic policy uses, Local those of a Local one:
	// empty where none of the port's policies is of that kind. Sorted.
	Cluster, Local []netip.AddrPort
	// InternalLocal and ExternalLocal are the traffic policies.
	InternalLocal, ExternalLocal bool
	// Endpoints tells whether the port has any, on whatever node: without, it refuses.
	Endpoints bool
	// Here are the addresses of its endpoints on this node, which may reach themselves.
	Here []netip.Addr
	// Serving are all endpoints that flows may go on with, whatever the policies: only of
	// protocols whose flows must be forgotten (Forget).
	Serving []netip.AddrPort
}

// Forget tells whether flows to endpoints that are gone must be forgotten: a client that
// keeps its socket would stay with a dead endpoint for ever. TCP finds out by itself.
func (p *Port) Forget() bool { return p.Protocol != protocols[corev1.ProtocolTCP] }

// External tells whether the port is reached by more than its cluster IP.
func (p *Port) External() bool {
	return p.NodePort != 0 || len(p.ExternalIPs) > 0 || len(p.LoadBalancerIPs) > 0
}

// Internal are the endpoints for traffic to the cluster IP.
func (p *Port) Internal() []netip.AddrPort {
	if p.InternalLocal {
		return p.Local
	}
	return p.Cluster
}

// Outside are the endpoints for traffic that comes from outside.
func (p *Port) Outside() []netip.AddrPort {
	if p.ExternalLocal {
		return p.Local
	}
	return p.Cluster
}

var protocols = map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}

func protocolOf(p corev1.Protocol) uint8 {
	switch p {
	case corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return protocols[p]
	}
	return protocols[corev1.ProtocolTCP]
}

// proxyNameLabel names another proxy that a Service is left to.
const proxyNameLabel = "service.kubernetes.io/service-proxy-name"

// skip tells Services that are not ours to program.
func skip(svc *corev1.Service) bool {
	_, others := svc.Labels[proxyNameLabel]
	return others || svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == "" ||
		svc.Spec.Type == corev1.ServiceTypeExternalName
}

// where a proxy is: its node, and the zone that the node's label names, if it has one.
type where struct{ node, zone string }

// ports decides what a Service and its EndpointSlices mean on a node, in each family that
// the Service has a cluster IP of. Pure.
func ports(svc *corev1.Service, slices []*discoveryv1.EndpointSlice, here where) []Port {
	if svc == nil || skip(svc) {
		return nil
	}
	clusterIPs := svc.Spec.ClusterIPs
	if len(clusterIPs) == 0 {
		clusterIPs = []string{svc.Spec.ClusterIP}
	}
	out := make([]Port, 0, len(svc.Spec.Ports)*len(clusterIPs))
	for _, ip := range clusterIPs {
		clusterIP, err := netip.ParseAddr(ip)
		if err != nil {
			continue
		}
		clusterIP = clusterIP.Unmap()
		base := Port{
			V6: clusterIP.Is6(), ClusterIP: clusterIP, Affinity: affinity(svc),
			InternalLocal: svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
			ExternalLocal: svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		}
		base.ExternalIPs = addrs(svc.Spec.ExternalIPs, base.V6)
		base.HealthPort = healthPortOf(svc)
		base.LoadBalancerIPs = vips(svc, base.V6)
		if len(base.LoadBalancerIPs) > 0 {
			base.Sources = sources(svc.Spec.LoadBalancerSourceRanges, base.V6)
		}
		for i := range svc.Spec.Ports {
			sp := &svc.Spec.Ports[i]
			p := base
			p.Name = svc.Namespace + "/" + svc.Name + ":" + sp.Name
			p.Protocol, p.Port, p.NodePort = protocolOf(sp.Protocol), uint16(sp.Port), uint16(sp.NodePort)
			p.assign(slices, sp, here)
			out = append(out, p)
		}
	}
	return out
}

func affinity(svc *corev1.Service) time.Duration {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
	}
	return time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
}

// vips are the load balancer's addresses whose traffic arrives with them as destination
// (KEP-1860): a balancer in mode Proxy has rewritten it.
func vips(svc *corev1.Service, v6 bool) (out []netip.Addr) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
			out = append(out, addrs([]string{in.IP}, v6)...)
		}
	}
	return out
}

// sources are the ranges of a family, none within another; a range of everything, or
// none of the family, admits all.
func sources(ranges []string, v6 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range ranges {
		p, err := netip.ParsePrefix(strings.TrimSpace(r))
		if err != nil || p.Addr().Is6() != v6 {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	var kept []netip.Prefix
	for _, p := range out {
		if !slices.ContainsFunc(kept, func(k netip.Prefix) bool { return k.Contains(p.Addr()) }) {
			kept = append(kept, p)
		}
	}
	slices.SortFunc(kept, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return kept
}

func addrs(ss []string, v6 bool) (out []netip.Addr) {
	for _, s := range ss {
		if a, err := netip.ParseAddr(s); err == nil && a.Unmap().Is6() == v6 {
			out = append(out, a.Unmap())
		}
	}
	return out
}
