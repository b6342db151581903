package routes

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Mode says when VXLAN is used.
type Mode string

const (
	// Auto: for nodes that are on no link of this one.
	Auto Mode = ""
	// Always: for all nodes; for networks that drop packets with pods' addresses.
	Always Mode = "vxlan"
	// Never: other nodes' pods are reached by routes or not at all.
	Never Mode = "routes"
)

// underlay is the IP version that carries VXLAN packets: 4 or 6; 0 is none.
type underlay uint8

// overhead of VXLAN: outer IP header, UDP, VXLAN and the inner Ethernet header.
func (u underlay) overhead() int {
	if u == 6 {
		return 40 + 8 + 8 + 14
	}
	return 20 + 8 + 8 + 14
}

var underlays = [...]underlay{4, 6}

// route to the pods of a node.
type route struct {
	gateway netip.Addr
	// link is an index; for a route by VXLAN it is 0, and over says which link.
	link   int
	over   underlay
	source netip.Addr
	onLink bool
}

// entry of a VXLAN link: a neighbour by address, or a remote by MAC address.
type (
	neighbour struct {
		over underlay
		ip   netip.Addr
	}
	remote struct {
		over underlay
		mac  mac
	}
)

// table is what the kernel has, or should have, of this package's making.
type table struct {
	routes     map[netip.Prefix]route
	neighbours map[neighbour]mac
	remotes    map[remote]netip.Addr
}

func newTable() table {
	return table{map[netip.Prefix]route{}, map[neighbour]mac{}, map[remote]netip.Addr{}}
}

// merge adds o's entries.
func (t table) merge(o table) {
	maps.Copy(t.routes, o.routes)
	maps.Copy(t.neighbours, o.neighbours)
	maps.Copy(t.remotes, o.remotes)
}

func (t table) equal(o table) bool {
	return maps.Equal(t.routes, o.routes) && maps.Equal(t.neighbours, o.neighbours) && maps.Equal(t.remotes, o.remotes)
}

// self is this node and the rules of its cluster.
type self struct {
	peer
	clusterCIDRs []netip.Prefix
	mode         Mode
	tunnel       tunnel
}

// outcome is what one peer asks for.
type outcome struct {
	table table
	// over is the VXLAN link that the peer is reached by; 0: none.
	over underlay
	errs []error
}

var errUnsaid = errors.New("is on no link of this node and does not say how to reach it by VXLAN (annotation " + Annotation + ")")

// decide what leads to a peer's pods. wins tells whether a CIDR is the peer's and not that of another
// node which claims it too. Pure.
func decide(h host, s self, p peer, wins func(netip.Prefix) bool) outcome {
	out := outcome{table: newTable()}
	for _, c := range p.podCIDRs {
		if err := s.check(c); err != nil {
			out.errs = append(out.errs, err)
			continue
		}
		if !wins(c) {
			out.errs = append(out.errs, fmt.Errorf("pod CIDR %s is another node's too", c))
			continue
		}
		if ip := p.ip(c.Addr().Is6()); s.mode != Always && ip.IsValid() {
			seen := p.tunnel == nil || p.tunnel.sees(s.ip(ip.Is6()))
			if link, ok := h.onLink(ip); ok && seen {
				out.table.routes[c] = route{gateway: ip, link: link}
				continue
			}
		}
		if s.mode == Never {
			out.errs = append(out.errs, fmt.Errorf("pod CIDR %s: the node is on no link of this one, and VXLAN is turned off", c))
			continue
		}
		if err := out.byTunnel(h, s, p, c); err != nil {
			out.errs = append(out.errs, fmt.Errorf("pod CIDR %s: %w", c, err))
		}
	}
	return out
}

func (out *outcome) byTunnel(h host, s self, p peer, c netip.Prefix) error {
	u, ip, ok := common(s, p)
	if !ok {
		return errors.New("the node has no InternalIP of a family that this one has")
	}
	if p.tunnel == nil {
		return errUnsaid
	}
	if p.tunnel.VNI != s.tunnel.VNI || p.tunnel.Port != s.tunnel.Port {
		return fmt.Errorf("the node has VXLAN network %d at UDP port %d, this one %d at %d; they must agree", p.tunnel.VNI, p.tunnel.Port, s.tunnel.VNI, s.tunnel.Port)
	}
	if p.tunnel.MAC == s.tunnel.MAC {
		return fmt.Errorf("the node has the MAC address %s of this one", p.tunnel.MAC)
	}
	if _, ok := h.path(ip); !ok {
		return fmt.Errorf("no route to %s", ip)
	}
	out.over = u
	r := route{over: u, gateway: c.Addr(), onLink: true}
	if c.Addr().Is6() {
		// Link-local, so that the gateway does not depend on the route it is the gateway of.
		r.gateway, r.onLink = p.tunnel.MAC.linkLocal(), false
	}
	if own := s.cidr(c.Addr().Is6()); own.IsValid() {
		r.source = own.Addr() // replies come back the way packets went
	}
	out.table.routes[c] = r
	out.table.neighbours[neighbour{u, r.gateway}] = p.tunnel.MAC
	out.table.remotes[remote{u, p.tunnel.MAC}] = ip
	return nil
}

// common is the underlay that both nodes have and the peer's address in it. Both come to the same.
func common(s self, p peer) (underlay, netip.Addr, bool) {
	for _, u := range underlays {
		if ip := p.ip(u == 6); ip.IsValid() && s.ip(u == 6).IsValid() {
			return u, ip, true
		}
	}
	return 0, netip.Addr{}, false
}

// check that a CIDR may be another node's.
func (s self) check(c netip.Prefix) error {
	inside := func(all netip.Prefix) bool { return all.Contains(c.Addr()) && all.Bits() <= c.Bits() }
	if len(s.clusterCIDRs) > 0 && !slices.ContainsFunc(s.clusterCIDRs, inside) {
		return fmt.Errorf("pod CIDR %s is outside of the cluster's %v", c, s.clusterCIDRs)
	}
	if slices.ContainsFunc(s.podCIDRs, c.Overlaps) {
		return fmt.Errorf("pod CIDR %s overlaps with this node's", c)
	}
	return nil
}

// cidr of a family.
func (s self) cidr(v6 bool) netip.Prefix {
	for _, c := range s.podCIDRs {
		if c.Addr().Is6() == v6 {
			return c
		}
	}
	return netip.Prefix{}
}

// change is one step from what is to what should be; exactly one of its pointers is set. A deletion
// names what there is.
type change struct {
	delete    bool
	dst       netip.Prefix
	route     *route
	replaces  bool // the destination has a route of ours
	neighbour *neighbour
	remote    *remote
	mac       mac
	ip        netip.Addr
}

// to is where the change leads packets.
func (c change) to() string {
	switch {
	case c.neighbour != nil:
		return c.neighbour.ip.String()
	case c.remote != nil:
		return c.ip.String()
	}
	return c.dst.String()
}

// diff lists the changes that make have want, in an order in which no packet is sent where nobody
// knows on.
func diff(have, want table) []change {
	var out []change
	for k, ip := range want.remotes {
		if old, ok := have.remotes[k]; !ok || old != ip {
			out = append(out, change{remote: &k, ip: ip})
		}
	}
	for k, m := range want.neighbours {
		if old, ok := have.neighbours[k]; !ok || old != m {
			out = append(out, change{neighbour: &k, mac: m})
		}
	}
	for dst, r := range have.routes {
		if _, ok := want.routes[dst]; !ok {
			out = append(out, change{delete: true, dst: dst, route: &r})
		}
	}
	for dst, r := range want.routes {
		if old, ok := have.routes[dst]; !ok || old != r {
			out = append(out, change{dst: dst, route: &r, replaces: ok})
		}
	}
	for k, m := range have.neighbours {
		if _, ok := want.neighbours[k]; !ok {
			out = append(out, change{delete: true, neighbour: &k, mac: m})
		}
	}
	for k, ip := range have.remotes {
		if _, ok := want.remotes[k]; !ok {
			out = append(out, change{delete: true, remote: &k, ip: ip})
		}
	}
	return out
}

// done enters a change that was made.
func (t table) done(c change) {
	switch {
	case c.route != nil && c.delete:
		delete(t.routes, c.dst)
	case c.route != nil:
		t.routes[c.dst] = *c.route
	case c.neighbour != nil && c.delete:
		delete(t.neighbours, *c.neighbour)
	case c.neighbour != nil:
		t.neighbours[*c.neighbour] = c.mac
	case c.remote != nil && c.delete:
		delete(t.remotes, *c.remote)
	case c.remote != nil:
		t.remotes[*c.remote] = c.ip
	}
}
