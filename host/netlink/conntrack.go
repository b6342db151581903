package netlink

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Flow is a tracked connection: where it was sent to, and who answers.
type Flow struct {
	Protocol uint8
	// Original is the destination before DNAT.
	Original netip.AddrPort
	// Answers is the source of replies: the destination after DNAT.
	Answers netip.AddrPort
}

type flowFilter func(Flow) bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f flowFilter) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	dst, ok1 := netip.AddrFromSlice(c.Forward.DstIP)
	src, ok2 := netip.AddrFromSlice(c.Reverse.SrcIP)
	return ok1 && ok2 && f(Flow{
		Protocol: c.Forward.Protocol,
		Original: netip.AddrPortFrom(dst.Unmap(), c.Forward.DstPort),
		Answers:  netip.AddrPortFrom(src.Unmap(), c.Reverse.SrcPort),
	})
}

// DeleteFlows forgets the tracked connections that match; their next packet is a
// new connection. It returns how many there were.
func DeleteFlows(match func(Flow) bool) (int, error) {
	n := 0
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		m, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, flowFilter(match))
		if err != nil {
			return n, fmt.Errorf("delete tracked connections: %w", err)
		}
		n += int(m)
	}
	return n, nil
}
