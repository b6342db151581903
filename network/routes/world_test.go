package routes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
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
