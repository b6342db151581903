package cluster

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func prefixesOf(t *testing.T, text string) []netip.Prefix {
	t.Helper()
	p, err := parsePrefixes(strings.FieldsFunc(text, func(r rune) bool { return r == ',' }))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCheckRanges(t *testing.T) {
	for _, tt := range []struct{ pods, services, want string }{
		{"", "", ""},
		{"10.244.0.0/16", "10.96.0.0/16", ""},
		{"10.244.0.0/16,fd00:244::/56", "10.96.0.0/16,fd00:96::/112", ""},
		{"fd00:244::/56,10.244.0.0/16", "fd00:96::/112,10.96.0.0/12", ""},
		{"fd00:244::/64", "fd00:96::/124", ""},
		{"10.244.0.0/16,fd00:244::/56", "", ""},
		{"10.244.0.0/16,10.245.0.0/16", "", "--pod-cidr=10.244.0.0/16,10.245.0.0/16: give one range, or one of IPv4 and one of IPv6"},
		{"", "10.96.0.0/16,fd00:96::/112,10.97.0.0/16", "--service-cidr=10.96.0.0/16,fd00:96::/112,10.97.0.0/16: give one range, or one of IPv4 and one of IPv6"},
		{"10.244.1.0/16", "", "--pod-cidr=10.244.1.0/16: 10.244.1.0/16 has bits beyond its prefix; write 10.244.0.0/16"},
		{"10.244.0.0/25", "", "--pod-cidr=10.244.0.0/25: 10.244.0.0/25 is too small: each node gets a /24 of it; give a /24 or a wider one"},
		{"fd00:244::/72", "", "--pod-cidr=fd00:244::/72: fd00:244::/72 is too small: each node gets a /64 of it; give a /64 or a wider one"},
		{"fd00::/40", "", "--pod-cidr=fd00::/40: fd00::/40 is too large: it has more than 65536 parts of /64 for nodes; give at most a /48"},
		{"", "10.96.0.0/29", "--service-cidr=10.96.0.0/29: 10.96.0.0/29 is too small for Services: cluster DNS has the tenth address; give a /28 or a wider one"},
		{"", "fd00:96::/56", "--service-cidr=fd00:96::/56: fd00:96::/56 is too large for Services; give at most a /64, a /112 will do"},
		{"10.0.0.0/8", "10.96.0.0/16", "--service-cidr=10.96.0.0/16: 10.96.0.0/16 overlaps 10.0.0.0/8 of --pod-cidr; choose another"},
		{"10.244.0.0/16,fd00:96::/56", "10.96.0.0/16,fd00:96::/112", "--service-cidr=10.96.0.0/16,fd00:96::/112: fd00:96::/112 overlaps fd00:96::/56 of --pod-cidr; choose another"},
		{"10.244.0.0/16", "fd00:96::/112", "--service-cidr=fd00:96::/112: families must be those of --pod-cidr=10.244.0.0/16, in the same order"},
		{"10.244.0.0/16,fd00:244::/56", "10.96.0.0/16", "--service-cidr=10.96.0.0/16: families must be those of --pod-cidr=10.244.0.0/16,fd00:244::/56, in the same order"},
		{"10.244.0.0/16,fd00:244::/56", "fd00:96::/112,10.96.0.0/16", "--service-cidr=fd00:96::/112,10.96.0.0/16: families must be those of --pod-cidr=10.244.0.0/16,fd00:244::/56, in the same order"},
		{"224.0.0.0/16", "", "--pod-cidr=224.0.0.0/16: 224.0.0.0/16 has no addresses that hosts can have; choose from 10.0.0.0/8 or fd00::/8"},
		{"fe80::/64", "", "--pod-cidr=fe80::/64: fe80::/64 has no addresses that hosts can have; choose from 10.0.0.0/8 or fd00::/8"},
	} {
		got := ""
		if err := CheckRanges("--pod-cidr", prefixesOf(t, tt.pods), "--service-cidr", prefixesOf(t, tt.services)); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("pods %q, services %q: %s\nwant %s", tt.pods, tt.services, got, tt.want)
		}
	}
}

func TestChooseRanges(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		name, pods, services         string
		taken                        []string
		wantPods, wantServices, fail string
	}{
		{name: "usual", wantPods: "10.244.0.0/16", wantServices: "10.96.0.0/16"},
		{name: "usual ones taken", taken: []string{"10.244.7.0/24", "10.96.0.0/16"}, wantPods: "10.240.0.0/16", wantServices: "10.97.0.0/16"},
		{name: "both families, Services follow", pods: "10.244.0.0/16,fd00:244::/56", wantPods: "10.244.0.0/16,fd00:244::/56", wantServices: "10.96.0.0/16,fd01:2345:6789:200::/112"},
		{name: "both families, pods follow", services: "fd00:96::/112,10.96.0.0/16", wantPods: "fd01:2345:6789:100::/56,10.244.0.0/16", wantServices: "fd00:96::/112,10.96.0.0/16"},
		{name: "IPv6 alone", pods: "fd00:244::/56", wantPods: "fd00:244::/56", wantServices: "fd01:2345:6789:200::/112"},
		{name: "taken", pods: "10.1.0.0/16,fd00:244::/56", taken: []string{"fd00:244:0:4::/64"}, fail: "--pod-cidr=10.1.0.0/16,fd00:244::/56 overlaps fd00:244:0:4::/64 of another; choose another, or leave it out"},
		{name: "node among pods", pods: "192.0.0.0/12", fail: "range 192.0.0.0/12 contains 192.0.2.1, an address of this host; choose another with --pod-cidr or --service-cidr"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &Config{ID: "0123456789abcdef", NodeIPs: []netip.Addr{four}}
			var taken []claim
			for _, p := range tt.taken {
				taken = append(taken, claim{CIDR: netip.MustParsePrefix(p), Who: "another"})
			}
			_, err := c.chooseRanges(Wanted{PodCIDRs: prefixesOf(t, tt.pods), ServiceCIDRs: prefixesOf(t, tt.services)}, []netip.Addr{six, four}, taken)
			if tt.fail != "" {
				if err == nil || err.Error() != tt.fail {
					t.Fatalf("%v, want %s", err, tt.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := cidrList(c.PodCIDRs); got != tt.wantPods {
				t.Errorf("pods %s, want %s", got, tt.wantPods)
			}
			if got := cidrList(c.ServiceCIDRs); got != tt.wantServices {
				t.Errorf("Services %s, want %s", got, tt.wantServices)
			}
			for i, p := range c.PodCIDRs {
				if c.NodeIPs[i].Is6() != p.Addr().Is6() {
					t.Errorf("addresses %v for ranges %v", c.NodeIPs, c.PodCIDRs)
				}
			}
		})
	}
}

func TestSetNodeIPs(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	c := &Config{PodCIDRs: prefixesOf(t, "fd00:244::/56,10.244.0.0/16"), ServiceCIDRs: prefixesOf(t, "fd00:96::/112,10.96.0.0/16")}
	if err := c.setNodeIPs([]netip.Addr{four, six}); err != nil || !slices.Equal(c.NodeIPs, []netip.Addr{six, four}) {
		t.Errorf("%v, %v: want the order of the cluster's families", c.NodeIPs, err)
	}
	for want, given := range map[string][]netip.Addr{
		"--node-ip=192.0.2.1,192.0.2.2: give one address of each family":                        {four, four.Next()},
		"range 10.244.0.0/16 contains 10.244.7.7, an address of this host; choose another with": {netip.MustParseAddr("10.244.7.7"), six},
	} {
		if err := c.setNodeIPs(given); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: %v, want %s", given, err, want)
		}
	}
	c = &Config{PodCIDRs: prefixesOf(t, "10.244.0.0/16"), ServiceCIDRs: prefixesOf(t, "10.96.0.0/16")}
	want := "--node-ip=192.0.2.1,2001:db8::1: 2001:db8::1 is of a family that the cluster's pods (10.244.0.0/16) have not; leave it out"
	if err := c.setNodeIPs([]netip.Addr{four, six}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestNodeOfEachFamily(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		pods       string
		known, has []netip.Addr
		want       []netip.Addr
	}{
		{"10.0.0.0/16", []netip.Addr{four}, []netip.Addr{four, six}, []netip.Addr{four}},
		{"10.0.0.0/16,fd00::/56", []netip.Addr{four}, []netip.Addr{four, six}, []netip.Addr{four, six}},
		{"10.0.0.0/16,fd00::/56", []netip.Addr{six}, []netip.Addr{four, six}, []netip.Addr{four, six}},
		{"fd00::/56,10.0.0.0/16", []netip.Addr{four}, []netip.Addr{four, six}, []netip.Addr{six, four}},
		{"10.0.0.0/16,fd00::/56", []netip.Addr{four}, []netip.Addr{four}, []netip.Addr{four}},
		{"fd00::/56", []netip.Addr{four}, []netip.Addr{four}, []netip.Addr{four}},
	} {
		n := &NodeConfig{NodeIPs: tt.known, PodCIDRs: prefixesOf(t, tt.pods)}
		n.addFamilies(func(v6 bool) (netip.Addr, error) {
			for _, a := range tt.has {
				if a.Is6() == v6 {
					return a, nil
				}
			}
			return netip.Addr{}, errors.New("none")
		})
		if !slices.Equal(n.NodeIPs, tt.want) {
			t.Errorf("pods %s, known %v of %v: %v, want %v", tt.pods, tt.known, tt.has, n.NodeIPs, tt.want)
		}
	}
}

// TestOldConfigReads: files of before there were two families mean the same, and what is
// written now can be read by the skiff that wrote those.
func TestOldConfigReads(t *testing.T) {
	dir := t.TempDir()
	old := `{"format":1,"name":"c","id":"0123456789abcdef","createdBy":"0.2.0","nodeName":"n","nodeIP":"192.0.2.1","apiPort":6443,"kubeletPort":10250,
		"podCIDR":"10.244.0.0/16","serviceCIDR":"10.96.0.0/16","domain":"cluster.local","bridge":"sk0123"}`
	if err := os.WriteFile(filepath.Join(dir, "cluster.json"), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := c.node()
	if !slices.Equal(n.NodeIPs, []netip.Addr{netip.MustParseAddr("192.0.2.1")}) || cidrList(n.PodCIDRs) != "10.244.0.0/16" || cidrList(n.ServiceCIDRs) != "10.96.0.0/16" || n.DNS[0].String() != "10.96.0.10" {
		t.Errorf("node %+v", n)
	}
	c.NodeIPs = append(c.NodeIPs, netip.MustParseAddr("2001:db8::1"))
	c.PodCIDRs = append(c.PodCIDRs, netip.MustParsePrefix("fd00:244::/56"))
	c.ServiceCIDRs = append(c.ServiceCIDRs, netip.MustParsePrefix("fd00:96::/112"))
	if err := c.save(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
	if err != nil {
		t.Fatal(err)
	}
	var before struct{ NodeIP, PodCIDR, ServiceCIDR, NodeName string }
	if err := json.Unmarshal(text, &before); err != nil {
		t.Fatal(err)
	}
	if before.NodeIP != "192.0.2.1" || before.PodCIDR != "10.244.0.0/16" || before.ServiceCIDR != "10.96.0.0/16" || before.NodeName != "n" {
		t.Errorf("an older skiff reads %+v", before)
	}
	again, err := Load(dir)
	if err != nil || len(again.NodeIPs) != 2 || cidrList(again.PodCIDRs) != "10.244.0.0/16,fd00:244::/56" || cidrList(again.ServiceCIDRs) != "10.96.0.0/16,fd00:96::/112" {
		t.Errorf("%+v, %v", again, err)
	}
	names, ips := again.servingNames()
	for _, want := range []string{"192.0.2.1", "2001:db8::1", "10.96.0.1", "fd00:96::1"} {
		if !slices.Contains(ips, netip.MustParseAddr(want)) {
			t.Errorf("the API server's certificate is not for %s, but %v %v", want, ips, names)
		}
	}
}
