package nftables

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/skiff-k8s/skiff/network/bridge/bridgetest"
	"github.com/skiff-k8s/skiff/proxy"
)

var (
	vip      = netip.MustParseAddr("10.96.0.7")
	services = netip.MustParsePrefix("10.96.0.0/16")
	pods     = netip.MustParsePrefix("10.251.0.0/24")
)

type world struct {
	*bridgetest.World
	t    *testing.T
	back *Backend
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, World: bridgetest.New(t, "skp", pods, 3)}
	// Addresses of Services must have a route, or they are refused for want of it.
	if out, err := exec.Command("ip", "route", "add", "default", "dev", "skp").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	back, err := New(Config{Table: "skiff-test", ServiceCIDRs: []netip.Prefix{services}, PodCIDRs: []netip.Prefix{pods}, Logger: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	w.back = back
	return w
}

// ask connects from a pod and returns which pod answered and the client address it saw.
func (w *world) ask(from int, network string, to netip.AddrPort) (pod int, client netip.Addr, err error) {
	a, err := w.Ask(w.Pods[from], network, to.String())
	if err != nil {
		return 0, netip.Addr{}, err
	}
	_, err = fmt.Sscanf(a.Who, "pod%d", &pod)
	return pod, a.Client, err
}

func (w *world) port(proto uint8, eps ...int) proxy.Port {
	p := proxy.Port{Name: "default/web:http", Protocol: proto, Port: 80, ClusterIP: vip, Endpoints: len(eps) > 0}
	for _, i := range eps {
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(w.IPs[i], bridgetest.PodPort))
		p.Here = append(p.Here, w.IPs[i])
	}
	return p
}

// step names a part of a test. It stays in this goroutine, whose thread is in the node's namespace.
func (w *world) step(name string, f func()) {
	w.t.Log(name)
	f()
}

func (w *world) apply(ports ...proxy.Port) {
	w.t.Helper()
	if err := w.back.Apply(map[string][]proxy.Port{"default/web": ports}); err != nil {
		w.t.Fatal(err)
	}
}

func TestServices(t *testing.T) {
	w := newWorld(t)
	defer func() {
		if err := Remove("skiff-test"); err != nil {
			t.Error(err)
		}
	}()
	to := netip.AddrPortFrom(vip, 80)
	gateway := pods.Addr().Next()
	node := netip.AddrPortFrom(gateway, 30080)

	w.apply(w.port(6, 1, 2), w.port(17, 1, 2))
	for _, network := range []string{"tcp", "udp"} {
		seen := map[int]bool{}
		for range 40 {
			pod, client, err := w.ask(0, network, to)
			if err != nil {
				t.Fatalf("%s to the cluster IP from a pod: %v", network, err)
			}
			if client != w.IPs[0] {
				t.Fatalf("%s: pod %d saw %s, want the client's own address %s", network, pod, client, w.IPs[0])
			}
			seen[pod] = true
		}
		if !seen[1] || !seen[2] || seen[0] {
			t.Errorf("%s went to pods %v, want 1 and 2", network, seen)
		}
	}

	w.step("hairpin", func() {
		w.apply(w.port(6, 1))
		pod, client, err := w.ask(1, "tcp", to)
		if err != nil || pod != 1 || client != gateway {
			t.Errorf("a pod that reaches itself: pod %d, client %s, %v; want 1 by %s", pod, client, err, gateway)
		}
	})

	w.step("node port", func() {
		p := w.port(6, 2)
		p.NodePort = 30080
		w.apply(p)
		pod, client, err := w.ask(0, "tcp", node)
		if err != nil || pod != 2 || client != gateway {
			t.Errorf("pod %d, client %s, %v; want 2 by %s", pod, client, err, gateway)
		}
		p.ExternalLocal, p.Local = true, p.Cluster
		w.apply(p)
		if pod, client, err = w.ask(0, "tcp", node); err != nil || pod != 2 || client != w.IPs[0] {
			t.Errorf("externalTrafficPolicy Local: pod %d, client %s, %v; want 2 and the client's address", pod, client, err)
		}
		if pod, _, err = w.ask(0, "tcp", to); err != nil || pod != 2 {
			t.Errorf("its cluster IP: pod %d, %v", pod, err)
		}
	})

	w.step("affinity", func() {
		p := w.port(6, 0, 1, 2)
		p.Affinity = time.Hour
		w.apply(p)
		first, _, err := w.ask(0, "tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if pod, _, err := w.ask(0, "tcp", to); err != nil || pod != first {
				t.Fatalf("went to pod %d (%v), then to %d", first, err, pod)
			}
		}
		rest := []int{0, 1, 2}
		rest = append(rest[:first], rest[first+1:]...)
		p = w.port(6, rest...)
		p.Affinity = time.Hour
		w.apply(p)
		second, _, err := w.ask(0, "tcp", to)
		if err != nil || second == first {
			t.Fatalf("after its endpoint went: pod %d, %v", second, err)
		}
	})

	w.step("no endpoints", func() {
		w.apply(w.port(6))
		if _, _, err := w.ask(0, "tcp", to); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("got %v, want a refusal", err)
		}
	})

	w.step("another process takes over", func() {
		w.apply(w.port(6, 1))
		again, err := New(Config{Table: "skiff-test", ServiceCIDRs: []netip.Prefix{services}, PodCIDRs: []netip.Prefix{pods}, Logger: slog.Default()})
		if err != nil {
			t.Fatal(err)
		}
		w.back = again
		w.apply(w.port(6, 2))
		if pod, _, err := w.ask(0, "tcp", to); err != nil || pod != 2 {
			t.Errorf("pod %d, %v; want 2", pod, err)
		}
	})

	w.step("removed", func() {
		w.apply()
		w.Silent(w.Pods[0], "tcp", to.String())
	})
}

func BenchmarkTenThousandServices(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root for nftables")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	ns, err := netns.New()
	if err != nil {
		b.Fatal(err)
	}
	// Each sub-benchmark has a goroutine of its own, which begins in the host's namespace.
	enter := func(b *testing.B) {
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			b.Fatal(err)
		}
	}
	all := map[string][]proxy.Port{}
	vip, ep := netip.MustParseAddr("10.96.1.0"), netip.MustParseAddr("10.244.0.1")
	for i := range 10_000 {
		name := fmt.Sprint("default/svc-", i)
		p := proxy.Port{Name: name + ":", Protocol: 6, Port: 80, ClusterIP: vip, Endpoints: true}
		for range 3 {
			p.Cluster = append(p.Cluster, netip.AddrPortFrom(ep, 8080))
			ep = ep.Next()
		}
		vip = vip.Next()
		all[name] = []proxy.Port{p}
	}
	back, err := New(Config{Table: "skiff-bench", ServiceCIDRs: []netip.Prefix{services}, PodCIDRs: []netip.Prefix{pods}, Logger: slog.Default()})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("load", func(b *testing.B) {
		enter(b)
		for b.Loop() {
			back.families[0].held = nil
			if err := back.Apply(all); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("one endpoint", func(b *testing.B) {
		enter(b)
		p := all["default/svc-77"][0]
		for b.Loop() {
			q := p
			q.Cluster = append([]netip.AddrPort{netip.AddrPortFrom(ep, 8080)}, p.Cluster[1:]...)
			ep = ep.Next()
			if err := back.Apply(map[string][]proxy.Port{"default/svc-77": {q}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
