package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddVirtualAddress gives a link an address that may move to another host's. It is a host address,
// deprecated (RFC 4862, 5.5.4) so that the host begins nothing with it, makes no route, and is not
// probed for duplicates: whoever has it before is being relieved. Idempotent.
func AddVirtualAddress(link string, a netip.Addr) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", link, err)
	}
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen())), ValidLft: math.MaxUint32}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	if err := netlink.AddrAdd(l, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to %s: %w", a, link, err)
	}
	return nil
}

// RemoveVirtualAddress takes an address that AddVirtualAddress added, from whichever link has it.
func RemoveVirtualAddress(a netip.Addr) error {
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for i := range addrs {
		if p, ok := prefixOf(addrs[i].IPNet); !ok || p != netip.PrefixFrom(a, a.BitLen()) {
			continue
		}
		link, err := netlink.LinkByIndex(addrs[i].LinkIndex)
		if err != nil {
			return fmt.Errorf("find the link of %s: %w", a, err)
		}
		if err := netlink.AddrDel(link, &addrs[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s of %s: %w", a, link.Attrs().Name, err)
		}
	}
	return nil
}

// AnnounceAddress tells the neighbours on a link that an address is this host's now: by a gratuitous
// ARP request (RFC 5227, 3) or an unsolicited neighbour advertisement (RFC 4861, 7.2.6).
func AnnounceAddress(link string, a netip.Addr) error {
	l, err := net.InterfaceByName(link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", link, err)
	}
	if len(l.HardwareAddr) != 6 {
		return fmt.Errorf("announce %s: link %s has no Ethernet address", a, link)
	}
	mac := [6]byte(l.HardwareAddr)
	frame, protocol := gratuitousARP(mac, a), uint16(unix.ETH_P_ARP)
	if a.Is6() {
		frame, protocol = unsolicitedAdvertisement(mac, a), unix.ETH_P_IPV6
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // 0: receives nothing
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	to := &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: l.Index, Halen: 6}
	copy(to.Addr[:], frame[:6])
	err = unix.Sendto(fd, frame, 0, to)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("announce %s on %s: %w", a, link, err)
	}
	return nil
}

// gratuitousARP is an Ethernet frame to all: a request for the sender's own address.
func gratuitousARP(mac [6]byte, a netip.Addr) []byte {
	frame := ethernet([6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, unix.ETH_P_ARP)
	frame = append(frame, 0, 1, 8, 0, 6, 4, 0, 1) // Ethernet, IPv4, their lengths, request
	frame = append(frame, mac[:]...)
	frame = append(frame, a.AsSlice()...)
	frame = append(frame, make([]byte, 6)...)
	return append(frame, a.AsSlice()...)
}

// unsolicitedAdvertisement is an Ethernet frame to all nodes that overrides what they know.
func unsolicitedAdvertisement(mac [6]byte, a netip.Addr) []byte {
	all := netip.MustParseAddr("ff02::1").As16()
	frame := ethernet([6]byte{0x33, 0x33, 0, 0, 0, 1}, mac, unix.ETH_P_IPV6)
	src := a.As16()
	const override, targetLinkLayer = 0x20, 2
	icmp := append([]byte{136, 0, 0, 0, override, 0, 0, 0}, src[:]...)
	icmp = append(append(icmp, targetLinkLayer, 1), mac[:]...)
	// RFC 4443, 2.3: over a pseudo header of addresses, length and next header.
	pseudo := append(append([]byte{}, src[:]...), all[:]...)
	pseudo = append(pseudo, 0, 0, byte(len(icmp)>>8), byte(len(icmp)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(icmp[2:], checksum(append(pseudo, icmp...)))
	frame = append(frame, 0x60, 0, 0, 0, byte(len(icmp)>>8), byte(len(icmp)), unix.IPPROTO_ICMPV6, 255)
	frame = append(append(frame, src[:]...), all[:]...)
	return append(frame, icmp...)
}

func ethernet(to, from [6]byte, protocol uint16) []byte {
	return binary.BigEndian.AppendUint16(append(append([]byte{}, to[:]...), from[:]...), protocol)
}

// checksum is the Internet's (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
