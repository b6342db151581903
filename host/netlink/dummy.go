package netlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// EnsureDummy makes a link that leads nowhere: its addresses are this host's, and nobody asks
// for them on a wire.
func EnsureDummy(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add link %s: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if link.Type() != "dummy" {
		return fmt.Errorf("link %s exists and is a %s, not a dummy; remove it", name, link.Type())
	}
	return nil
}

// Addresses are those of a link, or of all but it.
func Addresses(link string, others bool) (out []netip.Addr, err error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if (l.Name == link) == others {
			continue
		}
		addrs, err := l.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", l.Name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				out = append(out, p.Addr().Unmap())
			}
		}
	}
	return out, nil
}

// AddAddress gives a link an address alone; that it has it is no error.
func AddAddress(link string, a netip.Addr) error {
	return changeAddress(link, a, func(l netlink.Link, addr *netlink.Addr) error {
		if err := netlink.AddrAdd(l, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("give %s the address %s: %w", link, a, err)
		}
		return nil
	})
}

// DeleteAddress takes it from a link; that it has not got it is no error.
func DeleteAddress(link string, a netip.Addr) error {
	return changeAddress(link, a, func(l netlink.Link, addr *netlink.Addr) error {
		if err := netlink.AddrDel(l, addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("take the address %s from %s: %w", a, link, err)
		}
		return nil
	})
}

func changeAddress(link string, a netip.Addr, do func(netlink.Link, *netlink.Addr) error) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", link, err)
	}
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return do(l, addr)
}
