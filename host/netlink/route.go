package netlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Handle reads and changes the links, addresses and routes of the network namespace that it was
// opened in, whichever thread uses it. One goroutine at a time.
type Handle struct{ h *netlink.Handle }

// Open opens a handle to the calling thread's network namespace.
func Open() (*Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &Handle{h}, nil
}

// Close releases the handle.
func (h *Handle) Close() { h.h.Close() }

// Link is a network link as it is.
type Link struct {
	Index int
	Name  string
	Kind  string // bridge, veth, vxlan, device …
	MTU   int
	Up    bool
	// Neighbours tells whether hosts on the link are found by address (ARP, neighbour discovery).
	Neighbours bool
	// Addresses of the link with the prefix that is on it.
	Addresses []netip.Prefix
}

// Route is a unicast route of the main table.
type Route struct {
	Dst netip.Prefix
	// Gateway is invalid for what is on the link itself.
	Gateway netip.Addr
	Link    int
	// Source is the address to use for packets that have none yet; may be invalid.
	Source netip.Addr
	// Protocol says who made the route (rtnetlink(7), rtm_protocol).
	Protocol uint8
	// OnLink reaches the gateway over the link whatever other routes say.
	OnLink bool
	Metric int
}

// defaultMetric6 is what the kernel gives an IPv6 route without one.
const defaultMetric6 = 1024

// dumpTries bounds how often a listing is repeated that changes interrupted.
const dumpTries = 20

// dump repeats a listing until it is consistent.
func dump[T any](list func() (T, error)) (out T, err error) {
	for i := range dumpTries {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
		time.Sleep(time.Duration(i) * time.Millisecond) // the kernel tells no end of the change
	}
	return out, err
}

// Links lists all links with their addresses.
func (h *Handle) Links() ([]Link, error) {
	links, err := dump(h.h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return h.h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := make([]Link, 0, len(links))
	at := map[int]int{}
	for _, l := range links {
		a := l.Attrs()
		at[a.Index] = len(out)
		out = append(out, Link{
			Index: a.Index, Name: a.Name, Kind: l.Type(), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0,
			Neighbours: a.Flags&net.FlagBroadcast != 0 && a.RawFlags&unix.IFF_NOARP == 0,
		})
	}
	for i := range addrs {
		p, ok := prefixOf(addrs[i].IPNet)
		if n, known := at[addrs[i].LinkIndex]; known && ok {
			out[n].Addresses = append(out[n].Addresses, p)
		}
	}
	return out, nil
}

// Routes lists the unicast routes of the main table, those with several next hops by the first.
func (h *Handle) Routes() ([]Route, error) {
	var out []Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(func() ([]netlink.Route, error) { return h.h.RouteList(nil, family) })
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			if r, ok := routeOf(&routes[i], family); ok {
				out = append(out, r)
			}
		}
	}
	return out, nil
}

func routeOf(r *netlink.Route, family int) (Route, bool) {
	if r.Type != unix.RTN_UNICAST {
		return Route{}, false
	}
	if len(r.MultiPath) > 0 {
		r.LinkIndex, r.Gw = r.MultiPath[0].LinkIndex, r.MultiPath[0].Gw
	}
	out := Route{Link: r.LinkIndex, Protocol: uint8(r.Protocol), OnLink: r.Flags&int(netlink.FLAG_ONLINK) != 0, Metric: r.Priority}
	if family == netlink.FAMILY_V6 && out.Metric == defaultMetric6 {
		out.Metric = 0
	}
	out.Dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if family == netlink.FAMILY_V6 {
		out.Dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if r.Dst != nil {
		p, ok := prefixOf(r.Dst)
		if !ok {
			return Route{}, false
		}
		out.Dst = p
	}
	if a, ok := netip.AddrFromSlice(r.Gw); ok {
		out.Gateway = a.Unmap()
	} else if via, ok := r.Via.(*netlink.Via); ok { // an IPv4 route by an IPv6 neighbour
		if a, ok := netip.AddrFromSlice(via.Addr); ok {
			out.Gateway = a
		}
	}
	if a, ok := netip.AddrFromSlice(r.Src); ok {
		out.Source = a.Unmap()
	}
	return out, true
}

func (r Route) kernel() *netlink.Route {
	out := &netlink.Route{LinkIndex: r.Link, Dst: ipNet(r.Dst), Protocol: netlink.RouteProtocol(r.Protocol), Priority: r.Metric}
	if r.Gateway.IsValid() {
		out.Gw = r.Gateway.AsSlice()
	} else {
		out.Scope = netlink.SCOPE_LINK
	}
	if r.Source.IsValid() {
		out.Src = r.Source.AsSlice()
	}
	if r.OnLink {
		out.Flags = int(netlink.FLAG_ONLINK)
	}
	return out
}

// ErrExists says that there is a route to the destination already.
var ErrExists = errors.New("a route to it exists")

// AddRoute adds a route where there is none to its destination yet, else it is ErrExists.
func (h *Handle) AddRoute(r Route) error {
	err := h.h.RouteAdd(r.kernel())
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add route to %s: %w", r.Dst, ErrExists)
	}
	if err != nil {
		return fmt.Errorf("add route to %s by %s: %w", r.Dst, r.Gateway, err)
	}
	return nil
}

// ReplaceRoute puts a route in the place of whatever leads to its destination.
func (h *Handle) ReplaceRoute(r Route) error {
	if err := h.h.RouteReplace(r.kernel()); err != nil {
		return fmt.Errorf("replace route to %s by %s: %w", r.Dst, r.Gateway, err)
	}
	return nil
}

// DeleteRoute removes a route to the same destination, of the same protocol and metric. One that
// has gone is no error.
func (h *Handle) DeleteRoute(r Route) error {
	err := h.h.RouteDel(&netlink.Route{Dst: ipNet(r.Dst), Protocol: netlink.RouteProtocol(r.Protocol), Priority: r.Metric})
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove route to %s: %w", r.Dst, err)
	}
	return nil
}
