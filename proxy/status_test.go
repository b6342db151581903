package proxy

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// recorded is a backend that remembers what it was told.
type recorded struct {
	applied []map[string][]Port
	err     error
}

func (r *recorded) Apply(changed map[string][]Port) error {
	if r.err != nil {
		return r.err
	}
	r.applied = append(r.applied, changed)
	return nil
}

func (r *recorded) NodePortAddresses(bool) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

type fixture struct {
	*Proxy
	clock   *clocktesting.FakeClock
	backend *recorded
	flows   []netlink.Flow // tracked
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{clock: clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), backend: &recorded{}}
	var err error
	f.Proxy, err = New(Config{NodeName: "a", Informers: informers.NewSharedInformerFactory(nil, 0), Backend: f.backend,
		Families: []corev1.IPFamily{corev1.IPv4Protocol}, Clock: f.clock, Logger: slog.New(slog.DiscardHandler),
		DeleteFlows: func(match func(netlink.Flow) bool, kinds ...netlink.FlowKind) (int, error) {
			before := len(f.flows)
			f.flows = slices.DeleteFunc(f.flows, func(g netlink.Flow) bool {
				return slices.Contains(kinds, netlink.FlowKind{V6: g.Original.Addr().Is6(), Protocol: g.Protocol}) && match(g)
			})
			return before - len(f.flows), nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// put enters objects as informers do.
func (f *fixture) put(t testing.TB, objs ...any) {
	t.Helper()
	for _, o := range objs {
		in := f.svcs
		if _, ok := o.(*discoveryv1.EndpointSlice); ok {
			in = f.slices
		}
		if err := in.Update(o); err != nil {
			t.Fatal(err)
		}
		f.touch(o, false)
	}
}

func (f *fixture) get(path string) (int, string) {
	w := httptest.NewRecorder()
	f.Health().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func service1(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}, ExternalIPs: []string{"192.0.2.1"},
		Ports: []corev1.ServicePort{{Name: "u", Protocol: corev1.ProtocolUDP, Port: 53, NodePort: 30053}}}}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.2"}}
	if change != nil {
		change(s)
	}
	return s
}

func slice1(ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("u"), Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To[int32](5353)}}}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: ptr.To("b")})
	}
	return s
}

func TestHealth(t *testing.T) {
	f := newFixture(t)
	node := &corev1.Node{}
	check := func(when string, healthz, livez int) {
		t.Helper()
		if code, body := f.get("/healthz"); code != healthz || !strings.Contains(body, `"nodeEligible":`) {
			t.Errorf("%s: /healthz %d %s, want %d", when, code, body, healthz)
		}
		if code, body := f.get("/livez"); code != livez || strings.Contains(body, "nodeEligible") {
			t.Errorf("%s: /livez %d %s, want %d", when, code, body, livez)
		}
	}
	check("no node is known", 503, 200)
	f.SetNode(node)
	check("starting", 200, 200)
	if err := f.sync(true); err != nil {
		t.Fatal(err)
	}
	_, body := f.get("/healthz")
	want := `{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-02T03:04:05Z","nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-02T03:04:05Z","healthy":true}}}`
	if body != want {
		t.Errorf("healthy: %s, want %s", body, want)
	}
	f.clock.Step(time.Hour)
	check("nothing to do for long", 200, 200)
	f.put(t, service1(nil))
	f.clock.Step(lateAfter)
	check("a change waits for too long", 503, 503)
	if err := f.sync(false); err != nil {
		t.Fatal(err)
	}
	check("it is programmed", 200, 200)
	node.Spec.Taints = []corev1.Taint{{Key: deletionTaint, Effect: corev1.TaintEffectNoSchedule}}
	f.SetNode(node)
	check("the autoscaler is about to delete the node", 503, 200)
	f.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: f.clock.Now()}}})
	check("it is being deleted", 503, 200)
	f.SetNode(nil)
	check("it is gone", 503, 200)
}

func TestMetrics(t *testing.T) {
	f := newFixture(t)
	f.put(t, service1(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }))
	s := slice1("10.1.0.1")
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: f.clock.Now().Add(time.Second).Format(time.RFC3339Nano)}
	f.put(t, s)
	f.clock.Step(3 * time.Second)
	if err := f.sync(true); err != nil {
		t.Fatal(err)
	}
	f.put(t, slice1("10.1.0.2"))
	if err := f.sync(false); err != nil {
		t.Fatal(err)
	}
	f.put(t, slice1("10.1.0.3"))
	f.backend.err = http.ErrBodyNotAllowed // any
	if err := f.sync(false); err == nil {
		t.Fatal("no error of the backend")
	}
	var b bytes.Buffer
	if err := f.WriteMetrics(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2`,
		`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
		`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="1"} 0`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="2"} 1`,
		`kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"} 2`,
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 1`,
		`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 0`,
		`kubeproxy_sync_proxy_rules_endpoint_changes_total 3`,
		`kubeproxy_sync_proxy_rules_endpoint_changes_pending 1`,
		`kubeproxy_sync_proxy_rules_service_changes_pending 0`,
		`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 1`,
		`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1.767323048e+09`,
		`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.767323048e+09`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no line %s in\n%s", want, &b)
		}
	}
	f.backend.err = nil
	if err := f.sync(false); err != nil || len(f.backend.applied) != 3 {
		t.Errorf("what failed is not tried again: %v, %d times applied", err, len(f.backend.applied))
	}
}

func TestFlows(t *testing.T) {
	own, err := localAddresses()
	if err != nil || len(own) == 0 {
		t.Skipf("the host has no address to reach a node port at: %v", err)
	}
	var here netip.Addr
	for a := range own {
		if a.Is4() {
			here = a
		}
	}
	ap := netip.MustParseAddrPort
	udp := func(to, answers string) netlink.Flow {
		return netlink.Flow{Protocol: 17, Original: ap(to), Answers: ap(answers)}
	}
	at := netip.AddrPortFrom(here, 30053).String()
	f := newFixture(t)
	f.put(t, service1(nil), slice1("10.1.0.1", "10.1.0.2"))
	if err := f.sync(true); err != nil {
		t.Fatal(err)
	}
	stay := []netlink.Flow{
		udp("10.96.0.9:53", "10.1.0.2:5353"), udp(at, "10.1.0.2:5353"), // they go on
		udp("10.96.0.9:54", "10.1.0.1:5353"), udp("10.96.0.8:53", "10.1.0.1:5353"), // another port, another Service
		udp("198.51.100.1:30053", "198.51.100.1:30053"),                           // another host's port
		{Protocol: 6, Original: ap("10.96.0.9:53"), Answers: ap("10.1.0.1:5353")}, // TCP
	}
	f.flows = append([]netlink.Flow{
		udp("10.96.0.9:53", "10.1.0.1:5353"), udp("192.0.2.1:53", "10.1.0.1:5353"), udp("192.0.2.2:53", "10.1.0.1:5353"), udp(at, "10.1.0.1:5353"),
		udp("192.0.2.1:53", "192.0.2.1:53"), udp(at, at), // sent there in vain
	}, stay...)
	f.put(t, slice1("10.1.0.2"))
	if err := f.sync(false); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.flows, stay) {
		t.Errorf("left %v, want %v", f.flows, stay)
	}
	f.flows = slices.Clone(stay)
	if err := f.svcs.Delete(service1(nil)); err != nil {
		t.Fatal(err)
	}
	f.touch(service1(nil), true)
	if err := f.sync(false); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.flows, stay[2:]) {
		t.Errorf("the Service is gone: left %v, want %v", f.flows, stay[2:])
	}
}

// TestReportIsJSON keeps the answer's fields under upstream's names.
func TestReportIsJSON(t *testing.T) {
	f := newFixture(t)
	_, body := f.get("/healthz")
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil || got["healthy"] != true || got["nodeEligible"] != false {
		t.Errorf("%s: %v", body, err)
	}
}

func BenchmarkTenThousandServices(b *testing.B) {
	f := newFixture(b)
	b.Run("decide", func(b *testing.B) {
		for i := range 10_000 {
			name := "web-" + time.Duration(i).String()
			svc := service1(func(s *corev1.Service) { s.Name, s.Spec.Ports[0].Protocol = name, corev1.ProtocolTCP })
			s := slice1("10.1.0.1", "10.1.0.2", "10.1.0.3")
			s.Name, s.Labels = name, map[string]string{discoveryv1.LabelServiceName: name}
			s.Ports[0].Protocol = ptr.To(corev1.ProtocolTCP)
			f.put(b, svc, s)
		}
		b.ReportAllocs()
		for b.Loop() {
			for _, key := range f.svcs.ListKeys() {
				f.dirty[key] = &dirt{}
			}
			clear(f.current)
			f.backend.applied = nil
			if err := f.sync(true); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("one endpoint", func(b *testing.B) {
		name := "web-" + time.Duration(77).String()
		ips := [2][]string{{"10.1.0.1", "10.1.0.2"}, {"10.1.0.1", "10.1.0.3"}}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			s := slice1(ips[i%2]...)
			s.Name, s.Labels = name, map[string]string{discoveryv1.LabelServiceName: name}
			s.Ports[0].Protocol = ptr.To(corev1.ProtocolTCP)
			f.put(b, s)
			f.backend.applied = nil
			if err := f.sync(false); err != nil {
				b.Fatal(err)
			}
		}
	})
}
