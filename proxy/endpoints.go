package proxy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// assign gives a port its endpoints. Endpoints are usable when they are ready, or, where
// none is, while they still serve though they terminate (KEP-1669); a Cluster policy uses
// the nearest, if all of them are hinted (KEP-2433, KEP-3015), a Local one those of this node.
func (p *Port) assign(all []*discoveryv1.EndpointSlice, sp *corev1.ServicePort, here where) {
	// Even a Local external policy needs those of the cluster: traffic from this node and its
	// pods is taken as if it came back from an outer balancer.
	useCluster := !p.InternalLocal || p.External()
	useLocal := p.InternalLocal || p.ExternalLocal && p.External()
	var ready, leaving, readyHere, leavingHere []netip.AddrPort
	near := newNearest(here)
	for _, s := range all {
		if (s.AddressType == discoveryv1.AddressTypeIPv6) != p.V6 {
			continue
		}
		port, ok := slicePort(s, sp)
		if !ok {
			continue
		}
		if ready == nil {
			ready = make([]netip.AddrPort, 0, len(s.Endpoints))
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			// Only the first address counts, as the API says.
			if len(e.Addresses) == 0 {
				continue
			}
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || a.Unmap().Is6() != p.V6 {
				continue // an FQDN slice
			}
			ap := netip.AddrPortFrom(a.Unmap(), port)
			local := e.NodeName != nil && *e.NodeName == here.node
			isReady := e.Conditions.Ready == nil || *e.Conditions.Ready
			serving := e.Conditions.Serving == nil || *e.Conditions.Serving
			if serving && p.Forget() {
				p.Serving = append(p.Serving, ap)
			}
			switch {
			case isReady:
				ready = append(ready, ap)
				near.add(e.Hints, ap)
				if local {
					readyHere = append(readyHere, ap)
				}
			case serving && isTrue(e.Conditions.Terminating):
				leaving = append(leaving, ap)
				if local {
					leavingHere = append(leavingHere, ap)
				}
			default:
				continue
			}
			if local && !slices.Contains(p.Here, ap.Addr()) {
				p.Here = append(p.Here, ap.Addr())
			}
		}
	}
	p.Endpoints = len(ready)+len(leaving) > 0
	if useCluster {
		if p.Cluster = ready; len(ready) == 0 {
			p.Cluster = leaving
		} else if hinted := near.pick(); hinted != nil {
			p.Cluster = hinted
		}
		p.Cluster = tidy(p.Cluster)
	}
	if useLocal {
		if p.Local = readyHere; len(readyHere) == 0 {
			p.Local = leavingHere
		}
		p.Local = tidy(p.Local)
	}
	p.Serving = tidy(p.Serving)
}

func tidy(eps []netip.AddrPort) []netip.AddrPort {
	if len(eps) == 0 {
		return nil
	}
	slices.SortFunc(eps, netip.AddrPort.Compare)
	return slices.Compact(eps)
}

// nearest collects the endpoints that hints give to a node or its zone. Hints count only
// if every ready endpoint has them: a part of them says nothing about the rest.
type nearest struct {
	here               where
	onNode, inZone     []netip.AddrPort
	allNodes, allZones bool
}

func newNearest(here where) *nearest { return &nearest{here: here, allNodes: true, allZones: true} }

func (n *nearest) add(h *discoveryv1.EndpointHints, ap netip.AddrPort) {
	if h == nil {
		n.allNodes, n.allZones = false, false
		return
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
	for i := range s.Ports {
		p := &s.Ports[i]
		name, proto := "", corev1.ProtocolTCP
		if p.Name != nil {
			name = *p.Name
		}
		if p.Protocol != nil {
			proto = *p.Protocol
		}
		if name == sp.Name && protocolOf(proto) == protocolOf(sp.Protocol) && p.Port != nil {
			return uint16(*p.Port), true
		}
	}
	return 0, false
}

func isTrue(b *bool) bool { return b != nil && *b }
