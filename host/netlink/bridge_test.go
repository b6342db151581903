package netlink

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestBridgeKeepsItsAddress: by itself a bridge has the lowest MAC address of its ports, and who is behind
// one of the others would not reach it for half a minute after a port has come or gone.
func TestBridgeKeepsItsAddress(t *testing.T) {
	err := InNamespace(host(t), func() error {
		mac := func() string {
			t.Helper()
			l, err := netlink.LinkByName("skt0b")
			if err != nil {
				t.Fatal(err)
			}
			return l.Attrs().HardwareAddr.String()
		}
		// One that an older skiff made has a port already.
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "skt0b"}}); err != nil {
			return err
		}
		port := func(name string, mac net.HardwareAddr) error {
			bridge, err := netlink.LinkByName("skt0b")
			if err != nil {
				return err
			}
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac, MasterIndex: bridge.Attrs().Index}, PeerName: name + "p"})
		}
		if err := port("skt0v1", net.HardwareAddr{2, 0, 0, 0, 0, 9}); err != nil {
			return err
		}
		b := Bridge{Name: "skt0b", Addresses: []netip.Prefix{netip.MustParsePrefix("172.28.9.1/24")}}
		if err := EnsureBridge(b); err != nil {
			return err
		}
		before := mac()
		if err := port("skt0v2", net.HardwareAddr{2, 0, 0, 0, 0, 1}); err != nil {
			return err
		}
		if now := mac(); now != before {
			t.Errorf("a port has come: %s, before %s", now, before)
		}
		if err := EnsureBridge(b); err != nil {
			return err
		}
		for _, gone := range []string{"skt0v1", "skt0v2"} {
			if err := RemoveLink(gone); err != nil {
				return err
			}
			if now := mac(); now != before {
				t.Errorf("port %s has gone: %s, before %s", gone, now, before)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
