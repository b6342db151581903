package netlink

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// VXLAN describes a link that carries frames to other hosts in UDP packets (RFC 7348). It learns
// nothing and floods nothing: each remote is told by SetForwarding and SetNeighbour.
type VXLAN struct {
	Name string
	VNI  uint32
	Port uint16
	// Local is the address of this host that packets leave from and come in at.
	Local netip.Addr
	MAC   [6]byte
	MTU   int
	// Addresses of the link itself, given as /32 or /128.
	Addresses []netip.Addr
}

// EnsureVXLAN makes the link with exactly these addresses, brings it up and returns its index. What
// can't be changed in place is made anew; its entries are gone then, and made is true.
func (h *Handle) EnsureVXLAN(v VXLAN) (index int, made bool, err error) {
	link, err := h.h.LinkByName(v.Name)
	if err == nil && !v.is(link) {
		if link.Type() != "vxlan" {
			return 0, false, fmt.Errorf("link %s exists and is a %s, not a vxlan; remove it", v.Name, link.Type())
		}
		if err := h.h.LinkDel(link); err != nil {
			return 0, false, fmt.Errorf("remove outdated link %s: %w", v.Name, err)
		}
		link, err = nil, netlink.LinkNotFoundError{}
	}
	if isNotFound(err) {
		if err := h.h.LinkAdd(v.kernel()); err != nil {
			return 0, false, fmt.Errorf("add vxlan %s (VNI %d, UDP port %d): %w", v.Name, v.VNI, v.Port, err)
		}
		made = true
		link, err = h.h.LinkByName(v.Name)
	}
	if err != nil {
		return 0, made, fmt.Errorf("find vxlan %s: %w", v.Name, err)
	}
	if err := h.settle(link, v); err != nil {
		return 0, made, err
	}
	return link.Attrs().Index, made, nil
}

func (v VXLAN) kernel() *netlink.Vxlan {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = v.Name, v.MTU, v.MAC[:]
	return &netlink.Vxlan{LinkAttrs: attrs, VxlanId: int(v.VNI), Port: int(v.Port), SrcAddr: v.Local.AsSlice(), Learning: false}
}

// is tells whether a link is the one described, but for what can be changed in place.
func (v VXLAN) is(l netlink.Link) bool {
	x, ok := l.(*netlink.Vxlan)
	return ok && x.VxlanId == int(v.VNI) && x.Port == int(v.Port) && x.SrcAddr.Equal(v.Local.AsSlice()) && !x.Learning &&
		bytes.Equal(x.HardwareAddr, v.MAC[:])
}

func (h *Handle) settle(link netlink.Link, v VXLAN) error {
	if link.Attrs().MTU != v.MTU {
		if err := h.h.LinkSetMTU(link, v.MTU); err != nil {
			return fmt.Errorf("set MTU %d of %s: %w", v.MTU, v.Name, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := h.h.LinkSetUp(link); err != nil {
			return fmt.Errorf("bring up %s: %w", v.Name, err)
		}
	}
	have, err := dump(func() ([]netlink.Addr, error) { return h.h.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", v.Name, err)
	}
	want := map[netip.Prefix]bool{}
	for _, a := range v.Addresses {
		want[netip.PrefixFrom(a, a.BitLen())] = true
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
		if err := h.h.AddrDel(link, &have[i]); err != nil {
			return fmt.Errorf("remove address %s of %s: %w", p, v.Name, err)
		}
	}
	for p := range want {
		if err := addAddr(h.h, link, p); err != nil {
			return fmt.Errorf("add address %s to %s: %w", p, v.Name, err)
		}
	}
	return nil
}

// Forwarding leads frames for a MAC address to a remote host.
type Forwarding struct {
	Link   int
	MAC    [6]byte
	Remote netip.Addr
}

func (f Forwarding) kernel() *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: f.Link, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		HardwareAddr: f.MAC[:], IP: f.Remote.AsSlice()}
}

// SetForwarding makes or replaces the entry of a MAC address.
func (h *Handle) SetForwarding(f Forwarding) error {
	if err := h.h.NeighSet(f.kernel()); err != nil {
		return fmt.Errorf("lead %s to %s: %w", net.HardwareAddr(f.MAC[:]), f.Remote, err)
	}
	return nil
}

// DeleteForwarding removes an entry. One that has gone is no error.
func (h *Handle) DeleteForwarding(f Forwarding) error {
	if err := h.h.NeighDel(f.kernel()); err != nil && !gone(err) {
		return fmt.Errorf("stop leading %s to %s: %w", net.HardwareAddr(f.MAC[:]), f.Remote, err)
	}
	return nil
}

// Forwardings lists the permanent entries of a VXLAN link.
func (h *Handle) Forwardings(link int) ([]Forwarding, error) {
	all, err := dump(func() ([]netlink.Neigh, error) { return h.h.NeighList(link, unix.AF_BRIDGE) })
	if err != nil {
		return nil, fmt.Errorf("list forwarding entries: %w", err)
	}
	var out []Forwarding
	for _, n := range all {
		a, ok := netip.AddrFromSlice(n.IP)
		if ok && len(n.HardwareAddr) == 6 && n.State&netlink.NUD_PERMANENT != 0 {
			out = append(out, Forwarding{link, [6]byte(n.HardwareAddr), a.Unmap()})
		}
	}
	return out, nil
}

// Neighbour says which MAC address a host on a link has.
type Neighbour struct {
	Link int
	IP   netip.Addr
	MAC  [6]byte
}

func (n Neighbour) kernel() *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: n.Link, State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST, HardwareAddr: n.MAC[:], IP: n.IP.AsSlice()}
}

// SetNeighbour makes or replaces a permanent entry.
func (h *Handle) SetNeighbour(n Neighbour) error {
	if err := h.h.NeighSet(n.kernel()); err != nil {
		return fmt.Errorf("set neighbour %s: %w", n.IP, err)
	}
	return nil
}

// DeleteNeighbour removes an entry. One that has gone is no error.
func (h *Handle) DeleteNeighbour(n Neighbour) error {
	if err := h.h.NeighDel(n.kernel()); err != nil && !gone(err) {
		return fmt.Errorf("remove neighbour %s: %w", n.IP, err)
	}
	return nil
}

// Neighbours lists the permanent unicast entries of a link.
func (h *Handle) Neighbours(link int) ([]Neighbour, error) {
	all, err := dump(func() ([]netlink.Neigh, error) { return h.h.NeighList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	var out []Neighbour
	for _, n := range all {
		a, ok := netip.AddrFromSlice(n.IP)
		if ok && len(n.HardwareAddr) == 6 && n.State&netlink.NUD_PERMANENT != 0 && n.Flags&netlink.NTF_SELF == 0 && !a.Unmap().IsMulticast() {
			out = append(out, Neighbour{link, a.Unmap(), [6]byte(n.HardwareAddr)})
		}
	}
	return out, nil
}

// gone: the entry, or the link with all of them.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH)
}
