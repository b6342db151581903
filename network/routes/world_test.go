package routes

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skiff-k8s/skiff/network/bridge"
)

// world is machines as network namespaces, joined by a namespace "wire" with a bridge a subnet and
// routes between these. It knows nothing of pods: packets with their addresses end there.
type world struct {
	t        *testing.T
	client   kubernetes.Interface
	wire     string
	names    []string
	machines map[string]*machine
}

type machine struct {
	w    *world
	name string
	ns   string
	// work runs functions on a thread in the machine's namespace.
	work   chan func()
	bridge *bridge.Bridge
	router *Router
	stop   func()
	pods   []pod
}

type pod struct {
	ns  string
	ips []netip.Addr
}

var sequence struct {
	sync.Mutex
	n int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make links and namespaces; run by make test")
	}
	w := &world{t: t, client: fake.NewClientset(), machines: map[string]*machine{}}
	w.wire = w.namespace()
	w.sh(w.wire, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.default.accept_dad=0")
	return w
}

// namespace makes one that goes with the test.
func (w *world) namespace() string {
	w.t.Helper()
	sequence.Lock()
	sequence.n++
	name := fmt.Sprintf("skiff-routes-%d-%d", os.Getpid(), sequence.n)
	sequence.Unlock()
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		w.t.Fatalf("make namespace: %v: %s", err, out)
	}
	w.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	w.sh(name, "ip link set lo up")
	return name
}

func enter(ns, script string) *exec.Cmd {
	return exec.Command("nsenter", "--net=/run/netns/"+ns, "sh", "-ec", script)
}

func (w *world) sh(ns, script string) string {
	w.t.Helper()
	out, err := enter(ns, script).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// subnet makes a bridge of the wire with the first address of each prefix.
func (w *world) subnet(name string, mtu int, prefixes ...string) {
	w.t.Helper()
	w.sh(w.wire, fmt.Sprintf("ip link add name %s mtu %d type bridge; ip link set dev %s up", name, mtu, name))
	for _, p := range prefixes {
		c := netip.MustParsePrefix(p)
		w.sh(w.wire, fmt.Sprintf("ip addr add %s/%d dev %s %s", c.Addr().Next(), c.Bits(), name, nodad(c.Addr())))
	}
}

func nodad(a netip.Addr) string {
	if a.Is6() {
		return "nodad"
	}
	return ""
}

// machine joins a subnet with these addresses; its default routes are by the wire.
func (w *world) machine(name, subnet string, mtu int, addrs ...string) *machine {
	w.t.Helper()
	m := &machine{w: w, name: name, ns: w.namespace(), work: make(chan func())}
	w.sh(m.ns, "sysctl -qw net.ipv6.conf.default.accept_dad=0")
	w.sh(w.wire, fmt.Sprintf("ip link add name %s mtu %d type veth peer name eth0 mtu %d netns %s; ip link set dev %s master %s up", name, mtu, mtu, m.ns, name, subnet))
	w.sh(m.ns, "ip link set eth0 up")
	for _, a := range addrs {
		p := netip.MustParsePrefix(a)
		w.sh(m.ns, fmt.Sprintf("ip addr add %s dev eth0 %s; ip route add default via %s || [ %d = %d ]", p, nodad(p.Addr()), p.Masked().Addr().Next(), p.Bits(), p.Addr().BitLen()))
	}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		h, err := netns.GetFromName(m.ns)
		if err == nil {
			err = netns.Set(h)
			h.Close()
		}
		for f := range m.work {
			if err != nil {
				panic(err)
			}
			f()
		}
	}()
	w.t.Cleanup(func() {
		m.halt()
		close(m.work)
	})
	w.names = append(w.names, name)
	w.machines[name] = m
	return m
}

// in runs a function in the machine's namespace.
func (m *machine) in(f func() error) {
	m.w.t.Helper()
	done := make(chan error, 1)
	m.work <- func() { done <- f() }
	if err := <-done; err != nil {
		m.w.t.Fatal(err)
	}
}

// register makes the machine's Node.
func (m *machine) register(podCIDRs []string, ips ...string) {
	m.w.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs, PodCIDR: podCIDRs[0]}}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	if _, err := m.w.client.CoreV1().Nodes().Create(m.w.t.Context(), n, metav1.CreateOptions{}); err != nil {
		m.w.t.Fatal(err)
	}
	m.in(func() (err error) {
		m.bridge, err = bridge.New(bridge.Config{Name: "skr", StateDir: m.w.t.TempDir(), ClusterCIDRs: clusterCIDRs, Logger: slog.Default()})
		return err
	})
	m.start(Auto)
	<-m.router.First()
	var cidrs []netip.Prefix
	for _, c := range podCIDRs {
		cidrs = append(cidrs, netip.MustParsePrefix(c))
	}
	m.in(func() error { return m.bridge.SetPodCIDRs(cidrs) })
}

var clusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")}

func (m *machine) start(mode Mode) {
	m.w.t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(m.w.client, 0, informers.WithTransform(Transform))
	ctx, cancel := context.WithCancel(context.Background())
	r, err := New(Config{
		NodeName: m.name, ClusterID: "test", ClusterCIDRs: clusterCIDRs, Nodes: factory.Core().V1().Nodes().Informer(), PodLink: "skr", Link: "skr", Mode: mode,
		MTU: m.bridge.SetMTU, Logger: slog.New(slog.NewTextHandler(&testLog{t: m.w.t}, nil)).With("node", m.name),
		Publish: func(ctx context.Context, text string) error {
			patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, Annotation, text)
			if text == "" {
				patch = fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, Annotation)
			}
			_, err := m.w.client.CoreV1().Nodes().Patch(ctx, m.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		},
	})
	if err != nil {
		m.w.t.Fatal(err)
	}
	m.router = r
	factory.Start(ctx.Done())
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		h, err := netns.GetFromName(m.ns)
		if err == nil {
			err = netns.Set(h)
			h.Close()
		}
		if err == nil {
			err = r.Run(ctx)
		}
		done <- err
	}()
	m.stop = func() {
		cancel()
		if err := <-done; err != nil {
			m.w.t.Errorf("router of %s: %v", m.name, err)
		}
		factory.Shutdown()
	}
}

// halt ends the router; what it made stays.
func (m *machine) halt() {
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
}

// pod starts one, with servers of TCP and UDP on its addresses.
func (m *machine) pod() pod {
	m.w.t.Helper()
	p := pod{ns: m.w.namespace()}
	m.in(func() (err error) {
		p.ips, err = m.bridge.Attach(m.w.t.Context(), p.ns, "/run/netns/"+p.ns)
		return err
	})
	m.pods = append(m.pods, p)
	for _, ip := range p.ips {
		m.w.serve(p.ns, ip)
	}
	return p
}

func (p pod) ip(v6 bool) netip.Addr { return peer{ips: p.ips}.ip(v6) }

// onThread runs f on a thread in a namespace.
func onThread(ns string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		h, err := netns.GetFromName(ns)
		if err == nil {
			err = netns.Set(h)
			h.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

const (
	servePort = 8080
	bulk      = 1 << 20
	// patience is how long a machine under load may take for anything.
	patience = 30 * time.Second
)

// serve answers what it is sent with a sum of it, and who sent it.
func (w *world) serve(ns string, ip netip.Addr) {
	w.t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	err := onThread(ns, func() (err error) {
		at := netip.AddrPortFrom(ip, servePort).String()
		if tcp, err = net.Listen("tcp", at); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", at)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { tcp.Close(); udp.Close() })
	answer := func(from net.Addr, sum []byte) []byte {
		host, _, _ := net.SplitHostPort(from.String())
		return fmt.Appendf(nil, "%s %x", host, sum)
	}
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				h := sha256.New()
				if _, err := io.CopyN(h, c, bulk); err == nil {
					_, _ = c.Write(answer(c.RemoteAddr(), h.Sum(nil)))
				}
			}()
		}
	}()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			sum := sha256.Sum256(buf[:n])
			// Answers are as big, so that fragments come back too.
			_, _ = udp.WriteTo(append(answer(from, sum[:]), make([]byte, n)...), from)
		}
	}()
}

// talk sends size bytes from a namespace and returns the address that they arrived with.
func talk(ns, network string, to netip.Addr, size int, within time.Duration) (netip.Addr, error) {
	var from netip.Addr
	err := onThread(ns, func() error {
		c, err := net.DialTimeout(network, netip.AddrPortFrom(to, servePort).String(), within)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * 7)
		}
		if _, err := c.Write(data); err != nil {
			return err
		}
		buf := make([]byte, 1<<16)
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		var host, sum string
		if _, err := fmt.Sscan(strings.TrimRight(string(buf[:n]), "\x00"), &host, &sum); err != nil {
			return err
		}
		if sum != fmt.Sprintf("%x", sha256.Sum256(data)) {
			return fmt.Errorf("%s to %s: what arrived is not what was sent", network, to)
		}
		from, err = netip.ParseAddr(host)
		return err
	})
	return from, err
}

// whole sends a packet of so many bytes in all that must not be fragmented, until it is answered or
// known to be too big.
func whole(ns string, to netip.Addr, size int) error {
	return onThread(ns, func() error {
		c, err := net.Dial("udp4", netip.AddrPortFrom(to, servePort).String())
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			return err
		}
		var set error
		if err := raw.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		}); err != nil || set != nil {
			return errors.Join(err, set)
		}
		for range 10 {
			if err := c.SetDeadline(time.Now().Add(patience / 10)); err != nil {
				return err
			}
			if _, err := c.Write(make([]byte, size-20-8)); err != nil {
				return err
			}
			var n int
			if n, err = c.Read(make([]byte, 1<<16)); n > 0 {
				return nil
			}
		}
		return err
	})
}

// reach checks that a pod is reached from a namespace by TCP, UDP and in fragments, and with which
// source; invalid: any.
func (w *world) reach(from string, to, source netip.Addr) {
	w.t.Helper()
	w.eventually(func() error { // the first packets may come before the routes
		_, err := talk(from, "udp", to, 1, 200*time.Millisecond)
		return err
	})
	for _, try := range []struct {
		network string
		size    int
	}{{"tcp", bulk}, {"udp", 100}, {"udp", 9000}} {
		var got netip.Addr
		var err error
		w.eventually(func() error {
			got, err = talk(from, try.network, to, try.size, 3*time.Second)
			return err
		})
		if source.IsValid() && got != source {
			w.t.Errorf("%s of %d bytes to %s came from %s, want %s", try.network, try.size, to, got, source)
		}
	}
}

// eventually repeats until there is no error.
func (w *world) eventually(f func() error) {
	w.t.Helper()
	end := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			w.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// all pods reach each other in both families, with their own addresses.
func (w *world) allReach() {
	w.t.Helper()
	for _, from := range w.names {
		for _, p := range w.machines[from].pods {
			for _, to := range w.names {
				for _, q := range w.machines[to].pods {
					for _, ip := range q.ips {
						if p.ns != q.ns && p.ip(ip.Is6()).IsValid() {
							w.reach(p.ns, ip, p.ip(ip.Is6()))
						}
					}
				}
			}
		}
	}
}

// testLog keeps quiet once the test has ended.
type testLog struct{ t *testing.T }

func (l *testLog) Write(b []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}
