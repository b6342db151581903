package netlink

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// host makes a network namespace that plays the host and returns its path.
func host(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make links and namespaces; run by make test")
	}
	return namespace(t, "host")
}

func namespace(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := EnsureNamespace(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 { // twice: idempotent
			if err := RemoveNamespace(path); err != nil {
				t.Error(err)
			}
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the file is left: %v", err)
		}
	})
	return path
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestNamespaceStaysAndIsMadeAgain(t *testing.T) {
	path := host(t)
	first := inode(t, path)
	if err := EnsureNamespace(path); err != nil || inode(t, path) != first {
		t.Fatalf("a second call replaced the namespace: %v", err)
	}
	// What a reboot leaves is the file without the mount.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if ok, err := IsNamespace(path); ok || err != nil {
		t.Fatalf("a plain file is a namespace: %v, %v", ok, err)
	}
	if err := EnsureNamespace(path); err != nil {
		t.Fatal(err)
	}
	if ok, err := IsNamespace(path); !ok || err != nil {
		t.Fatalf("not made again: %v, %v", ok, err)
	}
	own := inode(t, "/proc/self/ns/net")
	err := InNamespace(path, func() error {
		if in := inode(t, "/proc/thread-self/ns/net"); in == own {
			t.Error("did not enter")
		}
		lo, err := net.InterfaceByName("lo")
		if err == nil && lo.Flags&net.FlagUp == 0 {
			t.Error("loopback is down")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if inode(t, "/proc/self/ns/net") != own {
		t.Error("the process was moved")
	}
}

func TestUplink(t *testing.T) {
	hostNS, node := host(t), namespace(t, "node")
	u := Uplink{
		Bridge: "skt0l", HostLink: "skt0l0001", NetNS: node, Link: "eth0",
		Addresses: []netip.Prefix{netip.MustParsePrefix("172.28.9.2/24"), netip.MustParsePrefix("fd28::2/64")},
		Gateways:  []netip.Addr{netip.MustParseAddr("172.28.9.1"), netip.MustParseAddr("fd28::1")},
		OnLink:    []netip.Addr{netip.MustParseAddr("192.168.50.7")},
	}
	err := InNamespace(hostNS, func() error {
		bridge := Bridge{Name: u.Bridge, Addresses: []netip.Prefix{netip.MustParsePrefix("172.28.9.1/24"), netip.MustParsePrefix("fd28::1/64")}}
		if err := EnsureBridge(bridge); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		// An address of the host on another link, as that of the first node is.
		if err := addAddr(nil, lo, netip.MustParsePrefix("192.168.50.7/32")); err != nil {
			return err
		}
		if err := EnsureUplink(u); err != nil {
			return err
		}
		first, err := netlink.LinkByName(u.HostLink)
		if err != nil {
			return err
		}
		if err := EnsureUplink(u); err != nil {
			return err
		}
		again, err := netlink.LinkByName(u.HostLink)
		if err != nil {
			return err
		}
		if first.Attrs().Index != again.Attrs().Index {
			t.Error("a second call replaced the link")
		}
		// A link that lost its bridge, and one that went away, are mended.
		if err := netlink.LinkSetNoMaster(again); err != nil {
			return err
		}
		if err := EnsureUplink(u); err != nil {
			return err
		}
		if err := RemoveLink(u.HostLink); err != nil {
			return err
		}
		if err := EnsureUplink(u); err != nil {
			return err
		}
		dst, err := Destinations()
		if err != nil {
			return err
		}
		if dst[netip.MustParsePrefix("172.28.9.0/24")] != u.Bridge {
			t.Errorf("routes: %v", dst)
		}
		if has, err := HasLink(u.HostLink); err != nil || !has {
			t.Errorf("HasLink: %v, %v", has, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// The host's other address answers, and what has no route goes through the host.
	var ln net.Listener
	if err := InNamespace(hostNS, func() (err error) { ln, err = net.Listen("tcp", "192.168.50.7:0"); return err }); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	err = InNamespace(node, func() error {
		c, err := net.DialTimeout("tcp", ln.Addr().String(), 10*time.Second)
		if err != nil {
			return err
		}
		if got, want := c.LocalAddr().(*net.TCPAddr).IP.String(), "172.28.9.2"; got != want {
			t.Errorf("the node speaks from %s, want %s", got, want)
		}
		return c.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}
