package iptables

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/proxy"
	"github.com/skiff-k8s/skiff/proxy/nodeports"
)

var write = flag.Bool("write", false, "write testdata instead of comparing with it")

// TestNames are those that upstream's kube-proxy computes for the same Services (they stand in its tests).
func TestNames(t *testing.T) {
	for _, c := range []struct{ name, proto, endpoint, want string }{
		{"ns1/svc1:p80", "tcp", "", "KUBE-SVC-XPGD46QRK7WJZT7O"},
		{"ns2/svc2:p80", "tcp", "", "KUBE-SVC-GNZBNJ2PO5MGZ6GT"},
		{"ns1/svc1:p80", "tcp", "10.180.0.1:80", "KUBE-SEP-SXIVWICOYRO3J4NJ"},
	} {
		got := clusterPrefix + hash(c.name, c.proto)
		if c.endpoint != "" {
			got = endpointPrefix + hash(c.name, c.proto, c.endpoint)
		}
		if got != c.want {
			t.Errorf("%s %s %s: %s, want %s", c.name, c.proto, c.endpoint, got, c.want)
		}
	}
	if got := nameOf(&proxy.Port{Name: "default/kubernetes:"}); got != "default/kubernetes" {
		t.Errorf("a port without a name is %q", got)
	}
}

func ap(all ...string) (out []netip.AddrPort) {
	for _, s := range all {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

func cases() map[string]proxy.Port {
	a := netip.MustParseAddr
	web := proxy.Port{Name: "default/web:http", Protocol: 6, Port: 80, ClusterIP: a("10.96.0.7"), Endpoints: true, Cluster: ap("10.244.1.5:8080", "10.244.2.6:8080")}
	sticky := web
	sticky.Affinity = 3 * time.Hour
	node := web
	node.NodePort, node.ExternalIPs = 30080, []netip.Addr{a("203.0.113.7")}
	local := node
	local.ExternalLocal, local.HealthPort = true, 31080
	local.Local = ap("10.244.1.5:8080")
	local.LoadBalancerIPs = []netip.Addr{a("203.0.113.8")}
	local.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	elsewhere := local
	elsewhere.Local = nil
	inside := web
	inside.InternalLocal, inside.Cluster = true, nil
	none := node
	none.Endpoints, none.Cluster = false, nil
	dns := proxy.Port{Name: "kube-system/kube-dns:", V6: true, Protocol: 17, Port: 53, ClusterIP: a("fd00:10:96::a"), Endpoints: true, Cluster: ap("[fd00:10:244::5]:53")}
	return map[string]proxy.Port{"cluster": web, "affinity": sticky, "nodeport": node, "local": local, "local-elsewhere": elsewhere,
		"internal-local": inside, "absent": none, "ipv6": dns}
}

func testScene(v6 bool) scene {
	s := scene{v6: v6, masqueradeBy: 1 << masqueradeBit, localhost: !v6, pods: netip.MustParsePrefix("10.244.0.0/16"), node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	if v6 {
		s.pods, s.node = netip.MustParsePrefix("fd00:10:244::/56"), []netip.Addr{netip.MustParseAddr("2001:db8::1")}
	}
	return s
}

// TestRules are as they stand in testdata: for a port alone, and for all together.
func TestRules(t *testing.T) {
	compare := func(name, got string) {
		t.Helper()
		path := filepath.Join("testdata", name+".rules")
		if *write {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s (go test -write writes it):\n%s\nwant\n%s", name, got, want)
		}
	}
	for name, p := range cases() {
		s := testScene(p.V6)
		var b strings.Builder
		part := s.part(&p)
		for _, l := range part.shared {
			b.WriteString(l.table + " " + l.chain + " " + l.text + "\n")
		}
		for _, c := range part.own {
			b.WriteString(":" + c.name + "\n")
			for _, r := range c.rules {
				b.WriteString(c.name + " " + r + "\n")
			}
		}
		compare(name, b.String())
	}
	s, web := testScene(false), cases()["cluster"]
	full, _ := s.whole([]part{s.part(&web)}, map[string]existing{
		nat:    {chains: map[string]bool{"KUBE-SVC-STALE": true, "DOCKER": true}, rules: []string{`-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`}},
		filter: {},
	}, 0)
	compare("whole", string(full[0].bytes()))
	dns := web
	dns.Name = "default/dns:udp"
	pieces, _ := s.whole([]part{s.part(&web), s.part(&dns)}, nil, 1)
	var text strings.Builder
	for _, p := range pieces {
		text.Write(p.bytes())
	}
	compare("pieces", text.String())
	fewer := web
	fewer.Cluster = web.Cluster[:1]
	change, _ := difference(s.part(&web), s.part(&fewer), 1)
	compare("endpoint-gone", string(change.bytes()))
	gone, firsts := difference(s.part(&web), part{}, 1)
	compare("service-gone", string(gone.bytes()))
	if firsts != 0 {
		t.Errorf("%d lines of cluster IPs are left", firsts)
	}
	node := cases()["nodeport"]
	open, _ := difference(s.part(&web), s.part(&node), 7)
	compare("opened", string(open.bytes()))
	if same, _ := difference(s.part(&node), s.part(&node), 1); !same.empty() {
		t.Errorf("nothing has changed: %s", same.bytes())
	}
}

// TestNodePortsWhereChosen: at loopback only where it can be.
func TestNodePortsWhereChosen(t *testing.T) {
	for _, c := range []struct {
		where     []string
		v6, local bool
		want      []string
	}{
		{nil, false, true, []string{"-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"}},
		{nil, false, false, []string{"-m addrtype --dst-type LOCAL ! -d 127.0.0.0/8 -j KUBE-NODEPORTS"}},
		{nil, true, true, []string{"-m addrtype --dst-type LOCAL ! -d ::1/128 -j KUBE-NODEPORTS"}},
		{[]string{"primary"}, false, true, []string{"-d 127.0.0.0/8 -j RETURN", "-d 192.0.2.1/32 -j KUBE-NODEPORTS"}},
		{[]string{"localhost"}, false, true, []string{"-d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"}},
		{[]string{"10.0.0.0/8", "fd00::/8"}, true, true, []string{"-d ::1/128 -j RETURN", "-d fd00::/8 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"}},
	} {
		w, err := nodeports.Parse(c.where)
		if err != nil {
			t.Fatal(err)
		}
		s := testScene(c.v6)
		s.nodePorts, s.localhost = w, c.local && !c.v6 && atLoopback(w)
		var got []string
		for _, l := range s.toNodePorts() {
			_, rest, _ := strings.Cut(l.text, `chain" `)
			got = append(got, rest)
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%v, IPv6 %t, localhost %t: %q, want %q", c.where, c.v6, c.local, got, c.want)
		}
	}
}
