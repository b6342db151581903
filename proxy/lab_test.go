package proxy_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"
)

// lab is two nodes with pods, and a client outside the cluster, on one link: all are network
// namespaces, and what goes between them are real packets.
//
//	client ── lan ──┬── n1: pods a, b
//	                └── n2: pods c, d
type lab struct {
	t     *testing.T
	hosts map[string]*host
}

// host is a namespace with its addresses, the one of IPv4 and the one of IPv6.
type host struct {
	name string
	ns   netns.NsHandle
	ips  [2]netip.Addr
	node string // that a pod is on
}

const podPort = 8080

var (
	podCIDRs     = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}
	serviceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	// second is an address that node n1 has beside its own, other the client's.
	second = [2]netip.Addr{netip.MustParseAddr("192.0.2.201"), netip.MustParseAddr("2001:db8::201")}
	other  = [2]netip.Addr{netip.MustParseAddr("192.0.2.101"), netip.MustParseAddr("2001:db8::101")}
)

func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces and nftables; run by make test")
	}
	l := &lab{t: t, hosts: map[string]*host{}}
	for _, name := range []string{"lan", "n1", "n2", "client", "a", "b", "c", "d"} {
		l.namespace(name)
	}
	l.ip("lan", "link add br0 type bridge", "link set br0 up")
	l.wire("client", "", "192.0.2.100", "2001:db8::100")
	l.ip("client", "addr add "+other[0].String()+"/24 dev eth0", "-6 addr add "+other[1].String()+"/64 dev eth0 nodad")
	l.wire("n1", "", "192.0.2.1", "2001:db8::1")
	l.wire("n2", "", "192.0.2.2", "2001:db8::2")
	l.ip("n1", "addr add "+second[0].String()+"/24 dev eth0", "-6 addr add "+second[1].String()+"/64 dev eth0 nodad")
	for i, pod := range []string{"a", "b", "c", "d"} {
		node, n := "n1", 1
		if i > 1 {
			node, n = "n2", 2
		}
		l.wire(pod, node, fmt.Sprintf("10.244.%d.%d", n, 10+i), fmt.Sprintf("fd00:10:244:%d::%d", n, 10+i))
	}
	// Nodes know the way to each other's pods; the client reaches cluster, external and load
	// balancers' addresses by n1, and a node has a way for what it does not know.
	for _, r := range []string{
		"n1 route add 10.244.2.0/24 via 192.0.2.2", "n1 -6 route add fd00:10:244:2::/64 via 2001:db8::2",
		"n2 route add 10.244.1.0/24 via 192.0.2.1", "n2 -6 route add fd00:10:244:1::/64 via 2001:db8::1",
		"n1 route add default via 192.0.2.100", "n1 -6 route add default via 2001:db8::100",
		"n2 route add default via 192.0.2.100", "n2 -6 route add default via 2001:db8::100",
		"client route add 10.96.0.0/16 via 192.0.2.1", "client -6 route add fd00:10:96::/112 via 2001:db8::1",
		"client route add 203.0.113.0/24 via 192.0.2.1", "client -6 route add 2001:db8:113::/64 via 2001:db8::1",
	} {
		name, args, _ := strings.Cut(r, " ")
		l.ip(name, args)
	}
	for _, pod := range []string{"a", "b", "c", "d"} {
		l.serve(l.hosts[pod])
	}
	return l
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) namespace(name string) {
	full := fmt.Sprintf("skiff-lab-%d-%s", os.Getpid(), name)
	l.run("ip", "netns", "add", full)
	l.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", full).Run() })
	ns, err := netns.GetFromName(full)
	l.must(err)
	l.t.Cleanup(func() { ns.Close() })
	l.hosts[name] = &host{name: full, ns: ns}
	l.ip(name, "link set lo up")
	l.in(l.hosts[name], func() {
		// Errors are not rationed: each request here wants its own.
		for _, s := range []string{"ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1", "ipv4/conf/all/send_redirects=0",
			"ipv4/conf/default/send_redirects=0", "ipv4/icmp_ratelimit=0", "ipv6/icmp/ratelimit=0"} {
			path, value, _ := strings.Cut(s, "=")
			l.must(os.WriteFile("/proc/sys/net/"+path, []byte(value), 0))
		}
	})
}

func (l *lab) run(argv ...string) {
	l.t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
}

// ip runs commands in a namespace.
func (l *lab) ip(name string, commands ...string) {
	l.t.Helper()
	for _, c := range commands {
		l.run(append([]string{"ip", "-n", l.hosts[name].name}, strings.Fields(c)...)...)
	}
}

// wire joins a host to the link, or a pod to its node.
func (l *lab) wire(name, node, v4, v6 string) {
	h := l.hosts[name]
	h.node, h.ips = node, [2]netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}
	far := "lan"
	if node != "" {
		far = node
	}
	l.run("ip", "-n", l.hosts[far].name, "link", "add", "v"+name, "type", "veth", "peer", "name", "eth0", "netns", h.name)
	l.ip(name, "link set eth0 up")
	l.ip(far, "link set v"+name+" up")
	if node == "" {
		l.ip("lan", "link set v"+name+" master br0")
		l.ip(name, "addr add "+v4+"/24 dev eth0", "-6 addr add "+v6+"/64 dev eth0 nodad")
		return
	}
	// All that a pod sends goes by its node, so that the node sees both directions.
	gw4, gw6 := v4[:strings.LastIndex(v4, ".")]+".1", v6[:strings.LastIndex(v6, ":")]+":1"
	l.ip(node, "addr add "+gw4+"/32 dev v"+name, "-6 addr add "+gw6+"/128 dev v"+name+" nodad",
		"route add "+v4+"/32 dev v"+name, "-6 route add "+v6+"/128 dev v"+name)
	l.ip(name, "addr add "+v4+"/32 dev eth0", "-6 addr add "+v6+"/128 dev eth0 nodad",
		"route add "+gw4+" dev eth0", "-6 route add "+gw6+" dev eth0",
		"route add default via "+gw4, "-6 route add default via "+gw6)
}

// in runs f in a namespace, on a thread that ends with it.
func (l *lab) in(h *host, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		if err := netns.Set(h.ns); err != nil {
			l.t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// serve answers TCP connections and UDP packets with the pod's name and the address that
// they came from.
func (l *lab) serve(h *host) {
	name := h.name[strings.LastIndex(h.name, "-")+1:]
	l.in(h, func() {
		for _, ip := range h.ips {
			at := netip.AddrPortFrom(ip, podPort).String()
			ln, err := net.Listen("tcp", at)
			l.must(err)
			pc, err := net.ListenPacket("udp", at)
			l.must(err)
			l.t.Cleanup(func() { ln.Close(); pc.Close() })
			line := func(from net.Addr) []byte {
				ap := netip.MustParseAddrPort(from.String())
				return fmt.Appendf(nil, "%s %s\n", name, ap.Addr().Unmap())
			}
			go func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return // closed
					}
					_, _ = c.Write(line(c.RemoteAddr()))
					c.Close()
				}
			}()
			go func() {
				buf := make([]byte, 64)
				for {
					_, from, err := pc.ReadFrom(buf)
					if err != nil {
						return // closed
					}
					_, _ = pc.WriteTo(line(from), from)
				}
			}()
		}
	})
}

// verdict is what became of a request.
type verdict struct {
	pod    string // who answered
	source netip.Addr
	// not is why nobody did: refused, silent, unreachable.
	not string
}

func (v verdict) String() string {
	if v.not != "" {
		return v.not
	}
	return v.pod + " saw " + v.source.String()
}

// dial connects from a host, by its address of the family if from is not valid.
func (l *lab) dial(h *host, network string, from netip.Addr, to netip.AddrPort, within time.Duration) (c net.Conn, err error) {
	d := net.Dialer{Timeout: within}
	if from.IsValid() {
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		} else {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
	}
	l.in(h, func() { c, err = d.Dial(network, to.String()) })
	return c, err
}

func (l *lab) ask(h *host, network string, from netip.Addr, to netip.AddrPort, within time.Duration) verdict {
	c, err := l.dial(h, network, from, to, within)
	if err != nil {
		return verdict{not: reason(err)}
	}
	defer c.Close()
	return talk(c, within)
}

func talk(c net.Conn, within time.Duration) verdict {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return verdict{not: err.Error()}
	}
	if c.RemoteAddr().Network() == "udp" {
		if _, err := c.Write([]byte("x\n")); err != nil {
			return verdict{not: reason(err)}
		}
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return verdict{not: reason(err)}
	}
	var v verdict
	var source string
	if _, err := fmt.Sscan(line, &v.pod, &source); err != nil {
		return verdict{not: err.Error()}
	}
	v.source = netip.MustParseAddr(source)
	return v
}

// forbidden is what the kernel tells whoever sends from the very host that drops or rejects.
const forbidden = "forbidden"

func reason(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "unreachable"
	case errors.Is(err, syscall.EPERM):
		return forbidden
	case errors.As(err, &timeout) && timeout.Timeout():
		return "silent"
	}
	return err.Error()
}

// start runs a program in a namespace until the test ends.
func (l *lab) start(h *host, log *bytes.Buffer, argv ...string) {
	l.t.Helper()
	cmd := exec.Command("ip", append([]string{"netns", "exec", h.name}, argv...)...)
	cmd.Stdout, cmd.Stderr = log, log
	l.must(cmd.Start())
	l.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if l.t.Failed() {
			l.t.Logf("%s:\n%s", argv[0], log)
		}
	})
}
