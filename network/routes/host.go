package routes

import (
	"net/netip"
	"slices"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// host is what this machine's links and routes say of who can be reached how.
type host struct {
	links map[int]netlink.Link
	// paths are the routes that are not ours, the most specific first.
	paths []netlink.Route
}

// newHost leaves out what skips: our own routes, and links that only pods are behind.
func newHost(links []netlink.Link, routes []netlink.Route, skip func(netlink.Route) bool) host {
	h := host{links: map[int]netlink.Link{}}
	for _, l := range links {
		h.links[l.Index] = l
	}
	for _, r := range routes {
		if l, ok := h.links[r.Link]; ok && l.Up && !skip(r) {
			h.paths = append(h.paths, r)
		}
	}
	slices.SortStableFunc(h.paths, func(a, b netlink.Route) int {
		if a.Dst.Bits() != b.Dst.Bits() {
			return b.Dst.Bits() - a.Dst.Bits()
		}
		return a.Metric - b.Metric
	})
	return h
}

// path by which the host sends to an address.
func (h host) path(to netip.Addr) (netlink.Route, bool) {
	for _, r := range h.paths {
		if r.Dst.Contains(to) {
			return r, true
		}
	}
	return netlink.Route{}, false
}

// onLink tells whether an address is a neighbour's, on a link where it would pass on what is sent to
// others through it.
func (h host) onLink(to netip.Addr) (link int, ok bool) {
	r, found := h.path(to)
	if !found || r.Gateway.IsValid() || !h.links[r.Link].Neighbours {
		return 0, false
	}
	return r.Link, true
}

// prefixes on the links, but for those of pods; the widest first, and no more than may be published.
func (h host) prefixes(pods []netip.Prefix) []netip.Prefix {
	out := []netip.Prefix{}
	for _, r := range slices.Backward(h.paths) {
		if r.Gateway.IsValid() || !h.links[r.Link].Neighbours || r.Dst.Addr().IsLinkLocalUnicast() || slices.ContainsFunc(pods, r.Dst.Overlaps) {
			continue
		}
		if !slices.Contains(out, r.Dst) && len(out) < maxOnLink {
			out = append(out, r.Dst)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}

// carrier is the link that has an address.
func (h host) carrier(a netip.Addr) (netlink.Link, bool) {
	for _, l := range h.links {
		for _, p := range l.Addresses {
			if p.Addr() == a {
				return l, true
			}
		}
	}
	return netlink.Link{}, false
}

// mtu that packets of pods may have on the way to other nodes: that of the links which carry the
// node's addresses. 0 if none does. A loopback link, on which routers keep addresses that move
// between links, says nothing.
func (h host) mtu(ips []netip.Addr) int {
	least := 0
	for _, a := range ips {
		l, ok := h.carrier(a)
		if ok && l.Name == "lo" {
			r, found := h.path(defaultDestination(a))
			if l, ok = h.links[r.Link]; !found {
				continue
			}
		}
		if ok && (least == 0 || l.MTU < least) {
			least = l.MTU
		}
	}
	return least
}

// defaultDestination stands for the outside (addresses of documentation, RFC 5737 and 3849).
func defaultDestination(like netip.Addr) netip.Addr {
	if like.Is6() {
		return netip.MustParseAddr("2001:db8::1")
	}
	return netip.MustParseAddr("192.0.2.1")
}

func (h host) equal(o host) bool {
	return slices.Equal(h.paths, o.paths) && len(h.relevant()) == len(o.relevant()) && slices.EqualFunc(h.relevant(), o.relevant(), func(a, b netlink.Link) bool {
		return a.Index == b.Index && a.Name == b.Name && a.Kind == b.Kind && a.MTU == b.MTU && a.Up == b.Up && slices.Equal(a.Addresses, b.Addresses)
	})
}

// relevant links have addresses; the host ends of pods' links have at most a link-local one.
func (h host) relevant() []netlink.Link {
	var out []netlink.Link
	for _, l := range h.links {
		if slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return !p.Addr().IsLinkLocalUnicast() }) {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b netlink.Link) int { return a.Index - b.Index })
	return out
}
