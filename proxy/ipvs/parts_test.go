package ipvs

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	host "github.com/skiff-k8s/skiff/host/ipvs"
	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/proxy"
)

var (
	vip    = netip.MustParseAddr("10.96.0.7")
	ext    = netip.MustParseAddr("203.0.113.7")
	lb     = netip.MustParseAddr("203.0.113.8")
	node   = netip.MustParseAddr("192.0.2.1")
	here   = netip.MustParseAddrPort("10.244.1.5:8080")
	there  = netip.MustParseAddrPort("10.244.2.6:8080")
	source = netip.MustParsePrefix("192.0.2.0/24")
)

func testScene() scene {
	return scene{scheduler: "rr", node: []netip.Addr{node}, local: []netip.Addr{node, ext}, open: []netip.Addr{node}, masqueradeBy: 1 << masqueradeBit,
		pods: netip.MustParsePrefix("10.244.0.0/16")}
}

func has(p part, set string, e netlink.IPSetEntry) bool {
	return slices.Contains(p.elements, element{set, e})
}

func serverAt(p part, a netip.Addr, port uint16) *server {
	for i := range p.servers {
		if p.servers[i].Service == (host.Service{At: netip.AddrPortFrom(a, port), Protocol: 6}) {
			return &p.servers[i]
		}
	}
	return nil
}

func TestPart(t *testing.T) {
	s := testScene()
	p := proxy.Port{Name: "default/web:http", Protocol: 6, Port: 80, NodePort: 30080, ClusterIP: vip, ExternalIPs: []netip.Addr{ext}, LoadBalancerIPs: []netip.Addr{lb},
		Sources: []netip.Prefix{source}, Affinity: time.Hour, Endpoints: true, Cluster: []netip.AddrPort{here, there}, Here: []netip.Addr{here.Addr()}}
	got := s.part(&p)
	for _, c := range []struct {
		a    netip.Addr
		port uint16
		bind bool
	}{{vip, 80, true}, {lb, 80, true}, {ext, 80, false}, {node, 30080, false}} { // ext is the host's own
		v := serverAt(got, c.a, c.port)
		if v == nil || v.bind != c.bind || len(v.to) != 2 || v.Persistent != time.Hour || v.Scheduler != "rr" {
			t.Errorf("%s:%d: %+v", c.a, c.port, v)
		}
	}
	at := netlink.IPSetEntry{Addr: lb, Port: 80, Protocol: 6}
	self, from := at, at
	self.Second, from.Net = lb, source
	for set, e := range map[string]netlink.IPSetEntry{
		clusterIPs: {Addr: vip, Port: 80, Protocol: 6}, externalIPs: {Addr: ext, Port: 80, Protocol: 6}, balancers: at, guarded: at, sourceNets: from,
		sourceAddrs: self, nodeTCP: {Port: 30080}, bound: {Addr: vip}, loopBack: {Addr: here.Addr(), Port: 8080, Protocol: 6, Second: here.Addr()},
	} {
		if !has(got, set, e) {
			t.Errorf("%s lacks %v", set, e)
		}
	}
	if has(got, absentInside, netlink.IPSetEntry{Addr: vip, Port: 80, Protocol: 6}) || has(got, balancerLocal, at) {
		t.Errorf("%v", got.elements)
	}

	// A Local policy that has nobody here: its own traffic goes on, others' is dropped.
	p.ExternalLocal, p.InternalLocal = true, true
	got = s.part(&p)
	if v := serverAt(got, lb, 80); len(v.to) != 2 || !has(got, absentOutside, at) || !has(got, balancerLocal, at) || !has(got, nodeTCPLocal, netlink.IPSetEntry{Port: 30080}) {
		t.Errorf("%+v %v", v, got.elements)
	}
	if v := serverAt(got, vip, 80); len(v.to) != 0 || !has(got, absentInside, netlink.IPSetEntry{Addr: vip, Port: 80, Protocol: 6}) {
		t.Errorf("%+v", v)
	}
	p.Local = []netip.AddrPort{here}
	if v := serverAt(s.part(&p), lb, 80); len(v.to) != 1 || v.to[0] != here {
		t.Errorf("%+v", v)
	}
	// Without endpoints anywhere virtual services lead nowhere, which the kernel refuses.
	p.Endpoints, p.Cluster, p.Local = false, nil, nil
	got = s.part(&p)
	if v := serverAt(got, vip, 80); v == nil || len(v.to) != 0 || has(got, absentInside, netlink.IPSetEntry{Addr: vip, Port: 80, Protocol: 6}) {
		t.Errorf("%+v %v", v, got.elements)
	}
}

// TestBooks: of two ports that claim a front, the same one wins in whatever order they come and go.
func TestBooks(t *testing.T) {
	s := testScene()
	first := proxy.Port{Name: "default/a:", Protocol: 6, Port: 80, ClusterIP: vip, Endpoints: true, Cluster: []netip.AddrPort{here}}
	second := proxy.Port{Name: "default/b:", Protocol: 6, Port: 80, ClusterIP: netip.MustParseAddr("10.96.0.8"), ExternalIPs: []netip.Addr{vip}, Endpoints: true, Cluster: []netip.AddrPort{there}}
	front := host.Service{At: netip.AddrPortFrom(vip, 80), Protocol: 6}
	for _, order := range [][]*proxy.Port{{&first, &second}, {&second, &first}} {
		k := &books{servers: map[host.Service][]claimed{}, elements: map[element]int{}}
		for _, p := range order {
			k.enter(p.Name, s.part(p))
		}
		if got := k.servers[front][0].port; got != first.Name {
			t.Errorf("%s wins", got)
		}
		k.leave(first.Name, s.part(&first))
		if got := k.servers[front][0].port; got != second.Name {
			t.Errorf("%s is left", got)
		}
		k.leave(second.Name, s.part(&second))
		if len(k.servers) != 0 || len(k.elements) != 0 {
			t.Errorf("left: %v %v", k.servers, k.elements)
		}
	}
}

// TestNames are those of both families, within what the kernel takes.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, v6 := range []bool{false, true} {
		for _, s := range sets(v6) {
			if seen[s.Name] || len(s.Name) > 31 {
				t.Errorf("%s", s.Name)
			}
			seen[s.Name] = true
		}
	}
	if got := setName(sourceNets, true); got != "KUBE-6-LOAD-BALANCER-SOURCE-CID" {
		t.Error(got)
	}
}

// TestText has a jump to each chain that leads on from the kernel's, unless it is there.
func TestText(t *testing.T) {
	s := testScene()
	whole := string(s.text(nil))
	for _, j := range jumps {
		if !strings.Contains(whole, "-I "+j.from+" -m comment") || !strings.Contains(whole, "-j "+j.to+"\n") {
			t.Errorf("no jump from %s to %s", j.from, j.to)
		}
	}
	have := map[string][]string{"nat": {`-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`}}
	if text := string(s.text(have)); strings.Contains(text, "-I OUTPUT -m comment --comment \"kubernetes service portals\"") || !strings.Contains(text, "-I PREROUTING") {
		t.Error(text)
	}
	s.masqueradeIn = true
	if !strings.Contains(string(s.text(nil)), "-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ") {
		t.Error("masqueradeAll masquerades nothing")
	}
}
