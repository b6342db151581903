package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
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

// Attributes of nfnetlink_conntrack.h that nl lacks.
const (
	ctaFilter        = 25 // CTA_FILTER, Linux 5.8: older kernels show all flows
	ctaFilterOrig    = 1  // CTA_FILTER_ORIG_FLAGS
	ctaFilterReply   = 2  // CTA_FILTER_REPLY_FLAGS
	filterByProtocol = 1 << 3
)

// FlowKind is a protocol of an address family.
type FlowKind struct {
	V6       bool
	Protocol uint8
}

// DeleteFlows forgets the tracked connections of the given kinds that match; their next packet
// is a new connection. It returns how many there were. For each kind the kernel walks its whole
// table, which takes it some 10 ms however few there are.
func DeleteFlows(match func(Flow) bool, kinds ...FlowKind) (int, error) {
	n := 0
	for _, k := range kinds {
		family := uint8(unix.AF_INET)
		if k.V6 {
			family = unix.AF_INET6
		}
		deleted, err := deleteFlows(family, k.Protocol, match)
		n += deleted
		if err != nil {
			return n, fmt.Errorf("delete tracked connections: %w", err)
		}
	}
	return n, nil
}

func conntrackRequest(cmd, flags int, family uint8) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|cmd, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return req
}

func deleteFlows(family, protocol uint8, match func(Flow) bool) (n int, err error) {
	req := conntrackRequest(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, family)
	flag := func(kind int, bits uint32) *nl.RtAttr {
		return nl.NewRtAttr(kind, binary.NativeEndian.AppendUint32(nil, bits))
	}
	filter := nl.NewRtAttr(ctaFilter|unix.NLA_F_NESTED, nil)
	filter.AddChild(flag(ctaFilterOrig, filterByProtocol))
	filter.AddChild(flag(ctaFilterReply, 0))
	tuple := nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, nil)
	proto := nl.NewRtAttr(nl.CTA_TUPLE_PROTO|unix.NLA_F_NESTED, nil)
	proto.AddChild(nl.NewRtAttr(nl.CTA_PROTO_NUM, []byte{protocol}))
	tuple.AddChild(proto)
	req.AddData(filter)
	req.AddData(tuple)
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	// A table that changed meanwhile: what was seen is dealt with, what was not is new.
	if err != nil && !errors.Is(err, unix.EINTR) {
		return 0, err
	}
	for _, m := range msgs {
		f, id, ok := parseFlow(m)
		if !ok || f.Protocol != protocol || !match(f) {
			continue
		}
		del := conntrackRequest(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family)
		for _, a := range id {
			del.AddData(a)
		}
		// Its end may have come first.
		if _, err := del.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return n, err
		}
		n++
	}
	return n, nil
}

// parseFlow reads a dumped connection, and the attributes that name it when it is deleted.
func parseFlow(m []byte) (f Flow, id []*nl.RtAttr, ok bool) {
	if len(m) < nl.SizeofNfgenmsg {
		return f, nil, false
	}
	var orig, reply tuple
	attributes(m[nl.SizeofNfgenmsg:], func(kind uint16, b []byte) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			orig = parseTuple(b)
			id = append(id, nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, b))
		case nl.CTA_TUPLE_REPLY:
			reply = parseTuple(b)
		case nl.CTA_ID, nl.CTA_ZONE:
			id = append(id, nl.NewRtAttr(int(kind), b))
		}
	})
	f = Flow{
		Protocol: orig.proto,
		Original: netip.AddrPortFrom(orig.dst, orig.dport),
		Answers:  netip.AddrPortFrom(reply.src, reply.sport),
	}
	return f, id, orig.dst.IsValid() && reply.src.IsValid()
}

// tuple is one direction of a connection.
type tuple struct {
	src, dst     netip.Addr
	sport, dport uint16
	proto        uint8
}

func parseTuple(b []byte) (t tuple) {
	attributes(b, func(kind uint16, b []byte) {
		switch kind {
		case nl.CTA_TUPLE_IP:
			attributes(b, func(kind uint16, b []byte) {
				a, _ := netip.AddrFromSlice(b) // not valid: no address
				switch kind {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					t.src = a
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					t.dst = a
				}
			})
		case nl.CTA_TUPLE_PROTO:
			attributes(b, func(kind uint16, b []byte) {
				switch {
				case kind == nl.CTA_PROTO_NUM && len(b) > 0:
					t.proto = b[0]
				case kind == nl.CTA_PROTO_SRC_PORT && len(b) > 1:
					t.sport = binary.BigEndian.Uint16(b)
				case kind == nl.CTA_PROTO_DST_PORT && len(b) > 1:
					t.dport = binary.BigEndian.Uint16(b)
				}
			})
		}
	})
	return t
}

// attributes calls f with each whole attribute.
func attributes(b []byte, f func(kind uint16, data []byte)) {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}
