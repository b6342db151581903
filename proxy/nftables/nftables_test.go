package nftables

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/skiff-k8s/skiff/network/bridge"
	"github.com/skiff-k8s/skiff/proxy"
)

var (
	vip      = netip.MustParseAddr("10.96.0.7")
	services = netip.MustParsePrefix("10.96.0.0/16")
	pods     = netip.MustParsePrefix("10.251.0.0/24")
)

// world is a node and three pods, each in its own network namespace.
type world struct {
	t    *testing.T
	node netns.NsHandle
	pods []netns.NsHandle
	ips  []netip.Addr
	back *Backend
}

func newWorld(t *testing.T) *world {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces and nftables; run by make test")
	}
	runtime.LockOSThread()
	w := &world{t: t}
	var err error
	if w.node, err = netns.New(); err != nil {
		t.Fatal(err)
	}
	br, err := bridge.New(bridge.Config{Name: "skp", StateDir: t.TempDir(), Logger: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	if err := br.SetPodCIDRs([]netip.Prefix{pods}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		name := fmt.Sprintf("skiff-proxy-test-%d", i)
		_ = netns.DeleteNamed(name)
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
		w.serve(i)
	}
	// A default route, so that addresses of Services are routed before they are translated.
	if w.back, err = New(Config{Table: "skiff-test", ServiceCIDRs: []netip.Prefix{services}, PodCIDRs: []netip.Prefix{pods}, Logger: slog.Default()}); err != nil {
		t.Fatal(err)
	}
	return w
}

// serve answers TCP connections and UDP packets on port 8080 of a pod with "<pod> <client>".
func (w *world) serve(i int) {
	restore := w.enter(w.pods[i])
	defer restore()
	addr := netip.AddrPortFrom(w.ips[i], 8080).String()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		w.t.Fatal(err)
	}
	pc, err := net.ListenPacket("udp", addr)
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
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprintf(c, "%d %s\n", i, host)
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
			host, _, _ := net.SplitHostPort(from.String())
			_, _ = pc.WriteTo([]byte(fmt.Sprintf("%d %s\n", i, host)), from)
		}
	}()
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

// ask connects from a namespace and returns which pod answered and the client address it saw.
func (w *world) ask(ns netns.NsHandle, network string, to netip.AddrPort) (pod int, client string, err error) {
	defer w.enter(ns)()
	c, err := net.DialTimeout(network, to.String(), time.Second)
	if err != nil {
		return 0, "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, "", err
	}
	if network == "udp" {
		if _, err := c.Write([]byte("x")); err != nil {
			return 0, "", err
		}
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return 0, "", err
	}
	_, err = fmt.Sscan(line, &pod, &client)
	return pod, client, err
}

func (w *world) port(proto uint8, eps ...int) proxy.Port {
	p := proxy.Port{Name: "default/web:http", Protocol: proto, Port: 80, ClusterIPs: []netip.Addr{vip}}
	for _, i := range eps {
		p.Internal = append(p.Internal, netip.AddrPortFrom(w.ips[i], 8080))
	}
	p.External = p.Internal
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
			pod, client, err := w.ask(w.pods[0], network, to)
			if err != nil {
				t.Fatalf("%s to the cluster IP from a pod: %v", network, err)
			}
			if client != w.ips[0].String() {
				t.Fatalf("%s: pod %d saw %s, want the client's own address %s", network, pod, client, w.ips[0])
			}
			seen[pod] = true
		}
		if !seen[1] || !seen[2] || seen[0] {
			t.Errorf("%s went to pods %v, want 1 and 2", network, seen)
		}
	}

	w.step("hairpin", func() {
		w.apply(w.port(6, 1))
		pod, client, err := w.ask(w.pods[1], "tcp", to)
		if err != nil || pod != 1 || client != gateway.String() {
			t.Errorf("a pod that reaches itself: pod %d, client %s, %v; want 1 by %s", pod, client, err, gateway)
		}
	})

	w.step("node port", func() {
		p := w.port(6, 2)
		p.NodePort = 30080
		w.apply(p)
		pod, client, err := w.ask(w.pods[0], "tcp", node)
		if err != nil || pod != 2 || client != gateway.String() {
			t.Errorf("pod %d, client %s, %v; want 2 by %s", pod, client, err, gateway)
		}
		p.KeepSource = true
		w.apply(p)
		if pod, client, err = w.ask(w.pods[0], "tcp", node); err != nil || pod != 2 || client != w.ips[0].String() {
			t.Errorf("externalTrafficPolicy Local: pod %d, client %s, %v; want 2 and the client's address", pod, client, err)
		}
		if pod, _, err = w.ask(w.pods[0], "tcp", to); err != nil || pod != 2 {
			t.Errorf("its cluster IP: pod %d, %v", pod, err)
		}
	})

	w.step("affinity", func() {
		p := w.port(6, 0, 1, 2)
		p.Affinity = time.Hour
		w.apply(p)
		first, _, err := w.ask(w.pods[0], "tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if pod, _, err := w.ask(w.pods[0], "tcp", to); err != nil || pod != first {
				t.Fatalf("went to pod %d (%v), then to %d", first, err, pod)
			}
		}
		rest := []int{0, 1, 2}
		rest = append(rest[:first], rest[first+1:]...)
		p = w.port(6, rest...)
		p.Affinity = time.Hour
		w.apply(p)
		second, _, err := w.ask(w.pods[0], "tcp", to)
		if err != nil || second == first {
			t.Fatalf("after its endpoint went: pod %d, %v", second, err)
		}
	})

	w.step("no endpoints", func() {
		w.apply(w.port(6))
		begin := time.Now()
		if _, _, err := w.ask(w.pods[0], "tcp", to); err == nil || time.Since(begin) > 900*time.Millisecond {
			t.Errorf("want a refusal at once, got %v after %s", err, time.Since(begin))
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
		if pod, _, err := w.ask(w.pods[0], "tcp", to); err != nil || pod != 2 {
			t.Errorf("pod %d, %v; want 2", pod, err)
		}
	})

	w.step("removed", func() {
		w.apply()
		if pod, _, err := w.ask(w.pods[0], "tcp", to); err == nil {
			t.Errorf("pod %d still answers", pod)
		}
	})
}

func BenchmarkTenThousandServices(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root for nftables")
	}
	runtime.LockOSThread()
	if _, err := netns.New(); err != nil {
		b.Fatal(err)
	}
	all := map[string][]proxy.Port{}
	vip, ep := netip.MustParseAddr("10.96.1.0"), netip.MustParseAddr("10.244.0.1")
	for i := range 10_000 {
		p := proxy.Port{Protocol: 6, Port: 80, ClusterIPs: []netip.Addr{vip}}
		for range 3 {
			p.Internal = append(p.Internal, netip.AddrPortFrom(ep, 8080))
			ep = ep.Next()
		}
		p.External, vip = p.Internal, vip.Next()
		all[fmt.Sprint("default/svc-", i)] = []proxy.Port{p}
	}
	back, err := New(Config{Table: "skiff-bench", ServiceCIDRs: []netip.Prefix{services}, PodCIDRs: []netip.Prefix{pods}, Logger: slog.Default()})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			back.families[0].held = nil
			if err := back.Apply(all); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("one endpoint", func(b *testing.B) {
		p := all["default/svc-77"][0]
		for b.Loop() {
			q := p
			q.Internal = append([]netip.AddrPort{netip.AddrPortFrom(ep, 8080)}, p.Internal[1:]...)
			q.External = q.Internal
			ep = ep.Next()
			if err := back.Apply(map[string][]proxy.Port{"default/svc-77": {q}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
