package hostport

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/skiff-k8s/skiff/network/bridge"
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

// world is a node with pods on a bridge, each in its own network namespace.
type world struct {
	t    *testing.T
	node netns.NsHandle
	pods []netns.NsHandle
	ips  []netip.Addr
	cfg  Config
}

const (
	link     = "skh"
	nodeAddr = "192.0.2.7"
)

func newWorld(t *testing.T, pods int) *world {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces and nftables; run by make test")
	}
	runtime.LockOSThread() // the test's own network namespace ends with this thread
	w := &world{t: t, cfg: Config{Table: "skiff-hostport-test", StateDir: t.TempDir(), Link: link}}
	var err error
	if w.node, err = netns.New(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "-c", "ip link set lo up && ip addr add "+nodeAddr+"/32 dev lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	br, err := bridge.New(bridge.Config{Name: link, StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := br.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.251.0.0/24")}); err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		name := fmt.Sprintf("skiff-hostport-test-%d", i)
		ns, err := netns.NewNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netns.DeleteNamed(name) })
		if err := netns.Set(w.node); err != nil {
			t.Fatal(err)
		}
		ips, err := br.Attach(t.Context(), name, "/run/netns/"+name)
		if err != nil {
			t.Fatal(err)
		}
		w.pods, w.ips = append(w.pods, ns), append(w.ips, ips[0])
		w.serve(ns, netip.AddrPortFrom(ips[0], 8080), fmt.Sprint("pod", i))
	}
	return w
}

func (w *world) enter(ns netns.NsHandle) func() {
	if err := netns.Set(ns); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		if err := netns.Set(w.node); err != nil {
			w.t.Fatal(err)
		}
	}
}

// serve answers TCP connections and UDP packets with a name.
func (w *world) serve(ns netns.NsHandle, at netip.AddrPort, name string) {
	defer w.enter(ns)()
	ln, err := net.Listen("tcp", at.String())
	if err != nil {
		w.t.Fatal(err)
	}
	pc, err := net.ListenPacket("udp", at.String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close(); pc.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "%s tcp\n", name)
			c.Close()
		}
	}()
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo([]byte(name+" udp\n"), from)
		}
	}()
}

func (w *world) ask(ns netns.NsHandle, network, to string) string {
	defer w.enter(ns)()
	c, err := net.DialTimeout(network, to, time.Second)
	if err != nil {
		return "nobody"
	}
	defer c.Close()
	return w.talk(c)
}

func (w *world) talk(c net.Conn) string {
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		w.t.Fatal(err)
	}
	if c.RemoteAddr().Network() == "udp" {
		if _, err := c.Write([]byte("x\n")); err != nil {
			return "nobody"
		}
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil && err != io.EOF || line == "" {
		return "nobody"
	}
	return line[:len(line)-1]
}

func (w *world) want(ns netns.NsHandle, network, to, want string) {
	w.t.Helper()
	if got := w.ask(ns, network, to); got != want {
		w.t.Errorf("%s to %s: answered by %s, want %s", network, to, got, want)
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
		must(t, p.Set(fmt.Sprint("sandbox", pod), w.ips[pod:pod+1], ms))
	}
	local, outer := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr(nodeAddr)

	// The same port for another address, another protocol: no conflict.
	set(0, Mapping{TCP, local, 54323, 8080})
	set(1, Mapping{TCP, outer, 54323, 8080})
	set(2, Mapping{UDP, outer, 54323, 8080})
	w.want(w.node, "tcp", "127.0.0.1:54323", "pod0 tcp")
	w.want(w.node, "tcp", nodeAddr+":54323", "pod1 tcp")
	w.want(w.node, "udp", nodeAddr+":54323", "pod2 udp")
	w.want(w.pods[0], "tcp", nodeAddr+":54323", "pod1 tcp")
	w.want(w.pods[1], "tcp", nodeAddr+":54323", "pod1 tcp") // itself
	w.want(w.node, "udp", "127.0.0.1:54323", "nobody")

	// All addresses, after a restart of the process.
	set(0, Mapping{TCP, netip.Addr{}, 80, 8080})
	p, err = New(w.cfg)
	must(t, err)
	w.want(w.node, "tcp", "127.0.0.1:80", "pod0 tcp")
	w.want(w.node, "tcp", "127.0.0.1:54323", "nobody")
	set(1)
	w.want(w.pods[2], "tcp", nodeAddr+":80", "pod0 tcp")
	w.want(w.node, "tcp", nodeAddr+":54323", "nobody")
	w.want(w.node, "udp", nodeAddr+":54323", "pod2 udp")

	// A successor that comes before its predecessor goes, with a client that keeps its socket.
	udp, err := net.Dial("udp", nodeAddr+":54323")
	must(t, err)
	defer udp.Close()
	if got := w.talk(udp); got != "pod2 udp" {
		t.Errorf("answered by %s, want pod2", got)
	}
	set(1, Mapping{UDP, netip.IPv4Unspecified(), 54323, 8080}, Mapping{UDP, outer, 54323, 8080})
	must(t, p.Remove("sandbox2"))
	if got := w.talk(udp); got != "pod1 udp" {
		t.Errorf("after a change of hands answered by %s, want pod1", got)
	}

	// Pods don't reach what listens on the node's loopback only.
	w.serve(w.node, netip.MustParseAddrPort("127.0.0.1:7070"), "secret")
	w.want(w.node, "tcp", "127.0.0.1:7070", "secret tcp")
	leave := w.enter(w.pods[2])
	out, err := exec.Command("sh", "-c", "ip link set lo down; ip addr flush dev lo; sysctl -qw net.ipv4.conf.all.route_localnet=1 && "+
		"ip route add 127.0.0.0/8 via 10.251.0.1 dev eth0 src "+w.ips[2].String()+" onlink").CombinedOutput()
	leave()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.want(w.pods[2], "udp", "127.0.0.1:7070", "nobody")
	w.want(w.pods[2], "tcp", "127.0.0.1:7070", "nobody")

	must(t, p.Remove("sandbox0"))
	must(t, p.Remove("sandbox1"))
	must(t, p.Remove("sandbox1"))
	w.want(w.node, "tcp", nodeAddr+":80", "nobody")
	if left, err := os.ReadDir(w.cfg.bookDir()); err != nil || len(left) != 0 {
		t.Errorf("the book still has %v, %v", left, err)
	}
}
