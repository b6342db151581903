package netlink

import (
	"encoding/hex"
	"net/netip"
	"testing"
)

// The frames as tcpdump -xx shows those of arping and of the kernel.
func TestAnnouncementFrames(t *testing.T) {
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	arp := hex.EncodeToString(gratuitousARP(mac, netip.MustParseAddr("192.0.2.1")))
	if want := "ffffffffffff" + "020000000001" + "0806" + "0001080006040001" + "020000000001" + "c0000201" + "000000000000" + "c0000201"; arp != want {
		t.Errorf("ARP\n%s, want\n%s", arp, want)
	}
	na := unsolicitedAdvertisement(mac, netip.MustParseAddr("fd00::1"))
	text := hex.EncodeToString(na)
	src := "fd000000000000000000000000000001"
	if want := "333300000001" + "020000000001" + "86dd" + "6000000000203aff" + src + "ff020000000000000000000000000001" + "8800"; text[:len(want)] != want {
		t.Errorf("advertisement\n%s, want\n%s…", text, want)
	}
	if tail := "20000000" + src + "0201" + "020000000001"; text[len(text)-len(tail):] != tail {
		t.Errorf("advertisement ends %s", text)
	}
	// A receiver sums the pseudo header and the message, checksum included, to all ones.
	pseudo := append(append([]byte{}, na[22:54]...), 0, 0, 0, 32, 0, 0, 0, 58)
	if sum := checksum(append(pseudo, na[54:]...)); sum != 0 {
		t.Errorf("the checksum is off by %#x", sum)
	}
}
