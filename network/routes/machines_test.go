package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// threeMachines are dual-stack: a and b on one subnet, c on another.
func threeMachines(t *testing.T, mtu int) *world {
	w := newWorld(t)
	w.subnet("one", mtu, "192.0.2.0/24", "fd00:1::/64")
	w.subnet("two", mtu, "198.51.100.0/24", "fd00:2::/64")
	w.machine("a", "one", mtu, "192.0.2.11/24", "fd00:1::11/64").register([]string{"10.244.1.0/24", "fd00:244:0:1::/64"}, "192.0.2.11", "fd00:1::11")
	w.machine("b", "one", mtu, "192.0.2.12/24", "fd00:1::12/64").register([]string{"10.244.2.0/24", "fd00:244:0:2::/64"}, "192.0.2.12", "fd00:1::12")
	w.machine("c", "two", mtu, "198.51.100.13/24", "fd00:2::13/64").register([]string{"10.244.3.0/24", "fd00:244:0:3::/64"}, "198.51.100.13", "fd00:2::13")
	w.awaitVXLAN("a", "b", "c")
	return w
}

// awaitVXLAN returns once machines have their links, and so know their pods' MTU.
func (w *world) awaitVXLAN(names ...string) {
	w.t.Helper()
	for _, n := range names {
		w.eventually(func() error {
			out, err := enter(w.machines[n].ns, "ip -o link show type vxlan; ip -o route show proto 83; ip -6 -o route show proto 83").CombinedOutput()
			if err == nil && strings.Count(string(out), "10.244.") < 2 {
				err = fmt.Errorf("%s has no links and routes yet: %s", n, out)
			}
			return err
		})
	}
}

func TestThreeMachines(t *testing.T) {
	w := threeMachines(t, 1500)
	a, b, c := w.machines["a"], w.machines["b"], w.machines["c"]
	for _, m := range []*machine{a, b, c} {
		m.pod()
	}
	a.pod()
	w.allReach()
	// Routes on one link, VXLAN to the other.
	for script, want := range map[string]string{
		"ip route get 10.244.2.2":                   "via 192.0.2.12 dev eth0",
		"ip -6 route get fd00:244:0:2::2":           "via fd00:1::12 dev eth0",
		"ip route get 10.244.3.2":                   "dev skr-vx4",
		"ip -6 route get fd00:244:0:3::2":           "dev skr-vx4",
		"ip -d link show skr-vx4":                   "nolearning",
		"ip link show skr-vx4":                      "mtu 1450",
		"bridge fdb show dev skr-vx4":               "dst 198.51.100.13",
		"ip -6 -o addr show dev skr-vx4":            "fd00:244:0:1::/128",
		"sysctl -n net.ipv4.conf.skr-vx4.rp_filter": "2",
	} {
		if out := w.sh(a.ns, script); !strings.Contains(out, want) {
			t.Errorf("%s says %s, want %q", script, out, want)
		}
	}
	// The node reaches pods of others, and what is outside sees the node's address.
	for _, ip := range c.pods[0].ips {
		w.reach(a.ns, ip, netip.Addr{})
	}
	w.serve(w.wire, netip.MustParseAddr("198.51.100.1"))
	w.serve(w.wire, netip.MustParseAddr("fd00:2::1"))
	w.reach(a.pods[0].ns, netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("192.0.2.11"))
	w.reach(a.pods[0].ns, netip.MustParseAddr("fd00:2::1"), netip.MustParseAddr("fd00:1::11"))

	// What others break is put right.
	for what, script := range map[string]string{
		"a route is deleted":         "ip route del 10.244.2.0/24; ip -6 route del fd00:244:0:2::/64; ip route del 10.244.3.0/24",
		"a route is changed":         "ip route replace 10.244.2.0/24 via 192.0.2.1 proto 83",
		"the link flaps":             "ip link set eth0 down; ip link set eth0 up; ip addr replace fd00:1::11/64 dev eth0 nodad; ip route replace default via 192.0.2.1; ip -6 route replace default via fd00:1::1",
		"the VXLAN link is deleted":  "ip link del skr-vx4",
		"the VXLAN link is down":     "ip link set skr-vx4 down",
		"entries are deleted":        "bridge fdb del $(bridge fdb show dev skr-vx4 | sed -n 's/ self permanent//;/198.51.100.13/p') dev skr-vx4 self; ip neigh flush dev skr-vx4 nud permanent",
		"a link comes, another goes": "ip link add x type veth peer name y; ip link set x up; ip link del x",
	} {
		t.Log(what)
		w.sh(a.ns, script)
		for _, to := range []*machine{b, c} {
			for _, ip := range to.pods[0].ips {
				w.reach(a.pods[0].ns, ip, a.pods[0].ip(ip.Is6()))
			}
		}
	}
}

func TestOnlyItsOwn(t *testing.T) {
	w := threeMachines(t, 1500)
	a, b := w.machines["a"], w.machines["b"]
	p, q := a.pod(), b.pod()
	w.machines["c"].pod()
	w.sh(a.ns, "ip route add 10.99.0.0/24 via 192.0.2.1; ip route add 10.98.0.0/24 via 192.0.2.1 proto 83; ip route add 10.244.200.0/24 via 192.0.2.1 proto static")
	// The process ends: all goes on; what changes meanwhile is seen by the next one.
	a.halt()
	w.reach(p.ns, q.ip(false), p.ip(false))
	w.reach(p.ns, w.machines["c"].pods[0].ip(false), p.ip(false))
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// A node takes over the CIDR of a foreign route, which stays.
	foreign := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.200.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.14"}}}}
	if _, err := w.client.CoreV1().Nodes().Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.start(Auto)
	w.eventually(func() error {
		if out := w.sh(a.ns, "ip route; ip -6 route; ip -o link show type vxlan"); strings.Contains(out, "10.244.3.") || strings.Contains(out, "fd00:244:0:3:") || strings.Contains(out, "skr-vx") {
			return fmt.Errorf("what led to node c is still there: %s", out)
		}
		return nil
	})
	out := w.sh(a.ns, "ip route")
	for _, want := range []string{"10.99.0.0/24", "10.98.0.0/24", "10.244.200.0/24 via 192.0.2.1", "10.244.2.0/24 via 192.0.2.12"} {
		if !strings.Contains(out, want) {
			t.Errorf("routes are %s, want %s among them", out, want)
		}
	}
	w.sh(a.ns, "ip route del 10.244.200.0/24")
	w.eventually(func() error {
		if out := w.sh(a.ns, "ip route"); !strings.Contains(out, "10.244.200.0/24 via 192.0.2.14") {
			return fmt.Errorf("the foreign route has gone, but ours has not come: %s", out)
		}
		return nil
	})
	w.reach(p.ns, q.ip(true), p.ip(true))
	a.halt()
	a.in(func() error { return Remove("skr", clusterCIDRs) })
	a.in(func() error { return Remove("skr", clusterCIDRs) })
	out = w.sh(a.ns, "ip route; ip -6 route; ip -o link")
	if strings.Contains(out, "10.244.2.0/24 via") || strings.Contains(out, "fd00:244:0:2:") || strings.Contains(out, "vx4") {
		t.Errorf("after Remove there is %s", out)
	}
	if !strings.Contains(out, "10.98.0.0/24") || !strings.Contains(out, "10.99.0.0/24") {
		t.Errorf("Remove took others' routes: %s", out)
	}
}

// TestMTU has an odd one, which changes, and pods that came before VXLAN was needed.
func TestMTU(t *testing.T) {
	w := newWorld(t)
	w.subnet("one", 1443, "192.0.2.0/24", "fd00:1::/64")
	w.subnet("two", 1443, "198.51.100.0/24")
	a := w.machine("a", "one", 1443, "192.0.2.11/24", "fd00:1::11/64")
	a.register([]string{"10.244.1.0/24", "fd00:244:0:1::/64"}, "192.0.2.11", "fd00:1::11")
	before := a.pod()
	mtu := func(p pod, want int) {
		t.Helper()
		if out := w.sh(p.ns, "ip -o link show eth0"); !strings.Contains(out, fmt.Sprintf(" mtu %d ", want)) {
			t.Errorf("a pod has MTU %s, want %d", out, want)
		}
	}
	mtu(before, 1443)
	c := w.machine("c", "two", 1443, "198.51.100.13/24")
	c.register([]string{"10.244.3.0/24"}, "198.51.100.13")
	w.eventually(func() error {
		out, err := enter(a.ns, "ip route show 10.244.3.0/24").CombinedOutput()
		if err == nil && !strings.Contains(string(out), "skr-vx4") {
			err = fmt.Errorf("no route by VXLAN yet: %s", out)
		}
		return err
	})
	far := c.pod()
	mtu(far, 1393)
	mtu(a.pod(), 1393)
	// The old pod is told by ICMP what is too big.
	w.reach(before.ns, far.ip(false), before.ip(false))
	if err := whole(before.ns, far.ip(false), 1394); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a packet that is too big: got %v, want %v", err, unix.EMSGSIZE)
	}
	if err := whole(before.ns, far.ip(false), 1393); err != nil {
		t.Errorf("a packet of just the MTU: %v", err)
	}
	w.reach(far.ns, before.ip(false), far.ip(false))
	w.sh(a.ns, "ip link set eth0 mtu 1401")
	w.eventually(func() error {
		if out := w.sh(a.ns, "ip -o link show skr-vx4"); !strings.Contains(out, " mtu 1351 ") {
			return fmt.Errorf("VXLAN link has MTU %s, want 1351", out)
		}
		return nil
	})
	mtu(a.pod(), 1351)
	if err := w.client.CoreV1().Nodes().Delete(context.Background(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually(func() error {
		if out := w.sh(a.ns, "ip -o link"); strings.Contains(out, "skr-vx4") {
			return fmt.Errorf("VXLAN link is still there: %s", out)
		}
		return nil
	})
	mtu(a.pod(), 1401)
}

// TestIPv6Only carries VXLAN over IPv6.
func TestIPv6Only(t *testing.T) {
	w := newWorld(t)
	w.subnet("one", 1500, "fd00:1::/64")
	w.subnet("two", 1500, "fd00:2::/64")
	w.machine("a", "one", 1500, "fd00:1::11/64").register([]string{"fd00:244:0:1::/64"}, "fd00:1::11")
	w.machine("b", "one", 1500, "fd00:1::12/64").register([]string{"fd00:244:0:2::/64"}, "fd00:1::12")
	w.machine("c", "two", 1500, "fd00:2::13/64").register([]string{"fd00:244:0:3::/64"}, "fd00:2::13")
	for _, n := range w.names {
		w.machines[n].pod()
	}
	w.allReach()
	out := w.sh(w.machines["a"].ns, "ip -d link show skr-vx6")
	if !strings.Contains(out, "mtu 1430") || !strings.Contains(out, "local fd00:1::11") {
		t.Errorf("VXLAN link is %s, want MTU 1430", out)
	}
}

// TestOneSidedLink: the one sees a route where the other sees none.
func TestOneSidedLink(t *testing.T) {
	w := newWorld(t)
	w.subnet("one", 1500, "192.0.2.0/24")
	w.subnet("two", 1500, "198.51.100.0/24")
	a := w.machine("a", "one", 1500, "192.0.2.11/24")
	b := w.machine("b", "one", 1500, "192.0.2.12/32")
	w.sh(b.ns, "ip route add 192.0.2.1 dev eth0; ip route add default via 192.0.2.1; sysctl -qw net.ipv4.conf.all.rp_filter=1")
	w.sh(a.ns, "sysctl -qw net.ipv4.conf.all.rp_filter=1")
	a.register([]string{"10.244.1.0/24"}, "192.0.2.11")
	b.register([]string{"10.244.2.0/24"}, "192.0.2.12")
	a.pod()
	b.pod()
	w.allReach()
}
