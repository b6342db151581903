package proxy_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	tool "github.com/skiff-k8s/skiff/host/iptables"
)

// TestServices sends packets through Services between nodes. What is expected holds for
// upstream's kube-proxy too: the same requests are made to it where its program is at hand
// (make -C test/upstream/twins kube-proxy).
func TestServices(t *testing.T) {
	ipt := mode{open: true, loopback: true}
	ipvs := mode{far: true}
	for _, m := range []struct {
		name string
		mode mode
		on   making
		twin string // upstream's mode
	}{
		{"nftables", mode{}, onNftables, "nftables"},
		{"iptables by nft", ipt, onIPTables(tool.NFT), "iptables"},
		{"iptables by legacy", ipt, onIPTables(tool.Legacy), ""},
		{"ipvs", ipvs, onIPVS, ""},
	} {
		t.Run(m.name+" skiff", func(t *testing.T) { services(t, m.mode, ours(m.on)) })
		if m.twin == "" {
			continue
		}
		t.Run(m.name+" upstream", func(t *testing.T) {
			dir := os.Getenv("SKIFF_TWINS")
			if dir == "" {
				dir = "../.cache/twins"
			}
			binary, err := filepath.Abs(filepath.Join(dir, "kube-proxy"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(binary); err != nil {
				t.Skipf("compares with upstream's kube-proxy, which is not built: %v", err)
			}
			services(t, m.mode, upstream(binary, m.twin))
		})
	}
}

func services(t *testing.T, m mode, run proxies) {
	c := newCluster(t, m)
	for _, node := range []string{"n1", "n2"} {
		t.Cleanup(run(c, node, nil))
	}
	for family, name := range []string{"IPv4", "IPv6"} {
		for _, part := range []struct {
			name string
			run  func(*cluster)
		}{
			{"cluster IP", clusterIPs}, {"node port", nodePorts}, {"hairpin", hairpins}, {"external traffic policy", externalPolicies},
			{"internal traffic policy", internalPolicies}, {"health port", healthPorts}, {"load balancer", loadBalancers},
			{"external IP", externalIPs}, {"terminating endpoints", terminating}, {"hints", hints}, {"refusals", refusals},
			{"flows", flows}, {"affinity", affinities},
		} {
			t.Run(name+" "+part.name, func(t *testing.T) {
				d := *c
				d.lab = &lab{t: t, hosts: c.hosts}
				d.family = family
				part.run(&d)
			})
		}
	}
}

func all(names string) (out []where) {
	for _, n := range strings.Fields(names) {
		out = append(out, where{pod: n})
	}
	return out
}

func clusterIPs(c *cluster) {
	s := c.service(10, nil, all("a c")...)
	to := c.at(c.vip(10), 80)
	for _, network := range []string{"tcp", "udp"} {
		c.expect(wish{from: "b", network: network, to: to, pods: "a c", source: "own"})
		c.expect(wish{from: "d", network: network, to: to, pods: "a c", source: "own"})
		c.expect(wish{from: "n1", network: network, to: to, pods: "a c", source: "node"})
		c.expect(wish{from: "client", network: network, to: to, pods: "a c", source: "node"})
	}
	c.endpoints(s, all("c d")...)
	c.expect(wish{from: "b", to: to, pods: "c d"})
	c.remove(s)
	c.expect(wish{from: "b", to: to, pods: "silent"})
}

func nodePorts(c *cluster) {
	s := c.service(11, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30011, 30011
	}, all("a c")...)
	defer c.remove(s)
	for _, network := range []string{"tcp", "udp"} {
		for _, node := range []string{"n1", "n2"} {
			c.expect(wish{from: "client", network: network, to: c.node(node, 30011), pods: "a c", source: "node"})
			c.expect(wish{from: "b", network: network, to: c.node(node, 30011), pods: "a c", source: "node"})
		}
		c.expect(wish{from: "client", network: network, to: c.at(second[c.family], 30011), pods: "a c", source: "node"})
		c.expect(wish{from: "n1", network: network, to: c.node("n1", 30011), pods: "a c", source: "node"})
		if c.mode.loopback && c.family == 0 {
			c.expect(wish{from: "n1", network: network, to: c.at(netip.MustParseAddr("127.0.0.1"), 30011), pods: "a c", source: "node"})
		}
	}
}

func hairpins(c *cluster) {
	s := c.service(12, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, []string{c.ext(12).String()}
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30012, 30012
		s.Spec.AllocateLoadBalancerNodePorts = ptr.To(true)
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: c.ext(112).String()}}
	}, all("a")...)
	defer c.remove(s)
	for _, network := range []string{"tcp", "udp"} {
		for _, to := range []netip.AddrPort{c.at(c.vip(12), 80), c.node("n1", 30012), c.node("n2", 30012), c.at(c.ext(12), 80), c.at(c.ext(112), 80)} {
			c.expect(wish{from: "a", network: network, to: to, pods: "a", source: "node"})
		}
	}
}

func local(c *cluster, n int, port int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = port + 1000
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = port, port
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: c.ext(n).String()}}
	}
}

func externalPolicies(c *cluster) {
	s := c.service(13, local(c, 13, 30013), all("c")...)
	defer c.remove(s)
	for _, network := range []string{"tcp", "udp"} {
		c.expect(wish{from: "client", network: network, to: c.node("n2", 30013), pods: "c", source: "own"})
		c.expect(wish{from: "client", network: network, to: c.node("n1", 30013), pods: "silent"}) // not refused: try another node
		c.expect(wish{from: "client", network: network, to: c.at(c.ext(13), 80), pods: "silent"})
		// What begins on a node is taken as if it came from the balancer.
		c.expect(wish{from: "a", network: network, to: c.node("n1", 30013), pods: "c", source: "own"})
		c.expect(wish{from: "a", network: network, to: c.at(c.ext(13), 80), pods: "c", source: "own"})
		c.expect(wish{from: "n1", network: network, to: c.node("n1", 30013), pods: "c", source: "node"})
		c.expect(wish{from: "n1", network: network, to: c.at(c.ext(13), 80), pods: "c", source: "node"})
		c.expect(wish{from: "b", network: network, to: c.at(c.vip(13), 80), pods: "c", source: "own"})
	}
	c.endpoints(s, all("a c")...)
	c.expect(wish{from: "client", to: c.node("n1", 30013), pods: "a", source: "own"})
	c.expect(wish{from: "client", to: c.at(c.ext(13), 80), pods: "a", source: "own"})
	if !c.mode.far {
		c.expect(wish{from: "b", to: c.node("n1", 30013), pods: "a c"})
	}
	c.endpoints(s)
	c.expect(wish{from: "client", to: c.node("n1", 30013), pods: "refused"})
	c.expect(wish{from: "client", to: c.at(c.ext(13), 80), pods: "refused"})
}

func internalPolicies(c *cluster) {
	s := c.service(14, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.InternalTrafficPolicy = corev1.ServiceTypeNodePort, ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30014, 30014
	}, all("c d")...)
	defer c.remove(s)
	to := c.at(c.vip(14), 80)
	for _, network := range []string{"tcp", "udp"} {
		c.expect(wish{from: "d", network: network, to: to, pods: "c d"})
		c.expect(wish{from: "a", network: network, to: to, pods: "silent"})
		c.expect(wish{from: "n1", network: network, to: to, pods: "silent"})
		c.expect(wish{from: "client", network: network, to: c.node("n1", 30014), pods: "c d"})
	}
	c.endpoints(s, all("a c")...)
	c.expect(wish{from: "b", to: to, pods: "a"})
	c.endpoints(s)
	c.expect(wish{from: "b", to: to, pods: "refused"})
}

func healthPorts(c *cluster) {
	s := c.service(15, local(c, 15, 30015), all("c d")...)
	defer c.remove(s)
	want := func(node string, code int, weight, text string) {
		c.t.Helper()
		var got string
		for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			is, header, body, err := c.get("client", c.node(node, 31015))
			got = fmt.Sprint(is, header, body, err)
			if is == code && header.Get("X-Load-Balancing-Endpoint-Weight") == weight && body == text && header.Get("Content-Type") == "application/json" {
				return
			}
			if time.Now().After(deadline) {
				c.t.Fatalf("health of %s: %s, want %d, weight %s: %s", node, got, code, weight, text)
			}
		}
	}
	body := func(n int) string {
		return fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": true\n}", s, n)
	}
	want("n1", 503, "0", body(0))
	want("n2", 200, "2", body(2))
	c.endpoints(s, where{pod: "a"}, where{pod: "c", leaving: true})
	want("n1", 200, "1", body(1))
	want("n2", 503, "0", body(0))
}

func loadBalancers(c *cluster) {
	bits := fmt.Sprint("/", other[c.family].BitLen())
	s := c.service(16, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.LoadBalancerSourceRanges = []string{other[c.family].String() + bits, c.hosts["b"].ips[c.family].String() + bits}
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30016, 30016
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: c.ext(16).String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)},
			{IP: c.ext(116).String(), IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)}}
	}, all("a c")...)
	defer c.remove(s)
	for _, network := range []string{"tcp", "udp"} {
		to := c.at(c.ext(16), 80)
		c.expect(wish{from: "client", network: network, by: other[c.family], to: to, pods: "a c", source: "node"})
		c.expect(wish{from: "client", network: network, to: to, pods: "silent"})
		c.expect(wish{from: "b", network: network, to: to, pods: "a c"})
		c.expect(wish{from: "d", network: network, to: to, pods: "silent"})
		// Neither the cluster IP nor node ports have sources.
		c.expect(wish{from: "client", network: network, to: c.node("n1", 30016), pods: "a c"})
		c.expect(wish{from: "d", network: network, to: c.at(c.vip(16), 80), pods: "a c"})
	}
	// The address of a balancer that is a proxy is nobody's here: it goes to where it is.
	if v := c.ask(c.hosts["b"], "tcp", netip.Addr{}, c.at(c.ext(116), 80), silence); v.pod != "" {
		c.t.Errorf("ipMode Proxy: %s", v)
	}
}

func externalIPs(c *cluster) {
	s := c.service(17, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{c.ext(17).String()} }, all("a c")...)
	defer c.remove(s)
	for _, network := range []string{"tcp", "udp"} {
		for _, from := range []string{"client", "b", "d"} {
			c.expect(wish{from: from, network: network, to: c.at(c.ext(17), 80), pods: "a c", source: "node"})
		}
	}
}

func terminating(c *cluster) {
	s := c.service(18, local(c, 18, 30018), where{pod: "a", leaving: true}, where{pod: "c"}, where{pod: "d", gone: true})
	defer c.remove(s)
	c.expect(wish{from: "b", to: c.at(c.vip(18), 80), pods: "c"})
	c.expect(wish{from: "client", to: c.node("n1", 30018), pods: "a"}) // a Local policy has nothing better
	c.endpoints(s, where{pod: "a", leaving: true}, where{pod: "c", leaving: true}, where{pod: "d", gone: true})
	c.expect(wish{from: "b", to: c.at(c.vip(18), 80), pods: "a c"})
	c.endpoints(s, where{pod: "a", gone: true}, where{pod: "d", unready: true})
	c.expect(wish{from: "b", to: c.at(c.vip(18), 80), pods: "refused"})
}

func hints(c *cluster) {
	z1, z2 := []string{"z1"}, []string{"z2"}
	s := c.service(19, func(s *corev1.Service) {
		s.Spec.TrafficDistribution = ptr.To(corev1.ServiceTrafficDistributionPreferClose)
	},
		where{pod: "a", zones: z1}, where{pod: "c", zones: z2}, where{pod: "d", zones: z2})
	defer c.remove(s)
	to := c.at(c.vip(19), 80)
	c.expect(wish{from: "b", to: to, pods: "a"})
	c.expect(wish{from: "d", to: to, pods: "c d"})
	// Of the node, where each has a hint for one.
	c.endpoints(s, where{pod: "a", zones: z1, nodes: []string{"n2"}}, where{pod: "b", zones: z1, nodes: []string{"n1"}}, where{pod: "c", zones: z2, nodes: []string{"n2"}})
	c.expect(wish{from: "b", to: to, pods: "b"})
	c.expect(wish{from: "d", to: to, pods: "a c"})
	// None for this zone, or one without: all.
	c.endpoints(s, where{pod: "c", zones: z2}, where{pod: "d", zones: z2})
	c.expect(wish{from: "b", to: to, pods: "c d"})
	c.endpoints(s, where{pod: "a", zones: z1}, where{pod: "c"})
	c.expect(wish{from: "d", to: to, pods: "a c"})
}

func refusals(c *cluster) {
	s := c.service(20, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalIPs = corev1.ServiceTypeNodePort, []string{c.ext(20).String()}
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30020, 30020
	}, where{pod: "a", unready: true})
	for _, network := range []string{"tcp", "udp"} {
		for _, from := range []string{"b", "n1"} {
			c.expect(wish{from: from, network: network, to: c.at(c.vip(20), 80), pods: "refused"})
			c.expect(wish{from: from, network: network, to: c.node("n1", 30020), pods: "refused"})
		}
		c.expect(wish{from: "client", network: network, to: c.node("n1", 30020), pods: "refused"})
		c.expect(wish{from: "client", network: network, to: c.at(c.ext(20), 80), pods: "refused"})
		if !c.mode.open {
			c.expect(wish{from: "b", network: network, to: c.at(c.vip(20), 81), pods: "refused"}) // no such port
		}
	}
	c.remove(s)
	c.expect(wish{from: "b", to: c.at(c.vip(20), 80), pods: "silent"}) // no such address
}

// flows are UDP ones: a client keeps its socket, and asks on.
func flows(c *cluster) {
	s := c.service(21, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, []string{c.ext(21).String()}
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30021, 30021
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: c.ext(121).String()}}
	}, all("a")...)
	defer c.remove(s)
	targets := []struct {
		from string
		to   netip.AddrPort
	}{
		{"b", c.at(c.vip(21), 80)}, {"client", c.node("n1", 30021)}, {"client", c.at(c.ext(21), 80)}, {"client", c.at(c.ext(121), 80)}, {"n1", c.at(c.vip(21), 80)},
	}
	for _, f := range targets {
		c.expect(wish{from: f.from, network: "udp", to: f.to, pods: "a"})
	}
	var conns []func() verdict
	for _, f := range targets {
		conn, err := c.dial(c.hosts[f.from], "udp", netip.Addr{}, f.to, patience)
		c.must(err)
		defer conn.Close()
		ask := func() verdict { return talk(conn, silence) }
		conns = append(conns, ask)
		if v := ask(); v.pod != "a" {
			c.t.Fatalf("%s → %s: %s, want a", f.from, f.to, v)
		}
	}
	await := func(pod string) {
		c.t.Helper()
		for i, ask := range conns {
			var v verdict
			for deadline := time.Now().Add(patience); v.pod != pod; v = ask() {
				if time.Now().After(deadline) {
					c.t.Fatalf("%s → %s: %s, want %s", targets[i].from, targets[i].to, v, pod)
				}
			}
		}
	}
	// One that leaves but serves keeps its flows.
	c.endpoints(s, where{pod: "a", leaving: true}, where{pod: "c"})
	c.expect(wish{from: "b", network: "udp", to: c.at(c.vip(21), 80), pods: "c"})
	for i, ask := range conns {
		if v := ask(); v.pod != "a" {
			c.t.Errorf("%s → %s: %s though a still serves", targets[i].from, targets[i].to, v)
		}
	}
	c.endpoints(s, all("c")...)
	await("c")
	c.endpoints(s, all("d")...)
	await("d")
}

func affinities(c *cluster) {
	for i, f := range []struct {
		from string
		to   netip.AddrPort
	}{{"b", c.at(c.vip(22), 80)}, {"client", c.node("n1", 30023)}, {"client", c.node("n2", 30024)}} {
		port := int32(30022 + i)
		s := c.service(22+i, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.SessionAffinity = corev1.ServiceTypeNodePort, corev1.ServiceAffinityClientIP
			s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = port, port
		}, all("a c")...)
		var first verdict
		for deadline := time.Now().Add(patience); first.pod == "" && time.Now().Before(deadline); {
			first = c.ask(c.hosts[f.from], "tcp", c.hosts[f.from].ips[c.family], f.to, 5*time.Second)
		}
		c.expect(wish{from: f.from, to: f.to, pods: first.pod})
		for range 20 {
			if v := c.ask(c.hosts[f.from], "tcp", c.hosts[f.from].ips[c.family], f.to, patience); v.pod != first.pod {
				c.t.Fatalf("%s → %s: %s, then %s", f.from, f.to, first, v)
			}
		}
		// Others come and go: it stays. Its own goes: it moves, and stays there.
		c.endpoints(s, all("a b c d")...)
		for range 20 {
			if v := c.ask(c.hosts[f.from], "tcp", c.hosts[f.from].ips[c.family], f.to, patience); v.pod != first.pod {
				c.t.Fatalf("%s → %s: %s, then %s when others came", f.from, f.to, first, v)
			}
		}
		rest := "c"
		if first.pod == "c" {
			rest = "a"
		}
		c.endpoints(s, all(rest)...)
		c.expect(wish{from: f.from, to: f.to, pods: rest})
		c.remove(s)
	}
}
