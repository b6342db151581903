package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// lab is a node that routes between hosts, each a network namespace with an address of each family: pods of
// the node, of another node, and the world outside, which are all the same to a node that routes.
type lab struct {
	t     *testing.T
	label string
	node  netns.NsHandle
	hosts map[netip.Addr]netns.NsHandle
}

// newLab belongs to the test's goroutine, whose thread is in the node's namespace.
func newLab(t *testing.T, label string, addrs [][2]netip.Addr) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces and nftables; run by make test")
	}
	runtime.LockOSThread() // and never unlocked: the namespace ends with the thread
	l := &lab{t: t, label: label, hosts: map[netip.Addr]netns.NsHandle{}}
	l.node = l.namespace("node")
	for i, pair := range addrs {
		ns := l.namespace(fmt.Sprint("h", i))
		must(t, netns.Set(l.node))
		link := fmt.Sprint("v", i)
		// Neighbours are known: what asks for them waits, and is not what is tested.
		near, far := fmt.Sprintf("02:00:00:00:01:%02x", i), fmt.Sprintf("02:00:00:00:02:%02x", i)
		l.run("ip", "link", "add", link, "address", near, "type", "veth", "peer", "name", "eth0", "address", far, "netns", l.name(fmt.Sprint("h", i)))
		l.run("ip", "addr", "add", "169.254.1.1/32", "dev", link)
		l.run("ip", "addr", "add", "fe80::1/64", "dev", link, "nodad")
		l.run("ip", "link", "set", link, "up")
		for _, a := range pair {
			l.run("ip", "route", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", link)
			l.run("ip", "neigh", "replace", a.String(), "lladdr", far, "dev", link, "nud", "permanent")
			l.hosts[a] = ns
		}
		must(t, netns.Set(ns))
		l.run("ip", "addr", "add", pair[0].String()+"/32", "dev", "eth0")
		l.run("ip", "addr", "add", pair[1].String()+"/128", "dev", "eth0", "nodad")
		l.run("ip", "link", "set", "eth0", "up")
		l.run("ip", "neigh", "replace", "169.254.1.1", "lladdr", near, "dev", "eth0", "nud", "permanent")
		l.run("ip", "neigh", "replace", "fe80::1", "lladdr", near, "dev", "eth0", "nud", "permanent")
		l.run("ip", "route", "add", "169.254.1.1", "dev", "eth0")
		l.run("ip", "route", "add", "default", "via", "169.254.1.1", "dev", "eth0", "src", pair[0].String())
		l.run("ip", "-6", "route", "add", "default", "via", "fe80::1", "dev", "eth0", "src", pair[1].String())
	}
	must(t, netns.Set(l.node))
	return l
}

func (l *lab) name(s string) string {
	return fmt.Sprintf("skiff-policy-%d-%s-%s", os.Getpid(), l.label, s)
}

func (l *lab) namespace(s string) netns.NsHandle {
	l.t.Helper()
	ns, err := netns.NewNamed(l.name(s))
	must(l.t, err)
	l.t.Cleanup(func() { _ = netns.DeleteNamed(l.name(s)); ns.Close() })
	l.run("ip", "link", "set", "lo", "up")
	for _, s := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		must(l.t, os.WriteFile("/proc/sys/net/"+s, []byte("1"), 0))
	}
	return ns
}

func (l *lab) run(argv ...string) {
	l.t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
}

func (l *lab) in(ns netns.NsHandle, do func()) {
	l.t.Helper()
	must(l.t, netns.Set(ns))
	do()
	must(l.t, netns.Set(l.node))
}

// raw opens a socket of an IP protocol at a host.
func (l *lab) raw(at netip.Addr, protocol uint8) int {
	l.t.Helper()
	family := unix.AF_INET
	if at.Is6() {
		family = unix.AF_INET6
	}
	var fd int
	l.in(l.hosts[at], func() {
		var err error
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_NONBLOCK, int(protocol))
		must(l.t, err)
		must(l.t, unix.Bind(fd, sockaddr(at)))
		must(l.t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20))
	})
	l.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

// header is the beginning of a segment that begins a flow, as far as routers ask. serial, which is where a
// source port is, tells packets apart.
func header(k packet, serial uint16) []byte {
	ends := []byte{byte(serial >> 8), byte(serial), byte(k.port >> 8), byte(k.port)}
	switch k.number() {
	case tcp: // SYN
		return append(append(ends, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 2, 0x10, 0), 0, 0, 0, 0)
	case udp:
		return append(ends, 0, 8, 0, 0)
	case sctp: // INIT
		return append(append(ends, make([]byte, 8)...), 1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0x10, 0, 0, 1, 0, 1, 0, 0, 0, 1)
	}
	return ends
}

// probe is raw sockets, one a host's address and protocol.
type probe struct {
	*lab
	fds    map[socket]int
	serial uint16
	sent   map[uint16]packet
}

type socket struct {
	at       netip.Addr
	protocol uint8
}

func newProbe(l *lab) *probe { return &probe{lab: l, fds: map[socket]int{}, sent: map[uint16]packet{}} }

func (p *probe) fd(at netip.Addr, protocol uint8) int {
	s := socket{at, protocol}
	if _, ok := p.fds[s]; !ok {
		p.fds[s] = p.raw(at, protocol)
	}
	return p.fds[s]
}

// resend is when a packet that has not arrived is sent again.
const resend = 200 * time.Millisecond

// send packets, and check that exactly those arrive that should.
func (p *probe) send(packets []packet, should func(packet) bool) {
	t := p.t
	t.Helper()
	clear(p.sent)
	missing := map[uint16]bool{}
	for _, k := range packets {
		p.serial++
		p.sent[p.serial] = k
		if should(k) {
			missing[p.serial] = true
		}
		p.fd(k.to, k.number())
		must(t, unix.Sendto(p.fd(k.from, k.number()), header(k, p.serial), 0, sockaddr(k.to)))
	}
	// Packets keep their order on the way: with the last that should, those that should not have arrived too. Who
	// should and does not is sent again: a link that has just come up, or a loaded machine, may lose one.
	again := time.Now().Add(resend)
	for end := time.Now().Add(30 * time.Second); ; {
		for s, fd := range p.fds {
			p.receive(s, fd, missing, should)
		}
		if len(missing) == 0 {
			return
		}
		if time.Now().After(end) {
			for serial := range missing {
				t.Errorf("%+v did not arrive", p.sent[serial])
			}
			t.FailNow()
		}
		if time.Now().After(again) {
			again = time.Now().Add(resend)
			for serial := range missing {
				k := p.sent[serial]
				must(t, unix.Sendto(p.fd(k.from, k.number()), header(k, serial), 0, sockaddr(k.to)))
			}
		}
		runtime.Gosched()
	}
}

func (p *probe) receive(s socket, fd int, missing map[uint16]bool, should func(packet) bool) {
	buf := make([]byte, 256)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, syscall.EAGAIN) {
			return
		}
		must(p.t, err)
		text := buf[:n]
		if s.at.Is4() { // with the IP header
			text = text[int(text[0]&0xf)*4:]
		}
		serial := uint16(text[0])<<8 | uint16(text[1])
		if k, ok := p.sent[serial]; ok && k.to == s.at && k.number() == s.protocol { // else it is an answer
			if delete(missing, serial); !should(k) {
				p.t.Errorf("%+v arrived", k)
			}
		}
	}
}

// TestPackets has random clusters' packets go where the reference says, after each of many changes, which the
// tables take in place.
func TestPackets(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { randomPackets(t, seed) })
	}
}

func randomPackets(t *testing.T, seed uint64) {
	w := newWorld(t, 100+seed)
	w.addrs, w.nodes = w.addrs[:9], []string{thisNode, thisNode, "there"}
	p := newProbe(newLab(t, fmt.Sprint(seed), w.addrs))
	for round := range 25 {
		for range 1 + w.rand.IntN(5) {
			w.step(t)
		}
		must(t, w.Enforcer.sync())
		for _, table := range w.tables {
			if table.held == nil {
				t.Fatal("a table could not be changed in place")
			}
		}
		var packets []packet
		for range 120 {
			from, to := pick(w.rand, w.addrs...), pick(w.rand, w.addrs...)
			protocol := pick(w.rand, "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
			if protocol == "" && to[0].Less(from[0]) { // without ports, packets both ways are one flow
				from, to = to, from
			}
			if i := w.rand.IntN(2); from != to {
				packets = append(packets, packet{from[i], to[i], protocol, pick(w.rand, testPorts[1:]...)})
			}
		}
		p.send(packets, func(k packet) bool {
			local := func(a netip.Addr) bool { o := w.podAt(a); return o != nil && o.Spec.NodeName == thisNode }
			return (!local(k.from) || w.reference.allows(k, egress)) && (!local(k.to) || w.reference.allows(k, ingress))
		})
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	must(t, Remove(w.cfg.Table))
}
