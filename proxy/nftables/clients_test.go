package nftables

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/host/nft"
	"github.com/skiff-k8s/skiff/proxy"
	"github.com/skiff-k8s/skiff/proxy/nodeports"
)

// TestClientsStay through a new process, whose table replaces the old one; and leave in time.
func TestClientsStay(t *testing.T) {
	w := newWorld(t)
	defer func() {
		if err := Remove("skiff-test"); err != nil {
			t.Error(err)
		}
	}()
	p := w.port(6, 0, 1, 2)
	p.Affinity = time.Hour
	to := netip.AddrPortFrom(vip, 80)
	w.apply(p)
	first, _, err := w.ask(0, "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	again, err := New(Config{Table: "skiff-test", ServiceCIDRs: []netip.Prefix{services}, PodCIDRs: []netip.Prefix{pods}, Logger: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	w.back = again
	w.apply(p)
	for range 20 {
		if pod, _, err := w.ask(0, "tcp", to); err != nil || pod != first {
			t.Fatalf("went to pod %d, after a restart to %d (%v)", first, pod, err)
		}
	}
	els, err := again.families[0].table.Elements(setAffine)
	if err != nil || len(els) != 1 || els[0].Timeout != time.Hour || els[0].Expires > time.Hour {
		t.Errorf("clients %+v, %v; want one, for an hour", els, err)
	}

	// One that came with a short timeout is gone once it is over.
	p.Affinity = time.Second
	w.apply(p)
	if _, _, err := w.ask(1, "tcp", to); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		els, err := again.families[0].table.Elements(setAffine)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(els, func(e nft.Element) bool { return e.Timeout == time.Second }) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %+v", els)
		}
	}
}

// TestNodePortsWhereChosen are open at the addresses that are chosen, and refused or absent nowhere else.
func TestNodePortsWhereChosen(t *testing.T) {
	w := newWorld(t)
	gateway := pods.Addr().Next()
	node := netip.AddrPortFrom(gateway, 30080)
	for _, c := range []struct {
		where   []string
		primary []netip.Addr
		open    bool
	}{
		{nil, nil, true},
		{[]string{"all"}, nil, true},
		{[]string{"primary"}, nil, false},
		{[]string{"primary"}, []netip.Addr{gateway}, true},
		{[]string{"primary"}, []netip.Addr{netip.MustParseAddr("192.0.2.1")}, false},
		{[]string{"192.0.2.0/24"}, []netip.Addr{gateway}, false},
		{[]string{"192.0.2.0/24", "10.251.0.0/16"}, nil, true},
		{[]string{"fd00::/8"}, nil, true}, // nothing is said of this family
	} {
		where, err := nodeports.Parse(c.where)
		if err != nil {
			t.Fatal(err)
		}
		if w.back, err = New(Config{Table: "skiff-test", ServiceCIDRs: []netip.Prefix{services}, PodCIDRs: []netip.Prefix{pods}, NodePorts: where, Logger: slog.Default()}); err != nil {
			t.Fatal(err)
		}
		w.back.SetPrimary(c.primary)
		p := w.port(6, 2)
		p.NodePort = 30080
		w.apply(p)
		pod, _, err := w.ask(0, "tcp", node)
		if open := err == nil && pod == 2; open != c.open {
			t.Errorf("%v, primary %v: pod %d, %v; want open %t", c.where, c.primary, pod, err, c.open)
		}
		if err := Remove("skiff-test"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFrontsOfTwo Services are the one's that comes first by name, and the other's when it goes.
func TestFrontsOfTwo(t *testing.T) {
	w := newWorld(t)
	defer func() {
		if err := Remove("skiff-test"); err != nil {
			t.Error(err)
		}
	}()
	ext := netip.MustParseAddr("192.0.2.9")
	port := func(name string, ip string, pod int) map[string][]proxy.Port {
		p := w.port(6, pod)
		p.Name, p.ClusterIP, p.ExternalIPs = name+":http", netip.MustParseAddr(ip), []netip.Addr{ext}
		return map[string][]proxy.Port{name: {p}}
	}
	apply := func(c map[string][]proxy.Port) {
		t.Helper()
		if err := w.back.Apply(c); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, pod int) {
		t.Helper()
		if got, _, err := w.ask(0, "tcp", netip.AddrPortFrom(ext, 80)); err != nil || got != pod {
			t.Errorf("%s: pod %d, %v; want %d", when, got, err, pod)
		}
	}
	apply(port("default/b", "10.96.0.11", 2))
	want("one", 2)
	apply(port("default/a", "10.96.0.10", 1))
	want("a second that comes first by name", 1)
	apply(port("default/b", "10.96.0.11", 1))
	apply(port("default/b", "10.96.0.11", 2))
	want("the other changed", 1)
	apply(map[string][]proxy.Port{"default/a": nil})
	want("the first is gone", 2)
	apply(map[string][]proxy.Port{"default/b": nil})
	w.Silent(w.Pods[0], "tcp", netip.AddrPortFrom(ext, 80).String())
}

func TestParseWhere(t *testing.T) {
	for _, bad := range []string{"10.0.0.1", "eth0", ""} {
		if _, err := nodeports.Parse([]string{bad}); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}
