package netlink

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}

func routeMessage(family, bits, table, protocol byte, flags uint32, attrs ...[]byte) []byte {
	b := append([]byte{family, bits, 0, 0, table, protocol, 0, 1}, binary.NativeEndian.AppendUint32(nil, flags)...)
	for _, a := range attrs {
		b = append(b, a...)
	}
	return b
}

func TestDecodeChange(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.244.1.0"), netip.MustParseAddr("fd00:1::")
	link := binary.NativeEndian.AppendUint32(nil, 7)
	entry := append([]byte{unix.AF_INET, 0, 0, 0}, link...)
	entry = append(binary.NativeEndian.AppendUint16(entry, unix.NUD_PERMANENT), 0, 0)
	forwarding := append([]byte{unix.AF_BRIDGE}, entry[1:]...)
	hw := [6]byte{2, 1, 2, 3, 4, 5}
	for name, test := range map[string]struct {
		kind uint16
		data []byte
		want Change
		ok   bool
	}{
		"a route comes":          {unix.RTM_NEWROUTE, routeMessage(unix.AF_INET, 24, unix.RT_TABLE_MAIN, 83, 0, attribute(unix.RTA_DST, v4.AsSlice()), attribute(unix.RTA_OIF, link)), Change{Kind: RouteAdded, Link: 7, Protocol: 83, Dst: netip.PrefixFrom(v4, 24)}, true},
		"an IPv6 route goes":     {unix.RTM_DELROUTE, routeMessage(unix.AF_INET6, 64, unix.RT_TABLE_MAIN, 83, 0, attribute(unix.RTA_DST, v6.AsSlice())), Change{Kind: RouteDeleted, Protocol: 83, Dst: netip.PrefixFrom(v6, 64)}, true},
		"the default route":      {unix.RTM_NEWROUTE, routeMessage(unix.AF_INET, 0, unix.RT_TABLE_MAIN, 3, 0), Change{Kind: RouteAdded, Protocol: 3, Dst: netip.MustParsePrefix("0.0.0.0/0")}, true},
		"another table":          {unix.RTM_NEWROUTE, routeMessage(unix.AF_INET, 24, unix.RT_TABLE_LOCAL, 2, 0), Change{}, false},
		"a cached route":         {unix.RTM_NEWROUTE, routeMessage(unix.AF_INET6, 128, unix.RT_TABLE_MAIN, 2, unix.RTM_F_CLONED), Change{}, false},
		"a link":                 {unix.RTM_DELLINK, append(append([]byte{0, 0, 0, 0}, link...), make([]byte, 8)...), Change{Kind: LinkChanged, Link: 7}, true},
		"an address":             {unix.RTM_NEWADDR, append([]byte{unix.AF_INET, 24, 0, 0}, link...), Change{Kind: LinkChanged, Link: 7}, true},
		"a neighbour":            {unix.RTM_DELNEIGH, append(entry, attribute(unix.NDA_DST, v4.AsSlice())...), Change{Kind: EntryDeleted, Link: 7, Neighbour: v4}, true},
		"a forwarding entry":     {unix.RTM_DELNEIGH, append(append(forwarding, attribute(unix.NDA_DST, v4.AsSlice())...), attribute(unix.NDA_LLADDR, hw[:])...), Change{Kind: EntryDeleted, Link: 7, Remote: v4, MAC: hw}, true},
		"a learned neighbour":    {unix.RTM_DELNEIGH, make([]byte, unix.SizeofNdMsg), Change{}, false},
		"a neighbour comes":      {unix.RTM_NEWNEIGH, entry, Change{}, false},
		"cut short":              {unix.RTM_NEWROUTE, []byte{unix.AF_INET}, Change{}, false},
		"an attribute cut short": {unix.RTM_NEWROUTE, append(routeMessage(unix.AF_INET, 0, unix.RT_TABLE_MAIN, 3, 0), 200, 0, 1, 0), Change{Kind: RouteAdded, Protocol: 3, Dst: netip.MustParsePrefix("0.0.0.0/0")}, true},
	} {
		if got, ok := decodeChange(test.kind, test.data); ok != test.ok || got != test.want {
			t.Errorf("%s: got %+v, %t, want %+v, %t", name, got, ok, test.want, test.ok)
		}
	}
}

func FuzzDecodeChange(f *testing.F) {
	f.Add(uint16(unix.RTM_NEWROUTE), routeMessage(unix.AF_INET, 24, unix.RT_TABLE_MAIN, 83, 0, attribute(unix.RTA_DST, []byte{10, 0, 0, 0})))
	f.Add(uint16(unix.RTM_DELNEIGH), make([]byte, 40))
	f.Add(uint16(unix.RTM_NEWLINK), make([]byte, 16))
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		if c, ok := decodeChange(kind, data); ok && (c.Kind == RouteAdded || c.Kind == RouteDeleted) && !c.Dst.IsValid() {
			t.Errorf("%d %x: a route to nowhere: %+v", kind, data, c)
		}
	})
}
