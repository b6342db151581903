package netlink

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// EnsureNeighborProxy has the host answer on a link for an IPv6 address that it has on another:
// unlike with ARP, it does not by itself (RFC 4861, 7.2.3). proxy_ndp must be on for the link.
// The entry goes with the link.
func EnsureNeighborProxy(link string, addr netip.Addr) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", link, err)
	}
	err = netlink.NeighAdd(&netlink.Neigh{LinkIndex: l.Attrs().Index, Family: unix.AF_INET6, Flags: netlink.NTF_PROXY, State: netlink.NUD_PERMANENT, IP: addr.AsSlice()})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("answer for %s on link %s: %w", addr, link, err)
	}
	return nil
}
