package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func testCluster() *Config {
	return &Config{
		Name: "one", ID: "0123456789abcdef", NodeName: "host", Bridge: "sk0123", APIPort: 6443, KubeletPort: 10250,
		NodeIPs:  []netip.Addr{netip.MustParseAddr("192.0.2.2")},
		PodCIDRs: prefixes("10.244.0.0/16"), ServiceCIDRs: prefixes("10.96.0.0/16"),
	}
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestNodesHaveNamesAndAddressesOfTheirOwn(t *testing.T) {
	c := testCluster()
	p := Paths{"/var/lib/skiff/one"}
	if err := c.growNodes(3); err != nil {
		t.Fatal(err)
	}
	c.Nodes = append(c.Nodes, NodeSpec{Name: "other"})
	place := func() string {
		t.Helper()
		if err := c.placeNodes(p, c.claims()); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, s := range c.Nodes {
			out = append(out, fmt.Sprint(s.Name, s.Addresses))
		}
		return strings.Join(out, " ")
	}
	if got, want := place(), "host-2[172.28.0.2] host-3[172.28.0.3] other[172.28.0.4]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// Who stays keeps its address; what is free is given again.
	c.Nodes = append(c.Nodes[:1], c.Nodes[2:]...)
	if err := c.growNodes(4); err != nil {
		t.Fatal(err)
	}
	if got, want := place(), "host-2[172.28.0.2] other[172.28.0.4] host-3[172.28.0.3]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := c.growNodes(2); err == nil || !strings.Contains(err.Error(), "--nodes 2") || !strings.Contains(err.Error(), "skiff node rm") {
		t.Errorf("fewer nodes: %v", err)
	}
	c.Nodes[0].Leaving = true
	if got := len(c.staying()); got != 2 {
		t.Errorf("%d nodes stay", got)
	}
}

func TestBothFamiliesOfNodes(t *testing.T) {
	c := testCluster()
	c.NodeIPs = append(c.NodeIPs, netip.MustParseAddr("fd00::2"))
	c.Nodes = []NodeSpec{{Name: "a"}, {Name: "b"}}
	if err := c.placeNodes(Paths{"/x"}, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(c.NodeSubnets, c.Nodes[1].Addresses), "[172.28.0.0/24 fd01:2345:6789::/64] [172.28.0.3 fd01:2345:6789::3]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMistakenNodes(t *testing.T) {
	for _, m := range []struct {
		spec NodeSpec
		want string
	}{
		{NodeSpec{Name: "host"}, "taken"},
		{NodeSpec{Name: "there"}, "taken"},
		{NodeSpec{Name: "Not_A_Name"}, "Not_A_Name"},
		{NodeSpec{Name: strings.Repeat("long.", 20) + "x"}, "shorter"},
		{NodeSpec{Name: "x", Labels: map[string]string{"-a": "b"}}, `label "-a"`},
		{NodeSpec{Name: "x", Labels: map[string]string{"a": "b c"}}, "label a"},
		{NodeSpec{Name: "x", Taints: []corev1.Taint{{Key: "a", Effect: "Never"}}}, `effect "Never"`},
		{NodeSpec{Name: "x", Taints: []corev1.Taint{{Key: "a", Effect: "NoExecute"}, {Key: "a", Value: "b", Effect: "NoExecute"}}}, "twice"},
	} {
		c := testCluster()
		c.Nodes = []NodeSpec{{Name: "there"}, m.spec}
		if err := c.placeNodes(Paths{"/var/lib/skiff/one"}, nil); err == nil || !strings.Contains(err.Error(), m.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want an error with %s", m.spec, err, m.want)
		}
	}
}

// A node's kubelet may not give itself labels of Kubernetes' own but for a few (KEP-279).
func TestOwnLabels(t *testing.T) {
	for key, own := range map[string]bool{
		"tier": true, "example.com/tier": true, "topology.kubernetes.io/zone": true, "node.kubernetes.io/instance-type": true,
		"node-role.kubernetes.io/worker": false, "node-restriction.kubernetes.io/a": false, "kubernetes.io/os": false, "x.k8s.io/a": false, "notkubernetes.io/a": true,
	} {
		if got := ownLabel(key); got != own {
			t.Errorf("%s: %v, want %v", key, got, own)
		}
	}
}

func TestFreeRanges(t *testing.T) {
	route := func(s string) claim { return claim{CIDR: netip.MustParsePrefix(s), Who: "a route", Route: true} }
	cluster := func(s string) claim { return claim{CIDR: netip.MustParsePrefix(s), Who: `cluster "b"`} }
	for _, c := range []struct {
		name  string
		taken []claim
		want  string
	}{
		{"nobody", nil, "10.244.0.0/16"},
		{"another cluster", []claim{cluster("10.244.0.0/16")}, "10.240.0.0/16"},
		{"a part of it", []claim{route("10.244.7.0/24"), cluster("10.240.0.0/15")}, "10.242.0.0/16"},
		{"a wide route says only where the rest goes", []claim{route("10.0.0.0/8")}, "10.244.0.0/16"},
		{"a wide range of a cluster is taken", []claim{cluster("10.0.0.0/8")}, "172.20.0.0/16"},
		{"another family", []claim{route("fd00::/8")}, "10.244.0.0/16"},
	} {
		got, err := freeRange("pod addresses", "mend", podCandidates, c.taken)
		if err != nil || got.String() != c.want {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, c.want)
		}
	}
	if _, err := freeRange("pod addresses", "choose one with --pod-cidr", podCandidates, []claim{cluster("0.0.0.0/0")}); err == nil || !strings.Contains(err.Error(), `cluster "b"`) || !strings.Contains(err.Error(), "--pod-cidr") {
		t.Errorf("all taken: %v", err)
	}
	if p, ok := freeSubnet(nodeRange, 24, []claim{route("172.28.0.0/24"), cluster("172.28.1.0/24")}); !ok || p.String() != "172.28.2.0/24" {
		t.Errorf("subnet %s, %v", p, ok)
	}
	if _, ok := freeSubnet(nodeRange, 24, []claim{cluster("172.16.0.0/12")}); ok {
		t.Error("a subnet of a range that is taken")
	}
}

func TestChosenRangesThatClash(t *testing.T) {
	b := testCluster()
	b.Name, b.NodeSubnets = "b", prefixes("172.28.0.0/24")
	for _, x := range []struct {
		want Wanted
		say  []string
	}{
		{Wanted{PodCIDRs: prefixes("10.244.0.0/16")}, []string{"--pod-cidr=10.244.0.0/16", `cluster "b"`, "choose another"}},
		{Wanted{ServiceCIDRs: prefixes("10.96.0.0/16")}, []string{"--service-cidr=10.96.0.0/16", `cluster "b"`}},
		{Wanted{PodCIDRs: prefixes("172.28.0.0/16")}, []string{"--pod-cidr=172.28.0.0/16", "172.28.0.0/24", `cluster "b"`}},
		{Wanted{APIPort: 6443}, []string{"--api-port=6443", `cluster "b"`}},
		{Wanted{KubeletPort: 10250}, []string{"--kubelet-port=10250", `cluster "b"`}},
	} {
		c := testCluster()
		err := c.choose(x.want, c.NodeIPs, b.claims())
		if err == nil {
			t.Errorf("%+v: no error", x.want)
			continue
		}
		for _, s := range x.say {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%+v: %v does not mention %s", x.want, err, s)
			}
		}
	}
}

func TestLinkNamesFit(t *testing.T) {
	c := testCluster()
	seen := map[string]bool{c.nodeLink(): true}
	for i := range 100 {
		name := c.nodePort(fmt.Sprintf("host-%d", i))
		if len(name) > 15 || seen[name] {
			t.Fatalf("link %s has %d bytes, or is another's", name, len(name))
		}
		seen[name] = true
	}
}

func TestHostname(t *testing.T) {
	for node, want := range map[string]string{"a": "a", strings.Repeat("a", 63) + "." + "b": strings.Repeat("a", 63), strings.Repeat("b", 80): strings.Repeat("b", 64)} {
		if got := hostname(node); got != want {
			t.Errorf("%s: %s, want %s", node, got, want)
		}
	}
}

// A node in a namespace cannot reach a resolver on the host's loopback.
func TestReachableResolvers(t *testing.T) {
	for server, want := range map[string]bool{"127.0.0.53:53": false, "[::1]:53": false, "192.0.2.53:53": true, "[fd00::53]:53": true} {
		if got := reachable(server); got != want {
			t.Errorf("%s: %v", server, got)
		}
	}
}
