package bridge

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
)

func TestPoolNeverGivesAnAddressTwice(t *testing.T) {
	dir := t.TempDir()
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/28"), netip.MustParsePrefix("fd00::/124")}
	p, err := openPool(dir, cidrs)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]string{}
	for i := range 13 { // 16 less network, gateway, broadcast
		id := fmt.Sprint("pod", i)
		addrs, err := p.take(id)
		if err != nil {
			t.Fatal(err)
		}
		if len(addrs) != 2 {
			t.Fatalf("%s got %v, want one address a family", id, addrs)
		}
		for _, a := range addrs {
			if other, dup := seen[a]; dup {
				t.Fatalf("%s and %s both have %s", id, other, a)
			}
			if a == cidrs[0].Addr().Next() || a == netip.MustParseAddr("10.1.0.15") {
				t.Fatalf("%s got the reserved address %s", id, a)
			}
			seen[a] = id
		}
	}
	if _, err := p.take("one too many"); err == nil {
		t.Fatal("a full pool gave an address")
	}
	// A new process finds the book as it was left.
	p, err = openPool(dir, cidrs)
	if err != nil {
		t.Fatal(err)
	}
	again, err := p.take("pod3")
	if err != nil || seen[again[0]] != "pod3" {
		t.Fatalf("pod3 got %v, %v after a restart; want its old address", again, err)
	}
	if err := p.release("pod3"); err != nil {
		t.Fatal(err)
	}
	fresh, err := p.take("new")
	if err != nil || fresh[0] != again[0] {
		t.Fatalf("got %v, %v; want the freed %v", fresh, err, again)
	}
}

func TestAttach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make links and namespaces; run by make test")
	}
	runtime.LockOSThread() // the test's own network namespace ends with this thread
	host, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	pod, err := netns.NewNamed("skiff-bridge-test")
	if err != nil {
		t.Fatal(err)
	}
	defer netns.DeleteNamed("skiff-bridge-test")
	defer pod.Close()
	if err := netns.Set(host); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Name: "skb", StateDir: t.TempDir(), ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.251.0.0/16")}, Logger: slog.Default()}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Ready(t.Context()); err == nil {
		t.Fatal("ready without a pod CIDR")
	}
	if err := b.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.251.7.0/24")}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // twice: Attach is idempotent
		addrs, err := b.Attach(t.Context(), "sandbox-1", "/run/netns/skiff-bridge-test")
		if err != nil {
			t.Fatal(err)
		}
		if want := netip.MustParseAddr("10.251.7.2"); len(addrs) != 1 || addrs[0] != want {
			t.Fatalf("got %v, want %s", addrs, want)
		}
	}
	if err := b.Detach(t.Context(), "sandbox-1"); err != nil {
		t.Fatal(err)
	}
	if err := b.Detach(t.Context(), "sandbox-1"); err != nil {
		t.Fatalf("second detach: %v", err)
	}
	if err := Remove(cfg); err != nil {
		t.Fatal(err)
	}
	if err := Remove(cfg); err != nil {
		t.Fatalf("second remove: %v", err)
	}
}
