package netlink

import (
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestIPSets hold what is entered, of every type and family, once; what is not there is no error.
func TestIPSets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace and ipsets; run by make test")
	}
	runtime.LockOSThread() // never unlocked
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	for _, v6 := range []bool{false, true} {
		a, b, network := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.7"), netip.MustParsePrefix("192.0.2.0/24")
		name := "v4-"
		if v6 {
			a, b, network, name = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("2001:db8::7"), netip.MustParsePrefix("2001:db8::/64"), "v6-"
		}
		for kind, entries := range map[string][]IPSetEntry{
			"hash:ip":          {{Addr: a}, {Addr: b}},
			"hash:ip,port":     {{Addr: a, Port: 80, Protocol: 6}, {Addr: a, Port: 80, Protocol: 17}, {Addr: b, Port: 443, Protocol: 132}},
			"hash:ip,port,ip":  {{Addr: a, Port: 80, Protocol: 6, Second: b}, {Addr: a, Port: 80, Protocol: 6, Second: a}},
			"hash:ip,port,net": {{Addr: a, Port: 80, Protocol: 6, Net: network}, {Addr: a, Port: 80, Protocol: 6, Net: netip.PrefixFrom(b, b.BitLen())}},
			"bitmap:port":      {{Port: 30080}, {Port: 65535}, {Port: 0}},
		} {
			s := IPSet{Name: name + kind, Type: kind, V6: v6}
			check := func(err error) {
				t.Helper()
				if err != nil {
					t.Errorf("%s: %v", s.Name, err)
				}
			}
			holds := func(want ...IPSetEntry) {
				t.Helper()
				got, err := s.Entries()
				check(err)
				for _, e := range want {
					if !slices.Contains(got, e) {
						t.Errorf("%s holds %v, not %v", s.Name, got, e)
					}
				}
				if len(got) != len(want) {
					t.Errorf("%s holds %v, want %v", s.Name, got, want)
				}
			}
			check(s.Ensure())
			for _, e := range entries {
				check(s.Add(e))
				check(s.Add(e))
			}
			check(s.Ensure())
			holds(entries...)
			check(s.Delete(entries[0]))
			check(s.Delete(entries[0]))
			holds(entries[1:]...)
			check(s.Destroy())
			check(s.Destroy())
		}
	}
}
