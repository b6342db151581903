package netlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Uplink is what joins a network namespace that is a machine of its own (it has
// addresses in a subnet, and routes) to a bridge.
type Uplink struct {
	Bridge   string
	HostLink string // name of the bridge's side, at most 15 bytes
	NetNS    string // path of the namespace
	Link     string // name inside it
	MTU      int    // 0: the kernel's default
	// Addresses with the subnet that each is in.
	Addresses []netip.Prefix
	// Gateways are where all else goes, one a family; they are in the subnets.
	Gateways []netip.Addr
	// OnLink are addresses outside the subnets that the bridge's host answers for.
	OnLink []netip.Addr
}

// EnsureUplink makes a veth pair between bridge and namespace, or mends the one that is there. Idempotent.
func EnsureUplink(u Uplink) error {
	bridge, err := netlink.LinkByName(u.Bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", u.Bridge, err)
	}
	ns, err := os.Open(u.NetNS)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	// No other family: kernels without IPsec have no XFRM.
	h, err := netlink.NewHandleAt(nsHandle(ns), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", u.NetNS, err)
	}
	defer h.Close()
	inside, err := h.LinkByName(u.Link)
	if err != nil && !isNotFound(err) {
		return fmt.Errorf("find %s in %s: %w", u.Link, u.NetNS, err)
	}
	have := err == nil
	if host, err := netlink.LinkByName(u.HostLink); err != nil && !isNotFound(err) {
		return fmt.Errorf("find link %s: %w", u.HostLink, err)
	} else if err != nil || !have || host.Attrs().MasterIndex != bridge.Attrs().Index {
		if inside, err = addUplink(u, bridge, h, ns); err != nil {
			return err
		}
	} else if err := netlink.LinkSetUp(host); err != nil {
		return fmt.Errorf("bring up %s: %w", u.HostLink, err)
	}
	// A node that reaches its own pods by a Service at the host comes back by its port.
	if err := setHairpin(u.HostLink); err != nil {
		return err
	}
	if err := h.LinkSetUp(inside); err != nil {
		return fmt.Errorf("bring up %s: %w", u.Link, err)
	}
	for _, p := range u.Addresses {
		if err := addAddr(h, inside, p); err != nil {
			return fmt.Errorf("add address %s to %s: %w", p, u.Link, err)
		}
	}
	for _, a := range u.OnLink {
		r := &netlink.Route{LinkIndex: inside.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(netip.PrefixFrom(a, a.BitLen()))}
		if err := h.RouteReplace(r); err != nil {
			return fmt.Errorf("add route to %s: %w", a, err)
		}
	}
	for _, gw := range u.Gateways {
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gw.Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		if err := h.RouteReplace(&netlink.Route{LinkIndex: inside.Attrs().Index, Gw: gw.AsSlice(), Dst: ipNet(all)}); err != nil {
			return fmt.Errorf("add default route by %s: %w", gw, err)
		}
	}
	return nil
}

func addUplink(u Uplink, bridge netlink.Link, h *netlink.Handle, ns *os.File) (netlink.Link, error) {
	if err := RemoveLink(u.HostLink); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex, attrs.Flags = u.HostLink, u.MTU, bridge.Attrs().Index, net.FlagUp
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: u.Link, PeerNamespace: netlink.NsFd(ns.Fd()), PeerMTU: uint32(u.MTU)}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("add veth %s: %w", u.HostLink, err)
	}
	inside, err := h.LinkByName(u.Link)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find %s in %s: %w", u.Link, u.NetNS, err), RemoveLink(u.HostLink))
	}
	return inside, nil
}

// Destinations are the prefixes that this host has routes to, but for default routes and
// those of its own and of multicast addresses, with the name of the link.
func Destinations() (map[netip.Prefix]string, error) {
	out := map[netip.Prefix]string{}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		p, ok := prefixOf(r.Dst)
		if !ok || p.Bits() == 0 || p.Addr().IsMulticast() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		name := ""
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			name = link.Attrs().Name
		}
		out[p.Masked()] = name
	}
	return out, nil
}

// HasLink tells whether this host has a link of that name.
func HasLink(name string) (bool, error) {
	_, err := netlink.LinkByName(name)
	if isNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find link %s: %w", name, err)
	}
	return true, nil
}
