package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ChangeKind says what changed in the kernel.
type ChangeKind uint8

const (
	// Lost: some changes were missed, anything may have changed.
	Lost ChangeKind = iota
	// LinkChanged: a link or an address came, went or changed.
	LinkChanged
	// RouteAdded and RouteDeleted: a route of the main table. A route that goes down with its
	// link is not told.
	RouteAdded
	RouteDeleted
	// EntryDeleted: a neighbour or forwarding entry.
	EntryDeleted
)

// Change is one change of links, addresses, routes or neighbours.
type Change struct {
	Kind ChangeKind
	Link int
	// Dst and Protocol of a route.
	Dst      netip.Prefix
	Protocol uint8
	// Neighbour and MAC of an entry; a forwarding entry has no neighbour, but its remote.
	Neighbour, Remote netip.Addr
	MAC               [6]byte
}

// Watcher tells changes of one network namespace.
type Watcher struct {
	socket *nl.NetlinkSocket
	closed atomic.Bool
}

// watchBuffer lets a burst of changes wait for a slow reader.
const watchBuffer = 1 << 20

// Watch starts to listen in the calling thread's network namespace: changes from now on are told.
func Watch() (*Watcher, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch links and routes: %w", err)
	}
	if err := s.SetReceiveBufferSize(watchBuffer, true); err != nil {
		if err := s.SetReceiveBufferSize(watchBuffer, false); err != nil {
			s.Close()
			return nil, fmt.Errorf("watch links and routes: %w", err)
		}
	}
	return &Watcher{socket: s}, nil
}

// Close ends Run.
func (w *Watcher) Close() {
	if w.closed.CompareAndSwap(false, true) {
		w.socket.Close()
	}
}

// Run tells each change until Close.
func (w *Watcher) Run(tell func(Change)) error {
	for {
		msgs, _, err := w.socket.Receive()
		switch {
		case err != nil && w.closed.Load():
			return nil
		case errors.Is(err, unix.ENOBUFS):
			tell(Change{Kind: Lost})
			continue
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // the latter just before Close is known
			continue
		case err != nil:
			return fmt.Errorf("read changes of links and routes: %w", err)
		}
		for _, m := range msgs {
			if c, ok := decodeChange(m.Header.Type, m.Data); ok {
				tell(c)
			}
		}
	}
}

// decodeChange reads an rtnetlink message; false for what nobody asks about.
func decodeChange(kind uint16, data []byte) (Change, bool) {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) < unix.SizeofIfInfomsg {
			return Change{}, false
		}
		return Change{Kind: LinkChanged, Link: int(int32(binary.NativeEndian.Uint32(data[4:])))}, true
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(data) < unix.SizeofIfAddrmsg {
			return Change{}, false
		}
		return Change{Kind: LinkChanged, Link: int(int32(binary.NativeEndian.Uint32(data[4:])))}, true
	case unix.RTM_DELNEIGH:
		if len(data) < unix.SizeofNdMsg || binary.NativeEndian.Uint16(data[8:])&unix.NUD_PERMANENT == 0 {
			return Change{}, false
		}
		return decodeEntry(data), true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return decodeRoute(kind, data)
	}
	return Change{}, false
}

// eachAttribute calls f for each, as long as they can be read.
func eachAttribute(data []byte, f func(kind uint16, value []byte)) {
	for len(data) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(data))
		if size < unix.SizeofRtAttr || size > len(data) {
			return
		}
		f(binary.NativeEndian.Uint16(data[2:]), data[unix.SizeofRtAttr:size])
		data = data[min((size+3)&^3, len(data)):]
	}
}

func decodeEntry(data []byte) Change {
	c := Change{Kind: EntryDeleted, Link: int(int32(binary.NativeEndian.Uint32(data[4:])))}
	var dst netip.Addr
	eachAttribute(data[unix.SizeofNdMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.NDA_DST:
			if a, ok := netip.AddrFromSlice(value); ok {
				dst = a
			}
		case unix.NDA_LLADDR:
			copy(c.MAC[:], value)
		}
	})
	if data[0] == unix.AF_BRIDGE {
		c.Remote = dst
	} else {
		c.Neighbour = dst
	}
	return c
}

func decodeRoute(kind uint16, data []byte) (Change, bool) {
	if len(data) < unix.SizeofRtMsg {
		return Change{}, false
	}
	family, bits, table, protocol := data[0], int(data[1]), data[4], data[5]
	if table != unix.RT_TABLE_MAIN || binary.NativeEndian.Uint32(data[8:])&unix.RTM_F_CLONED != 0 {
		return Change{}, false
	}
	c := Change{Kind: RouteAdded, Protocol: protocol}
	if kind == unix.RTM_DELROUTE {
		c.Kind = RouteDeleted
	}
	dst := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	eachAttribute(data[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.RTA_DST:
			if a, ok := netip.AddrFromSlice(value); ok {
				dst = a
			}
		case unix.RTA_OIF:
			if len(value) == 4 {
				c.Link = int(int32(binary.NativeEndian.Uint32(value)))
			}
		}
	})
	c.Dst = netip.PrefixFrom(dst, bits)
	return c, c.Dst.IsValid()
}
