package hostport

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/skiff-k8s/skiff/network/bridge/bridgetest"
)

func TestContents(t *testing.T) {
	v4, other, v6 := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3"), netip.MustParseAddr("fd00::2")
	local := netip.MustParseAddr("127.0.0.1")
	web := Mapping{Protocol: TCP, HostPort: 80, PodPort: 8080}
	with := func(m Mapping, ip netip.Addr) Mapping { m.HostIP = ip; return m }
	udp := web
	udp.Protocol = UDP
	for name, test := range map[string]struct {
		book                    book
		one, any, hairpin, any6 int
	}{
		"all addresses, both families": {book{"a": {1, []netip.Addr{v4, v6}, []Mapping{web}}}, 0, 1, 1, 1},
		"one family":                   {book{"a": {1, []netip.Addr{v4}, []Mapping{web}}}, 0, 1, 1, 0},
		"0.0.0.0 is IPv4 only":         {book{"a": {1, []netip.Addr{v4, v6}, []Mapping{with(web, netip.IPv4Unspecified())}}}, 0, 1, 1, 0},
		":: is IPv6 only":              {book{"a": {1, []netip.Addr{v4, v6}, []Mapping{with(web, netip.IPv6Unspecified())}}}, 0, 0, 0, 1},
		"the same port thrice":         {book{"a": {1, []netip.Addr{v4}, []Mapping{web, udp, with(web, local)}}}, 1, 2, 1, 0},
		"two sandboxes, one port":      {book{"a": {1, []netip.Addr{v4}, []Mapping{web}}, "b": {2, []netip.Addr{other}, []Mapping{web}}}, 0, 1, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c, c6 := test.book.contents(false), test.book.contents(true)
			if len(c[setOne]) != test.one || len(c[setAny]) != test.any || len(c[setHairpin]) != test.hairpin || len(c6[setAny]) != test.any6 {
				t.Errorf("got %d one, %d any, %d hairpin, %d any of IPv6; want %d, %d, %d, %d",
					len(c[setOne]), len(c[setAny]), len(c[setHairpin]), len(c6[setAny]), test.one, test.any, test.hairpin, test.any6)
			}
		})
	}
	last := book{"b": {2, []netip.Addr{other}, []Mapping{web}}, "a": {1, []netip.Addr{v4}, []Mapping{web}}}.contents(false)[setAny][0]
	if got, _ := netip.AddrFromSlice(last.Value[:4]); got != other {
		t.Errorf("the port went to %s, want %s, which came last", got, other)
	}
}

const (
	link     = "skh"
	nodeAddr = "192.0.2.7"
)

type world struct {
	*bridgetest.World
	t   *testing.T
	cfg Config
}

func newWorld(t *testing.T, pods int) *world {
	t.Helper()
	w := &world{t: t, cfg: Config{Table: "skiff-hostport-test", StateDir: t.TempDir(), Link: link}}
	w.World = bridgetest.New(t, link, netip.MustParsePrefix("10.251.0.0/24"), pods)
	if out, err := exec.Command("sh", "-c", "ip link set lo up && ip addr add "+nodeAddr+"/32 dev lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return w
}

// want checks who answers; want is "who network".
func (w *world) want(ns netns.NsHandle, network, to, want string) {
	w.t.Helper()
	a, err := w.Ask(ns, network, to)
	if got := a.Who + " " + a.Network; err != nil || got != want {
		w.t.Errorf("%s to %s: answered by %s, %v, want %s", network, to, got, err, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPorts(t *testing.T) {
	w := newWorld(t, 3)
	p, err := New(w.cfg)
	must(t, err)
	defer func() { must(t, Remove(w.cfg)) }()
	set := func(pod int, ms ...Mapping) {
		t.Helper()
		must(t, p.Set(fmt.Sprint("sandbox", pod), w.IPs[pod:pod+1], ms))
	}
	local, outer := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr(nodeAddr)

	// The same port for another address, another protocol: no conflict.
	set(0, Mapping{TCP, local, 54323, 8080})
	set(1, Mapping{TCP, outer, 54323, 8080})
	set(2, Mapping{UDP, outer, 54323, 8080})
	w.want(w.Node, "tcp", "127.0.0.1:54323", "pod0 tcp")
	w.want(w.Node, "tcp", nodeAddr+":54323", "pod1 tcp")
	w.want(w.Node, "udp", nodeAddr+":54323", "pod2 udp")
	w.want(w.Pods[0], "tcp", nodeAddr+":54323", "pod1 tcp")
	w.want(w.Pods[1], "tcp", nodeAddr+":54323", "pod1 tcp") // itself
	w.Silent(w.Node, "udp", "127.0.0.1:54323")

	// All addresses, after a restart of the process.
	set(0, Mapping{TCP, netip.Addr{}, 80, 8080})
	p, err = New(w.cfg)
	must(t, err)
	w.want(w.Node, "tcp", "127.0.0.1:80", "pod0 tcp")
	w.Silent(w.Node, "tcp", "127.0.0.1:54323")
	set(1)
	w.want(w.Pods[2], "tcp", nodeAddr+":80", "pod0 tcp")
	w.Silent(w.Node, "tcp", nodeAddr+":54323")
	w.want(w.Node, "udp", nodeAddr+":54323", "pod2 udp")

	// A successor that comes before its predecessor goes, with a client that keeps its socket.
	udp, err := net.Dial("udp", nodeAddr+":54323")
	must(t, err)
	defer udp.Close()
	if a, err := w.Talk(udp); err != nil || a.Who != "pod2" {
		t.Errorf("answered by %s, %v, want pod2", a.Who, err)
	}
	set(1, Mapping{UDP, netip.IPv4Unspecified(), 54323, 8080}, Mapping{UDP, outer, 54323, 8080})
	must(t, p.Remove("sandbox2"))
	if a, err := w.Talk(udp); err != nil || a.Who != "pod1" {
		t.Errorf("after a change of hands answered by %s, %v, want pod1", a.Who, err)
	}

	// Pods don't reach what listens on the node's loopback only.
	w.Serve(w.Node, netip.MustParseAddrPort("127.0.0.1:7070"), "secret")
	w.want(w.Node, "tcp", "127.0.0.1:7070", "secret tcp")
	leave := w.Enter(w.Pods[2])
	out, err := exec.Command("sh", "-c", "ip link set lo down; ip addr flush dev lo; sysctl -qw net.ipv4.conf.all.route_localnet=1 && "+
		"ip route add 127.0.0.0/8 via 10.251.0.1 dev eth0 src "+w.IPs[2].String()+" onlink").CombinedOutput()
	leave()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.Silent(w.Pods[2], "udp", "127.0.0.1:7070")
	w.Silent(w.Pods[2], "tcp", "127.0.0.1:7070")

	must(t, p.Remove("sandbox0"))
	must(t, p.Remove("sandbox1"))
	must(t, p.Remove("sandbox1"))
	w.Silent(w.Node, "tcp", nodeAddr+":80")
	if left, err := os.ReadDir(w.cfg.bookDir()); err != nil || len(left) != 0 {
		t.Errorf("the book still has %v, %v", left, err)
	}
}

// TestPortsIPv6 leads ports of IPv6 addresses, the pod's own detour included.
func TestPortsIPv6(t *testing.T) {
	const address = "2001:db8::7"
	w := &world{t: t, cfg: Config{Table: "skiff-hostport-test6", StateDir: t.TempDir(), Link: link}}
	w.World = bridgetest.New(t, link, netip.MustParsePrefix("fd00:251::/64"), 2)
	if out, err := exec.Command("sh", "-c", "ip link set lo up && ip addr add "+address+"/128 dev lo nodad").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p, err := New(w.cfg)
	must(t, err)
	defer func() { must(t, Remove(w.cfg)) }()
	must(t, p.Set("sandbox0", w.IPs[:1], []Mapping{{TCP, netip.Addr{}, 80, 8080}, {UDP, netip.MustParseAddr(address), 81, 8080}}))
	for _, from := range []netns.NsHandle{w.Node, w.Pods[0], w.Pods[1]} {
		w.want(from, "tcp", "["+address+"]:80", "pod0 tcp")
		w.want(from, "udp", "["+address+"]:81", "pod0 udp")
	}
	must(t, p.Set("sandbox1", w.IPs[1:], []Mapping{{TCP, netip.IPv4Unspecified(), 82, 8080}}))
	w.Silent(w.Node, "tcp", "["+address+"]:82")
	must(t, p.Remove("sandbox0"))
	w.Silent(w.Node, "tcp", "["+address+"]:80")
}
