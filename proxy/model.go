package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Port is one port of a Service as traffic sees it.
type Port struct {
	// Name is namespace/service:port, for logs.
	Name     string
	Protocol uint8 // IP protocol number
	Port     uint16
	// ClusterIPs are reached from inside; Externals are external IPs and load balancer addresses.
	ClusterIPs, Externals []netip.Addr
	NodePort              uint16 // 0: none
	// Affinity is how long a client stays with its endpoint; 0: not at all.
	Affinity time.Duration
	// Internal and External are the endpoints for traffic from inside and outside: they
	// differ where a traffic policy is Local. Sorted, of both families.
	Internal, External []netip.AddrPort
	// KeepSource: external traffic keeps its source address and is dropped where this node has
	// no endpoint (externalTrafficPolicy Local).
	KeepSource bool
}

// UDP tells whether connection tracking must be told of changes.
func (p *Port) UDP() bool { return p.Protocol == protocols[corev1.ProtocolUDP] }

var protocols = map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}

// proxyNameLabel names another proxy that a Service is left to.
const proxyNameLabel = "service.kubernetes.io/service-proxy-name"

func others(svc *corev1.Service) bool {
	_, yes := svc.Labels[proxyNameLabel]
	return yes
}

// where a proxy is: its node, and the zone that the node's label names, if it has one.
type where struct{ node, zone string }

// ports decides what a Service and its EndpointSlices mean on a node. Pure.
func ports(svc *corev1.Service, slices []*discoveryv1.EndpointSlice, here where) []Port {
	if svc == nil || svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == "" ||
		svc.Spec.Type == corev1.ServiceTypeExternalName || others(svc) {
		return nil
	}
	var affinity time.Duration
	if c := svc.Spec.SessionAffinityConfig; svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		affinity = time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
		if c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			affinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
	clusterIPs := svc.Spec.ClusterIPs
	if len(clusterIPs) == 0 {
		clusterIPs = []string{svc.Spec.ClusterIP}
	}
	externals := svc.Spec.ExternalIPs
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		for _, in := range svc.Status.LoadBalancer.Ingress {
			if in.IP != "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP) {
				externals = append(externals[:len(externals):len(externals)], in.IP)
			}
		}
	}
	internalLocal := svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	externalLocal := svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	out := make([]Port, 0, len(svc.Spec.Ports))
	for i := range svc.Spec.Ports {
		sp := &svc.Spec.Ports[i]
		all := endpoints(slices, sp, here, false)
		p := Port{
			Name: svc.Namespace + "/" + svc.Name + ":" + sp.Name, Protocol: protocols[sp.Protocol],
			Port: uint16(sp.Port), NodePort: uint16(sp.NodePort), Affinity: affinity,
			ClusterIPs: addrs(clusterIPs), Externals: addrs(externals),
			Internal: all, External: all, KeepSource: externalLocal,
		}
		if internalLocal || externalLocal {
			local := endpoints(slices, sp, here, true)
			if internalLocal {
				p.Internal = local
			}
			if externalLocal {
				p.External = local
			}
		}
		out = append(out, p)
	}
	return out
}

// endpoints of a port, on this node or anywhere: the ready ones, the nearest if they are
// hinted, or, where there are none, those that still serve while they terminate (KEP-1669).
func endpoints(all []*discoveryv1.EndpointSlice, sp *corev1.ServicePort, here where, local bool) []netip.AddrPort {
	var ready, leaving []netip.AddrPort
	near := newNearest(here)
	for _, s := range all {
		port, ok := slicePort(s, sp)
		if !ok {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if local && (e.NodeName == nil || *e.NodeName != here.node) {
				continue
			}
			// Only the first address counts, as the API says.
			if len(e.Addresses) == 0 {
				continue
			}
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				continue // an FQDN slice
			}
			ap := netip.AddrPortFrom(a.Unmap(), port)
			switch {
			case e.Conditions.Ready == nil || *e.Conditions.Ready:
				ready = append(ready, ap)
				near.add(e.Hints, ap)
			case isTrue(e.Conditions.Serving) && isTrue(e.Conditions.Terminating):
				leaving = append(leaving, ap)
			}
		}
	}
	if len(ready) == 0 {
		ready = leaving
	} else if hinted := near.pick(); !local && hinted != nil {
		ready = hinted
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}

// nearest collects the endpoints that hints give to a node or its zone. Hints count only
// if every ready endpoint has them: a part of them says nothing about the rest
// (KEP-2433, KEP-3015).
type nearest struct {
	here               where
	onNode, inZone     []netip.AddrPort
	allNodes, allZones bool
}

func newNearest(here where) *nearest { return &nearest{here: here, allNodes: true, allZones: true} }

func (n *nearest) add(h *discoveryv1.EndpointHints, ap netip.AddrPort) {
	if h == nil {
		h = &discoveryv1.EndpointHints{}
	}
	n.allNodes = n.allNodes && len(h.ForNodes) > 0
	n.allZones = n.allZones && len(h.ForZones) > 0
	if slices.Contains(h.ForNodes, discoveryv1.ForNode{Name: n.here.node}) {
		n.onNode = append(n.onNode, ap)
	}
	if n.here.zone != "" && slices.Contains(h.ForZones, discoveryv1.ForZone{Name: n.here.zone}) {
		n.inZone = append(n.inZone, ap)
	}
}

// pick is nil where hints decide nothing.
func (n *nearest) pick() []netip.AddrPort {
	switch {
	case n.allNodes && len(n.onNode) > 0:
		return n.onNode
	case n.allZones && len(n.inZone) > 0:
		return n.inZone
	}
	return nil
}

func slicePort(s *discoveryv1.EndpointSlice, sp *corev1.ServicePort) (uint16, bool) {
	for _, p := range s.Ports {
		name, proto := "", corev1.ProtocolTCP
		if p.Name != nil {
			name = *p.Name
		}
		if p.Protocol != nil {
			proto = *p.Protocol
		}
		if name == sp.Name && proto == cmp.Or(sp.Protocol, corev1.ProtocolTCP) && p.Port != nil {
			return uint16(*p.Port), true
		}
	}
	return 0, false
}

func isTrue(b *bool) bool { return b != nil && *b }

func addrs(ss []string) []netip.Addr {
	out := make([]netip.Addr, 0, len(ss))
	for _, s := range ss {
		if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}
