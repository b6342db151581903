package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// stale are the flows that changed ports leave behind: tracked connections to where the
// port no longer leads. They are judged by what still serves, not by traffic policies:
// a flow that works goes on, as a TCP connection would.
type stale struct {
	byAddr map[flowKey][]netip.AddrPort
	byPort map[nodePortKey][]netip.AddrPort
	// own are this host's addresses, where node ports are.
	own map[netip.Addr]bool
}

type flowKey struct {
	to       netip.AddrPort
	protocol uint8
}

type nodePortKey struct {
	protocol uint8
	port     uint16
	v6       bool
}

func newStale() *stale {
	return &stale{byAddr: map[flowKey][]netip.AddrPort{}, byPort: map[nodePortKey][]netip.AddrPort{}}
}

// changed notes a port as it is now.
func (s *stale) changed(p *Port) { s.note(p, p.Serving) }

// gone notes one that is no more, unless another has its fronts by now.
func (s *stale) gone(p *Port) {
	if p.Forget() {
		s.note(p, nil)
	}
}

func (s *stale) note(p *Port, serving []netip.AddrPort) {
	if !p.Forget() {
		return
	}
	at := func(a netip.Addr) {
		k := flowKey{netip.AddrPortFrom(a, p.Port), p.Protocol}
		s.byAddr[k] = append(s.byAddr[k], serving...)
	}
	at(p.ClusterIP)
	for _, a := range p.ExternalIPs {
		at(a)
	}
	for _, a := range p.LoadBalancerIPs {
		at(a)
	}
	if p.NodePort != 0 {
		k := nodePortKey{p.Protocol, p.NodePort, p.V6}
		s.byPort[k] = append(s.byPort[k], serving...)
	}
}

func (s *stale) empty() bool { return len(s.byAddr) == 0 && len(s.byPort) == 0 }

// kinds are those that there are: each costs a walk of the kernel's table.
func (s *stale) kinds() (out []netlink.FlowKind) {
	add := func(k netlink.FlowKind) {
		if !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	for k := range s.byAddr {
		add(netlink.FlowKind{V6: k.to.Addr().Is6(), Protocol: k.protocol})
	}
	for k := range s.byPort {
		add(netlink.FlowKind{V6: k.v6, Protocol: k.protocol})
	}
	return out
}

func (s *stale) match(f netlink.Flow) bool {
	if serving, ok := s.byAddr[flowKey{f.Original, f.Protocol}]; ok {
		return !slices.Contains(serving, f.Answers)
	}
	serving, ok := s.byPort[nodePortKey{f.Protocol, f.Original.Port(), f.Original.Addr().Is6()}]
	// A flow to that port of another host is not ours.
	return ok && s.own[f.Original.Addr()] && !slices.Contains(serving, f.Answers)
}

// localAddresses are those of this host's links.
func localAddresses() (map[netip.Addr]bool, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := map[netip.Addr]bool{}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out[p.Addr().Unmap()] = true
		}
	}
	return out, nil
}
