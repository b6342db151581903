// Package netlink is the seam to the kernel's links, addresses, routes and
// network namespaces. It owns every netlink call of skiff but nftables' (host/nft).
//
// Must not: know pods, nodes or Kubernetes; keep state of its own.
package netlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bridge describes a bridge and the addresses it must carry.
type Bridge struct {
	Name string
	MTU  int // 0: the kernel's default
	// Addresses are the gateway addresses with the prefix they serve.
	Addresses []netip.Prefix
	// Prepare, if set, is called once the link is there, before it has addresses and comes up.
	Prepare func() error
}

// Port is one container's end of the network: a veth pair whose host side is a port of Bridge.
type Port struct {
	Bridge    string
	HostLink  string // name of the host side, at most 15 bytes
	NetNS     string // path of the container's network namespace
	Link      string // name inside the namespace, usually eth0
	MTU       int
	Addresses []netip.Addr // given as /32 or /128
	// Gateways are on-link addresses that all traffic goes through, one a family.
	Gateways []netip.Addr
}

// EnsureBridge makes the bridge and its addresses, removes addresses it should not
// carry and brings it up. Idempotent.
func EnsureBridge(b Bridge) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = b.Name
	attrs.MTU = b.MTU
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add bridge %s: %w", b.Name, err)
	}
	link, err := netlink.LinkByName(b.Name)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", b.Name, err)
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("link %s exists and is a %s, not a bridge; remove it or choose another cluster name", b.Name, link.Type())
	}
	// An address that is set stays; by itself a bridge has the lowest of its ports', and neighbors that
	// know the former one do not reach it until they ask again.
	if err := netlink.LinkSetHardwareAddr(link, link.Attrs().HardwareAddr); err != nil {
		return fmt.Errorf("keep the address of %s: %w", b.Name, err)
	}
	if b.Prepare != nil {
		if err := b.Prepare(); err != nil {
			return err
		}
	}
	have, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", b.Name, err)
	}
	want := map[netip.Prefix]bool{}
	for _, p := range b.Addresses {
		want[p] = true
	}
	for i := range have {
		p, ok := prefixOf(have[i].IPNet)
		if !ok || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if want[p] {
			delete(want, p)
			continue
		}
		if err := netlink.AddrDel(link, &have[i]); err != nil {
			return fmt.Errorf("remove address %s of %s: %w", p, b.Name, err)
		}
	}
	for p := range want {
		if err := addAddr(nil, link, p); err != nil {
			return fmt.Errorf("add address %s to %s: %w", p, b.Name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s: %w", b.Name, err)
	}
	return nil
}

// AddPort connects a namespace to a bridge. A left-over host side of the same name is
// replaced. Every packet of the container is routed by the host (its addresses
// are host routes), so that connection tracking sees both directions even between two
// ports of one bridge, with no need of br_netfilter.
func AddPort(p Port) error {
	bridge, err := netlink.LinkByName(p.Bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", p.Bridge, err)
	}
	ns, err := os.Open(p.NetNS)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = p.HostLink
	attrs.MTU = p.MTU
	attrs.MasterIndex = bridge.Attrs().Index
	attrs.Flags = net.FlagUp
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: p.Link, PeerNamespace: netlink.NsFd(ns.Fd()), PeerMTU: uint32(p.MTU)}
	err = netlink.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		if err = RemoveLink(p.HostLink); err == nil {
			err = netlink.LinkAdd(veth)
		}
	}
	if err != nil {
		return fmt.Errorf("add veth %s: %w", p.HostLink, err)
	}
	err = configurePeer(ns, p)
	if err == nil {
		err = setHairpin(p.HostLink)
	}
	if err != nil {
		return errors.Join(err, RemoveLink(p.HostLink))
	}
	return nil
}

// setHairpin lets a frame leave by the port that it came in by. Where br_netfilter is active
// (bridge-nf-call-iptables), DNAT happens inside the bridge, and a container that reaches
// itself through a Service would otherwise be cut off.
func setHairpin(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find veth %s: %w", name, err)
	}
	if err := netlink.LinkSetHairpin(link, true); err != nil {
		return fmt.Errorf("set hairpin mode of %s: %w", name, err)
	}
	return nil
}

func configurePeer(ns *os.File, p Port) error {
	// No other family: kernels without IPsec have no XFRM.
	h, err := netlink.NewHandleAt(nsHandle(ns), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", p.NetNS, err)
	}
	defer h.Close()
	link, err := h.LinkByName(p.Link)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", p.Link, p.NetNS, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s: %w", p.Link, err)
	}
	for _, a := range p.Addresses {
		if err := addAddr(h, link, netip.PrefixFrom(a, a.BitLen())); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a, p.Link, err)
		}
	}
	for _, gw := range p.Gateways {
		onlink := &netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(netip.PrefixFrom(gw, gw.BitLen()))}
		if err := h.RouteReplace(onlink); err != nil {
			return fmt.Errorf("add route to gateway %s: %w", gw, err)
		}
		def := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gw.Is6() {
			def = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		if err := h.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gw.AsSlice(), Dst: ipNet(def)}); err != nil {
			return fmt.Errorf("add default route by %s: %w", gw, err)
		}
	}
	return nil
}

// RemoveLink deletes a link; one that does not exist is no error.
func RemoveLink(name string) error {
	link, err := netlink.LinkByName(name)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

// PortsOf names the links that are ports of a bridge; none if there is no such bridge.
func PortsOf(bridge string) ([]string, error) {
	b, err := netlink.LinkByName(bridge)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find bridge %s: %w", bridge, err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var names []string
	for _, l := range links {
		if l.Attrs().MasterIndex == b.Attrs().Index {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

// DefaultAddress is the address that this host talks to the outside with, an IPv4 one if it
// has any.
func DefaultAddress() (netip.Addr, error) {
	a, err := DefaultAddressOf(false)
	if err != nil {
		if six, err := DefaultAddressOf(true); err == nil {
			return six, nil
		}
	}
	return a, err
}

// DefaultAddressOf is that of one family: the source of the default route, else the first
// global address of a link that is up, else an error.
func DefaultAddressOf(v6 bool) (netip.Addr, error) {
	family, name := netlink.FAMILY_V4, "IPv4"
	if v6 {
		family, name = netlink.FAMILY_V6, "IPv6"
	}
	routes, err := netlink.RouteList(nil, family)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil && r.Dst.IP != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		if a, ok := netip.AddrFromSlice(r.Src); ok {
			return a.Unmap(), nil
		}
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			if a, ok := firstGlobal(link, family); ok {
				return a, nil
			}
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp == 0 || l.Type() == "bridge" || strings.HasPrefix(l.Attrs().Name, "veth") {
			continue
		}
		if a, ok := firstGlobal(l, family); ok {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no link that is up has a global %s address; give one with --node-ip", name)
}

// HasAddress tells whether some link of this host has the address.
func HasAddress(a netip.Addr) (bool, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	for i := range addrs {
		if p, ok := prefixOf(addrs[i].IPNet); ok && p.Addr() == a {
			return true, nil
		}
	}
	return false, nil
}

func firstGlobal(l netlink.Link, family int) (netip.Addr, bool) {
	addrs, err := netlink.AddrList(l, family)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && p.Addr().IsGlobalUnicast() {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

func addAddr(h *netlink.Handle, link netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD // an address that IPAM gave is unique; waiting for DAD costs a second
	}
	var err error
	if h != nil {
		err = h.AddrAdd(link, a)
	} else {
		err = netlink.AddrAdd(link, a)
	}
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok
}

func isNotFound(err error) bool {
	var nf netlink.LinkNotFoundError
	return errors.As(err, &nf)
}
