package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

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

// TestIPv6 has packets in both families from the first moment on: nothing waits for duplicate address
// detection, and the host takes router advertisements as before.
func TestIPv6(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make links and namespaces; run by make test")
	}
	runtime.LockOSThread() // the test's own network namespace ends with this thread
	host, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	sh := func(script string) string {
		t.Helper()
		out, err := exec.Command("sh", "-ec", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	sh("ip link set lo up; ip link add up0 type veth peer name far0; ip link set up0 up; ip link set far0 up; sysctl -qw net.ipv6.conf.far0.accept_ra=0")
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.251.7.0/24"), netip.MustParsePrefix("fd00:251:0:7::/64")}
	cluster := []netip.Prefix{netip.MustParsePrefix("10.251.0.0/16"), netip.MustParsePrefix("fd00:251::/48"), netip.MustParsePrefix("fd00:252::/48")}
	cfg := Config{Name: "skb6", StateDir: t.TempDir(), ClusterCIDRs: cluster, Logger: slog.Default()}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.SetPodCIDRs(cidrs); err != nil {
		t.Fatal(err)
	}
	// The bridge has no port yet, and the node serves at its addresses already.
	for _, gw := range b.Gateways() {
		c, err := net.ListenPacket("udp", netip.AddrPortFrom(gw, 5353).String())
		if err != nil {
			t.Fatalf("listen at the gateway: %v", err)
		}
		defer c.Close()
		go echo(c)
	}
	var pods []netns.NsHandle
	for i := range 2 {
		name := fmt.Sprintf("skiff-bridge6-%d-%d", os.Getpid(), i)
		ns, err := netns.NewNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		defer netns.DeleteNamed(name)
		defer ns.Close()
		addrs, err := b.attachFrom(t.Context(), host, name)
		if err != nil {
			t.Fatal(err)
		}
		if len(addrs) != 2 || !addrs[0].Is4() || !addrs[1].Is6() {
			t.Fatalf("got %v, want one address of each family", addrs)
		}
		if err := netns.Set(ns); err != nil {
			t.Fatal(err)
		}
		sh("ip link set lo up")
		for _, a := range addrs {
			c, err := net.ListenPacket("udp", netip.AddrPortFrom(a, 5353).String())
			if err != nil {
				t.Fatalf("listen in the pod at once: %v", err)
			}
			defer c.Close()
			go echo(c)
		}
		// One packet each, no second try: to the node, to the first pod, and back from the node.
		for _, to := range append(b.Gateways(), netip.MustParseAddr("10.251.7.2"), netip.MustParseAddr("fd00:251:0:7::2")) {
			if err := askOnce(to); err != nil {
				t.Errorf("pod %d to %s: %v", i, to, err)
			}
		}
		if err := netns.Set(host); err != nil {
			t.Fatal(err)
		}
		for _, to := range addrs {
			if err := askOnce(to); err != nil {
				t.Errorf("node to pod %d at %s: %v", i, to, err)
			}
		}
		pods = append(pods, ns)
	}
	for key, want := range map[string]string{
		"net.ipv6.conf.all.forwarding": "1", "net.ipv6.conf.up0.accept_ra": "2", "net.ipv6.conf.far0.accept_ra": "0", "net.ipv6.conf.skb6.accept_ra": "0",
	} {
		if got := sh("sysctl -n " + key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	rules := sh("nft list table ip6 skb6")
	if !strings.Contains(rules, "fd00:251::/48") || !strings.Contains(rules, "fd00:252::/48") || strings.Count(rules, "masquerade") != 1 {
		t.Errorf("rules are %s, want one that spares all of the cluster's CIDRs", rules)
	}
	// Others connect new pods: the addresses stay, once no pod is left.
	if err := b.SetAddressOnly(true); err != nil {
		t.Fatal(err)
	}
	if out := sh("ip -o addr show dev skb6"); !strings.Contains(out, "10.251.7.1/24") {
		t.Errorf("with pods the bridge has %s", out)
	}
	for i := range pods {
		if err := b.Detach(t.Context(), fmt.Sprintf("skiff-bridge6-%d-%d", os.Getpid(), i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.SetAddressOnly(true); err != nil {
		t.Fatal(err)
	}
	out := sh("ip -o addr show dev skb6; nft list tables; ip route; ip -6 route show table main")
	if !strings.Contains(out, "10.251.7.1/32") || !strings.Contains(out, "fd00:251:0:7::1/128") || strings.Contains(out, "table ip skb6") || strings.Contains(out, "10.251.7.0/24") || strings.Contains(out, "fd00:251:0:7::/64") {
		t.Errorf("with its addresses only there is %s", out)
	}
	if err := b.SetAddressOnly(false); err != nil {
		t.Fatal(err)
	}
	if out := sh("ip -o addr show dev skb6; nft list tables"); !strings.Contains(out, "10.251.7.1/24") || !strings.Contains(out, "table ip skb6") {
		t.Errorf("back again there is %s", out)
	}
}

// attachFrom comes back to the host's namespace first: making one enters it.
func (b *Bridge) attachFrom(ctx context.Context, host netns.NsHandle, name string) ([]netip.Addr, error) {
	if err := netns.Set(host); err != nil {
		return nil, err
	}
	return b.Attach(ctx, name, "/run/netns/"+name)
}

func echo(c net.PacketConn) {
	buf := make([]byte, 64)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(buf[:n], from)
	}
}

func askOnce(to netip.Addr) error {
	c, err := net.Dial("udp", netip.AddrPortFrom(to, 5353).String())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 8))
	return err
}
