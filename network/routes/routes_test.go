package routes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/host/netlink"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// testHost has eth0 (2) with 192.0.2.11/24 and fd00:1::11/64, a point-to-point link wg0 (3) to
// 203.0.113.0/24, a link that is down (4), and default routes.
func testHost() host {
	return newHost([]netlink.Link{
		{Index: 1, Name: "lo", MTU: 65536, Up: true, Addresses: prefixes("127.0.0.1/8")},
		{Index: 2, Name: "eth0", MTU: 1500, Up: true, Neighbours: true, Addresses: prefixes("192.0.2.11/24", "fd00:1::11/64")},
		{Index: 3, Name: "wg0", MTU: 1420, Up: true, Addresses: prefixes("203.0.113.1/24")},
		{Index: 4, Name: "eth1", MTU: 1500, Neighbours: true},
		{Index: 5, Name: "skr", MTU: 1500, Up: true, Neighbours: true},
	}, []netlink.Route{
		{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("192.0.2.1"), Link: 2},
		{Dst: netip.MustParsePrefix("::/0"), Gateway: netip.MustParseAddr("fd00:1::1"), Link: 2},
		{Dst: netip.MustParsePrefix("192.0.2.0/24"), Link: 2},
		{Dst: netip.MustParsePrefix("192.0.2.64/26"), Gateway: netip.MustParseAddr("192.0.2.2"), Link: 2},
		{Dst: netip.MustParsePrefix("198.51.100.9/32"), Link: 2},
		{Dst: netip.MustParsePrefix("198.51.100.0/24"), Link: 4},
		{Dst: netip.MustParsePrefix("203.0.113.0/24"), Link: 3},
		{Dst: netip.MustParsePrefix("fd00:1::/64"), Link: 2},
		{Dst: netip.MustParsePrefix("10.244.1.0/24"), Link: 5},
	}, func(r netlink.Route) bool { return r.Link == 5 })
}

func testSelf() self {
	return self{
		peer:         peer{name: "self", ips: addrs("192.0.2.11", "fd00:1::11"), podCIDRs: prefixes("10.244.1.0/24", "fd00:244:0:1::/64")},
		clusterCIDRs: clusterCIDRs, tunnel: tunnel{VNI: DefaultVNI, Port: DefaultPort, MAC: macOf("c", "self")},
	}
}

func TestDecide(t *testing.T) {
	theirs := mac{2, 1, 2, 3, 4, 5}
	says := func(onLink ...string) *tunnel {
		return &tunnel{VNI: DefaultVNI, Port: DefaultPort, MAC: theirs, OnLink: prefixes(onLink...)}
	}
	node := func(ips []netip.Addr, t *tunnel, cidrs ...string) peer {
		return peer{name: "peer", ips: ips, podCIDRs: prefixes(cidrs...), tunnel: t}
	}
	direct := func(dst, via string) map[string]route {
		return map[string]route{dst: {gateway: netip.MustParseAddr(via), link: 2}}
	}
	vxlan4 := map[string]route{"10.244.2.0/24": {gateway: netip.MustParseAddr("10.244.2.0"), over: 4, onLink: true, source: netip.MustParseAddr("10.244.1.0")}}
	vxlan6 := func(u underlay) map[string]route {
		return map[string]route{"fd00:244:0:2::/64": {gateway: netip.MustParseAddr("fe80::1:2ff:fe03:405"), over: u, source: netip.MustParseAddr("fd00:244:0:1::")}}
	}
	for name, test := range map[string]struct {
		change func(*self)
		peer   peer
		want   map[string]route
		remote string
		errs   []string
	}{
		"on the link":                   {peer: node(addrs("192.0.2.12"), says("192.0.2.0/24"), "10.244.2.0/24"), want: direct("10.244.2.0/24", "192.0.2.12")},
		"on the link, says nothing":     {peer: node(addrs("192.0.2.12"), nil, "10.244.2.0/24"), want: direct("10.244.2.0/24", "192.0.2.12")},
		"on the link by one address":    {peer: node(addrs("198.51.100.9"), says("0.0.0.0/0"), "10.244.2.0/24"), want: direct("10.244.2.0/24", "198.51.100.9")},
		"IPv6 on the link":              {peer: node(addrs("fd00:1::12"), says("fd00:1::/64"), "fd00:244:0:2::/64"), want: direct("fd00:244:0:2::/64", "fd00:1::12")},
		"it does not see us":            {peer: node(addrs("192.0.2.12"), says("192.0.2.12/32"), "10.244.2.0/24"), want: vxlan4, remote: "192.0.2.12"},
		"behind a router":               {peer: node(addrs("198.18.0.1"), says(), "10.244.2.0/24"), want: vxlan4, remote: "198.18.0.1"},
		"behind a router of the link":   {peer: node(addrs("192.0.2.65"), says("192.0.2.0/24"), "10.244.2.0/24"), want: vxlan4, remote: "192.0.2.65"},
		"behind a point-to-point link":  {peer: node(addrs("203.0.113.2"), says("203.0.113.0/24"), "10.244.2.0/24"), want: vxlan4, remote: "203.0.113.2"},
		"its link is down":              {peer: node(addrs("198.51.100.8"), says("0.0.0.0/0"), "10.244.2.0/24"), want: vxlan4, remote: "198.51.100.8"},
		"VXLAN over IPv6":               {peer: node(addrs("2001:db8::7"), says(), "fd00:244:0:2::/64"), want: vxlan6(6), remote: "2001:db8::7"},
		"IPv6 pods, IPv4 node":          {peer: node(addrs("192.0.2.12"), says("192.0.2.0/24"), "fd00:244:0:2::/64"), want: vxlan6(4), remote: "192.0.2.12"},
		"both behind a router":          {peer: node(addrs("2001:db8::7", "198.18.0.1"), says(), "10.244.2.0/24", "fd00:244:0:2::/64"), want: merged(vxlan4, vxlan6(4)), remote: "198.18.0.1"},
		"behind a router, says nothing": {peer: node(addrs("198.18.0.1"), nil, "10.244.2.0/24"), errs: []string{"annotation " + Annotation}},
		"another network number":        {peer: node(addrs("198.18.0.1"), &tunnel{VNI: 1, Port: DefaultPort, MAC: theirs}, "10.244.2.0/24"), errs: []string{"VXLAN network 1 at UDP port 8472"}},
		"another port":                  {peer: node(addrs("198.18.0.1"), &tunnel{VNI: DefaultVNI, Port: 4789, MAC: theirs}, "10.244.2.0/24"), errs: []string{"they must agree"}},
		"our own MAC address":           {peer: node(addrs("198.18.0.1"), &tunnel{VNI: DefaultVNI, Port: DefaultPort, MAC: macOf("c", "self")}, "10.244.2.0/24"), errs: []string{"of this one"}},
		"no address":                    {peer: node(nil, says(), "10.244.2.0/24"), errs: []string{"no InternalIP"}},
		"outside of the cluster":        {peer: node(addrs("192.0.2.12"), nil, "10.245.2.0/24", "0.0.0.0/0", "10.244.0.0/15"), errs: []string{"10.245.2.0/24", "0.0.0.0/0", "10.244.0.0/15"}},
		"our own CIDR":                  {peer: node(addrs("192.0.2.12"), nil, "10.244.1.0/24", "10.244.1.128/25", "10.244.0.0/16"), errs: []string{"overlaps", "overlaps", "overlaps"}},
		"nothing assigned yet":          {peer: node(addrs("192.0.2.12"), nil)},
		"always VXLAN":                  {change: func(s *self) { s.mode = Always }, peer: node(addrs("192.0.2.12"), says("192.0.2.0/24"), "10.244.2.0/24"), want: vxlan4, remote: "192.0.2.12"},
		"never, on the link":            {change: func(s *self) { s.mode = Never }, peer: node(addrs("192.0.2.12"), nil, "10.244.2.0/24"), want: direct("10.244.2.0/24", "192.0.2.12")},
		"never, behind a router":        {change: func(s *self) { s.mode = Never }, peer: node(addrs("198.18.0.1"), says(), "10.244.2.0/24"), errs: []string{"VXLAN is turned off"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := testSelf()
			if test.change != nil {
				test.change(&s)
			}
			got := decide(testHost(), s, test.peer, func(netip.Prefix) bool { return true })
			routes := map[string]route{}
			for dst, r := range got.table.routes {
				routes[dst.String()] = r
			}
			if want := merged(test.want); !reflect.DeepEqual(routes, want) {
				t.Errorf("routes are %+v, want %+v", routes, want)
			}
			if len(got.errs) != len(test.errs) {
				t.Errorf("errors are %v, want %v", got.errs, test.errs)
			}
			for i := range min(len(got.errs), len(test.errs)) {
				if !strings.Contains(got.errs[i].Error(), test.errs[i]) {
					t.Errorf("error is %v, want %s", got.errs[i], test.errs[i])
				}
			}
			if test.remote == "" {
				if len(got.table.remotes)+len(got.table.neighbours) > 0 || got.over != 0 {
					t.Errorf("there are VXLAN entries: %+v", got)
				}
				return
			}
			if ip := got.table.remotes[remote{got.over, theirs}]; ip.String() != test.remote {
				t.Errorf("frames go to %s, want %s", ip, test.remote)
			}
			for _, r := range routes {
				if m := got.table.neighbours[neighbour{r.over, r.gateway}]; m != theirs {
					t.Errorf("gateway %s has MAC address %s, want %s", r.gateway, m, theirs)
				}
			}
		})
	}
}

func merged[K comparable, V any](ms ...map[K]V) map[K]V {
	out := map[K]V{}
	for _, m := range ms {
		maps.Copy(out, m)
	}
	return out
}

// TestAgreement has each of two nodes decide about the other, wherever both are: either both use a
// route or both use VXLAN.
func TestAgreement(t *testing.T) {
	view := func(r *rand.Rand, ip netip.Addr) host {
		routes := []netlink.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("192.0.2.1"), Link: 2}}
		for _, c := range prefixes("192.0.2.0/24", "192.0.2.0/25", "192.0.2.11/32", "192.0.2.12/32") {
			if r.IntN(2) == 0 {
				routes = append(routes, netlink.Route{Dst: c, Link: 2})
			}
		}
		return newHost([]netlink.Link{{Index: 2, Name: "eth0", MTU: 1500, Up: true, Neighbours: true, Addresses: []netip.Prefix{netip.PrefixFrom(ip, 32)}}}, routes, func(netlink.Route) bool { return false })
	}
	r := rand.New(rand.NewPCG(1, 2))
	both := map[bool]int{}
	for range 1000 {
		var selves [2]self
		var hosts [2]host
		for i := range selves {
			ip := netip.MustParseAddr(fmt.Sprintf("192.0.2.1%d", i+1))
			hosts[i] = view(r, ip)
			selves[i] = testSelf()
			selves[i].peer = peer{name: fmt.Sprint(i), ips: []netip.Addr{ip}, podCIDRs: prefixes(fmt.Sprintf("10.244.%d.0/24", i+1))}
			if r.IntN(4) == 0 {
				selves[i].mode = Always
			}
			tn := tunnel{VNI: DefaultVNI, Port: DefaultPort, MAC: macOf("c", fmt.Sprint(i)), OnLink: []netip.Prefix{}}
			if selves[i].mode == Auto {
				tn.OnLink = hosts[i].prefixes(clusterCIDRs)
			}
			selves[i].peer.tunnel, selves[i].tunnel = &tn, tn
		}
		var over [2]underlay
		for i := range selves {
			out := decide(hosts[i], selves[i], selves[1-i].peer, func(netip.Prefix) bool { return true })
			if len(out.table.routes) != 1 {
				t.Fatalf("no route: %v", out.errs)
			}
			over[i] = out.over
		}
		if over[0] != over[1] {
			t.Fatalf("one uses %d, the other %d: %+v, %+v", over[0], over[1], hosts[0].paths, hosts[1].paths)
		}
		both[over[0] != 0]++
	}
	if both[true] == 0 || both[false] == 0 {
		t.Errorf("VXLAN or not: %v, want some of both", both)
	}
}

// TestClaims: whatever order nodes come, change and go in, the kernel ends with what a fresh look at
// the last state gives.
func TestClaims(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		n := newNodes(testSelf())
		n.host = testHost()
		kernel := newTable()
		for range 40 {
			name := fmt.Sprint("n", r.IntN(5))
			var p *peer
			if r.IntN(4) > 0 {
				p = &peer{name: name, created: int64(r.IntN(3)), ips: addrs(fmt.Sprintf("192.0.2.%d", 20+r.IntN(5)))}
				if r.IntN(3) == 0 {
					p.ips = addrs(fmt.Sprintf("198.18.0.%d", r.IntN(5)))
					p.tunnel = &tunnel{VNI: DefaultVNI, Port: DefaultPort, MAC: macOf("c", name)}
				}
				for range 1 + r.IntN(2) {
					if c := prefixes(fmt.Sprintf("10.244.%d.0/24", 2+r.IntN(4)))[0]; !slices.Contains(p.podCIDRs, c) {
						p.podCIDRs = append(p.podCIDRs, c)
					}
				}
			}
			was, want, _ := n.decide(n.set(name, p))
			for _, c := range diff(was, want) {
				kernel.done(c)
			}
		}
		fresh := newNodes(testSelf())
		fresh.host = n.host
		for name, p := range n.peers {
			fresh.set(name, &p)
		}
		_, want, _ := fresh.decide(fresh.all())
		if !kernel.equal(want) {
			t.Fatalf("kernel has\n%+v\nwant\n%+v", kernel, want)
		}
		if !maps.Equal(positive(n.over), positive(fresh.over)) {
			t.Fatalf("VXLAN links are counted %v, want %v", n.over, fresh.over)
		}
	}
}

func positive(m map[underlay]int) map[underlay]int {
	out := map[underlay]int{}
	for k, v := range m {
		if v != 0 {
			out[k] = v
		}
	}
	return out
}

func TestReadPeer(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{Annotation: `{"vni":7,"port":4789,"mac":"02:00:00:00:00:01","onLink":["192.0.2.0/24"],"later":1}`}}}
	n.Spec.PodCIDR = "10.244.7.5/24"
	for _, a := range []string{"not an address", "::ffff:192.0.2.7", "192.0.2.8", "fe80::1%eth0"} {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.7"})
	p, errs := readPeer(n)
	want := peer{name: "n", created: n.CreationTimestamp.Unix(), ips: addrs("192.0.2.7", "fe80::1"), podCIDRs: prefixes("10.244.7.0/24"),
		tunnel: &tunnel{VNI: 7, Port: 4789, MAC: mac{2, 0, 0, 0, 0, 1}, OnLink: prefixes("192.0.2.0/24")}}
	if !p.equal(want) || len(errs) != 1 {
		t.Errorf("got %+v, %v, want %+v and one error", p, errs, want)
	}
	kept, err := Transform(n.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := readPeer(kept.(*corev1.Node)); !again.equal(p) {
		t.Errorf("of the kept Node %+v, want %+v", again, p)
	}
	for _, bad := range []string{"", "{}", `{"vni":16777216,"port":1,"mac":"02:00:00:00:00:01"}`, `{"vni":1,"port":1,"mac":"01:00:00:00:00:01"}`,
		`{"vni":1,"port":1,"mac":"02:00:00:00:00:01:02:03"}`, `{"vni":1,"port":70000,"mac":"02:00:00:00:00:01"}`, `{"vni":1,"port":1,"mac":"02:00:00:00:00:01","onLink":[""]}`} {
		if tn, err := decodeTunnel(bad); err == nil {
			t.Errorf("%s was read as %+v", bad, tn)
		}
	}
}

func FuzzAnnotation(f *testing.F) {
	f.Add(`{"vni":7,"port":4789,"mac":"02:00:00:00:00:01","onLink":["192.0.2.0/24"]}`)
	f.Add(`{"vni":7,"port":4789,"mac":"02-00-00-00-00-01","onLink":["fe80::%a/10"]}`)
	f.Fuzz(func(t *testing.T, text string) {
		tn, err := decodeTunnel(text)
		if err != nil {
			return
		}
		again, err := tn.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeTunnel(again)
		if err != nil || !back.equal(*tn) {
			t.Errorf("%s came back as %+v, %v", again, back, err)
		}
		out := decide(testHost(), testSelf(), peer{name: "p", ips: addrs("192.0.2.12", "2001:db8::7"), podCIDRs: prefixes("10.244.2.0/24"), tunnel: tn}, func(netip.Prefix) bool { return true })
		if len(out.table.routes)+len(out.errs) != 1 {
			t.Errorf("%s led to %+v", text, out)
		}
	})
}

func TestPodMTU(t *testing.T) {
	for _, test := range []struct {
		link int
		over map[underlay]bool
		want int
	}{
		{1500, nil, 1500}, {1500, map[underlay]bool{4: true}, 1450}, {1500, map[underlay]bool{4: true, 6: true}, 1430}, {1500, map[underlay]bool{4: false, 6: true}, 1430}, {0, map[underlay]bool{4: true}, 0},
	} {
		if got := podMTU(test.link, test.over); got != test.want {
			t.Errorf("link %d over %v: got %d, want %d", test.link, test.over, got, test.want)
		}
	}
	h := testHost()
	if got := h.mtu(addrs("192.0.2.11", "203.0.113.1")); got != 1420 {
		t.Errorf("two links: got %d, want the smaller, 1420", got)
	}
	h.links[1] = netlink.Link{Index: 1, Name: "lo", MTU: 65536, Up: true, Addresses: prefixes("192.0.2.99/32")}
	if got := h.mtu(addrs("192.0.2.99")); got != 1500 {
		t.Errorf("an address on loopback: got %d, want that of the link outwards, 1500", got)
	}
}

func thousand(vxlan bool) *nodes {
	n := newNodes(testSelf())
	n.self.clusterCIDRs = prefixes("10.0.0.0/8")
	n.self.peer.podCIDRs = prefixes("10.255.0.0/24")
	n.host = testHost()
	for i := range 1000 {
		p := numbered(i, vxlan)
		n.decide(n.set(p.name, &p))
	}
	return n
}

func numbered(i int, vxlan bool) peer {
	p := peer{name: fmt.Sprint("node-", i), ips: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(12 + i%40)})}, podCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}}
	if vxlan {
		p.ips = []netip.Addr{netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})}
	}
	p.tunnel = &tunnel{VNI: DefaultVNI, Port: DefaultPort, MAC: macOf("c", p.name), OnLink: prefixes("0.0.0.0/0")}
	return p
}

// BenchmarkEvent is one node's change among a thousand: it must cost one node's work.
func BenchmarkEvent(b *testing.B) {
	for _, vxlan := range []bool{false, true} {
		b.Run(fmt.Sprintf("vxlan=%t", vxlan), func(b *testing.B) {
			n := thousand(vxlan)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				p := numbered(7, vxlan)
				p.ips = addrs(fmt.Sprintf("192.0.2.%d", 12+i%40))
				if vxlan {
					p.ips = addrs(fmt.Sprintf("198.18.9.%d", i%250))
				}
				i++
				was, want, _ := n.decide(n.set(p.name, &p))
				if c := diff(was, want); len(c) != 1 {
					b.Fatalf("%d changes, want 1", len(c))
				}
			}
		})
	}
}
