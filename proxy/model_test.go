package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

func TestPorts(t *testing.T) {
	ep := func(ip, node string, ready, serving, terminating bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}}
	}
	slice := func(port int32, eps ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{Endpoints: eps, Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: &port},
			{Name: ptr.To("other"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(port + 1)}}}
	}
	up := func(ip, node string) discoveryv1.Endpoint { return ep(ip, node, true, true, false) }
	service := func(change func(*corev1.ServiceSpec)) *corev1.Service {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30001}}}}
		change(&s.Spec)
		return s
	}
	hinted := func(e discoveryv1.Endpoint, nodes, zones string) discoveryv1.Endpoint {
		e.Hints = &discoveryv1.EndpointHints{}
		for _, n := range strings.Fields(nodes) {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
		}
		for _, z := range strings.Fields(zones) {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
		}
		return e
	}
	same := func(*corev1.ServiceSpec) {}
	local := corev1.ServiceInternalTrafficPolicyLocal
	for _, c := range []struct {
		name               string
		svc                *corev1.Service
		slices             []*discoveryv1.EndpointSlice
		internal, external []string
		check              func(Port) bool
	}{
		{name: "endpoints of several slices, each its own port", svc: service(same),
			slices:   []*discoveryv1.EndpointSlice{slice(8081, up("10.1.0.2", "b")), slice(8080, up("10.1.0.1", "a"), up("10.1.0.1", "a"))},
			internal: []string{"10.1.0.1:8080", "10.1.0.2:8081"}, external: []string{"10.1.0.1:8080", "10.1.0.2:8081"}},
		{name: "not ready ones get nothing", svc: service(same),
			slices:   []*discoveryv1.EndpointSlice{slice(80, up("10.1.0.1", "a"), ep("10.1.0.2", "a", false, false, false))},
			internal: []string{"10.1.0.1:80"}, external: []string{"10.1.0.1:80"}},
		{name: "only leaving ones: better than none", svc: service(same),
			slices:   []*discoveryv1.EndpointSlice{slice(80, ep("10.1.0.2", "a", false, true, true), ep("10.1.0.3", "a", false, false, true))},
			internal: []string{"10.1.0.2:80"}, external: []string{"10.1.0.2:80"}},
		{name: "externalTrafficPolicy Local", svc: service(func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }),
			slices:   []*discoveryv1.EndpointSlice{slice(80, up("10.1.0.1", "a"), up("10.1.0.2", "b"))},
			internal: []string{"10.1.0.1:80", "10.1.0.2:80"}, external: []string{"10.1.0.1:80"},
			check: func(p Port) bool { return p.ExternalLocal && len(p.Cluster) == 2 }},
		{name: "internalTrafficPolicy Local", svc: service(func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &local }),
			slices:   []*discoveryv1.EndpointSlice{slice(80, up("10.1.0.1", "a"), up("10.1.0.2", "b"))},
			internal: []string{"10.1.0.1:80"}, external: []string{"10.1.0.1:80", "10.1.0.2:80"}},
		{name: "hints for this node", svc: service(same),
			slices:   []*discoveryv1.EndpointSlice{slice(80, hinted(up("10.1.0.1", "a"), "a", "z1"), hinted(up("10.1.0.2", "b"), "b", "z1"))},
			internal: []string{"10.1.0.1:80"}, external: []string{"10.1.0.1:80"}},
		{name: "hints for its zone, none for it", svc: service(same),
			slices:   []*discoveryv1.EndpointSlice{slice(80, hinted(up("10.1.0.2", "b"), "b", "z0 z1"), hinted(up("10.1.0.3", "c"), "c", "z2"))},
			internal: []string{"10.1.0.2:80"}, external: []string{"10.1.0.2:80"}},
		{name: "an endpoint without hints: no hints", svc: service(same),
			slices:   []*discoveryv1.EndpointSlice{slice(80, hinted(up("10.1.0.1", "a"), "a", "z1"), up("10.1.0.2", "b"))},
			internal: []string{"10.1.0.1:80", "10.1.0.2:80"}, external: []string{"10.1.0.1:80", "10.1.0.2:80"}},
		{name: "hints for others only: no hints", svc: service(same),
			slices:   []*discoveryv1.EndpointSlice{slice(80, hinted(up("10.1.0.2", "b"), "b", "z2"))},
			internal: []string{"10.1.0.2:80"}, external: []string{"10.1.0.2:80"}},
		{name: "policy Local knows no hints", svc: service(func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &local }),
			slices:   []*discoveryv1.EndpointSlice{slice(80, hinted(up("10.1.0.1", "a"), "", "z2"), hinted(up("10.1.0.2", "b"), "", "z1"))},
			internal: []string{"10.1.0.1:80"}, external: []string{"10.1.0.2:80"}},
		{name: "affinity without a timeout", svc: service(func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP }),
			check: func(p Port) bool { return p.Affinity == 3*time.Hour }},
		{name: "a load balancer's address", svc: func() *corev1.Service {
			s := service(func(s *corev1.ServiceSpec) {
				s.Type, s.ExternalIPs = corev1.ServiceTypeLoadBalancer, []string{"192.0.2.1"}
			})
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.2"}, {Hostname: "x"}, {IP: "192.0.2.3", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)}}
			return s
		}(), check: func(p Port) bool {
			return slices.Equal(p.ExternalIPs, []netip.Addr{netip.MustParseAddr("192.0.2.1")}) && slices.Equal(p.LoadBalancerIPs, []netip.Addr{netip.MustParseAddr("192.0.2.2")})
		}},
		{name: "a Local policy without endpoints here", svc: service(func(s *corev1.ServiceSpec) {
			s.InternalTrafficPolicy, s.ExternalTrafficPolicy = &local, corev1.ServiceExternalTrafficPolicyLocal
		}),
			slices: []*discoveryv1.EndpointSlice{slice(80, up("10.1.0.2", "b"))},
			check:  func(p Port) bool { return p.Endpoints && len(p.Cluster) == 1 && len(p.Here) == 0 }},
		{name: "leaving ones here, ready ones elsewhere", svc: service(func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }),
			slices:   []*discoveryv1.EndpointSlice{slice(80, ep("10.1.0.1", "a", false, true, true), up("10.1.0.2", "b"))},
			internal: []string{"10.1.0.2:80"}, external: []string{"10.1.0.1:80"}},
		{name: "only the cluster IP's policy counts for one that has nothing else", svc: service(func(s *corev1.ServiceSpec) {
			s.InternalTrafficPolicy, s.Ports[0].NodePort = &local, 0
		}),
			slices:   []*discoveryv1.EndpointSlice{slice(80, up("10.1.0.1", "a"), up("10.1.0.2", "b"))},
			internal: []string{"10.1.0.1:80"}, check: func(p Port) bool { return !p.External() && len(p.Cluster) == 0 }},
		{name: "endpoints of the other family are not its own", svc: service(same),
			slices: []*discoveryv1.EndpointSlice{{AddressType: discoveryv1.AddressTypeIPv6, Endpoints: []discoveryv1.Endpoint{up("fd00::1", "a")},
				Ports: slice(80).Ports}},
			check: func(p Port) bool { return !p.Endpoints }},
		{name: "source ranges", svc: func() *corev1.Service {
			s := service(func(s *corev1.ServiceSpec) {
				s.Type, s.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{" 10.2.0.0/16", "10.1.2.0/24", "10.2.3.0/24 ", "fd00::/8"}
			})
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.2"}}
			return s
		}(), check: func(p Port) bool {
			return slices.Equal(p.Sources, []netip.Prefix{netip.MustParsePrefix("10.1.2.0/24"), netip.MustParsePrefix("10.2.0.0/16")})
		}},
		{name: "flows go on with what serves", svc: service(func(s *corev1.ServiceSpec) { s.Ports[0].Protocol, s.Ports[0].Name = corev1.ProtocolUDP, "dns" }),
			slices: []*discoveryv1.EndpointSlice{{Endpoints: []discoveryv1.Endpoint{up("10.1.0.1", "a"), ep("10.1.0.2", "a", false, true, true), ep("10.1.0.3", "a", false, false, true)},
				Ports: []discoveryv1.EndpointPort{{Name: ptr.To("dns"), Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To[int32](53)}}}},
			internal: []string{"10.1.0.1:53"}, external: []string{"10.1.0.1:53"},
			check: func(p Port) bool { return len(p.Serving) == 2 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ports(c.svc, c.slices, where{"a", "z1"})
			if len(got) != 1 {
				t.Fatalf("%d ports", len(got))
			}
			text := func(eps []netip.AddrPort) (out []string) {
				for _, e := range eps {
					out = append(out, e.String())
				}
				return out
			}
			if in, ex := text(got[0].Internal()), text(got[0].Outside()); !slices.Equal(in, c.internal) || !slices.Equal(ex, c.external) {
				t.Errorf("internal %v, external %v; want %v, %v", in, ex, c.internal, c.external)
			}
			if c.check != nil && !c.check(got[0]) {
				t.Errorf("got %+v", got[0])
			}
		})
	}
	for name, s := range map[string]*corev1.Service{
		"headless": service(func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone }),
		"external": service(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeExternalName }),
		"another proxy's": func() *corev1.Service {
			s := service(same)
			s.Labels = map[string]string{proxyNameLabel: "other"}
			return s
		}(),
		"gone": nil,
	} {
		if got := ports(s, nil, where{node: "a"}); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
