package dns

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

func cluster() *fake.Clientset {
	meta := func(ns, name string, l ...string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: ns, Name: name}
		if len(l) > 0 {
			m.Labels = map[string]string{discoveryv1.LabelServiceName: l[0]}
		}
		return m
	}
	ready := func(host string, ok bool, ip string) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ok}}
		if host != "" {
			e.Hostname = &host
		}
		return e
	}
	http := []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(8080))}}
	return fake.NewClientset(
		&corev1.Service{ObjectMeta: meta("default", "web"), Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.3.4", ClusterIPs: []string{"10.96.3.4", "fd00::34"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}}},
		&corev1.Service{ObjectMeta: meta("default", "db"), Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}}},
		&corev1.Service{ObjectMeta: meta("default", "early"), Spec: corev1.ServiceSpec{ClusterIP: "None", PublishNotReadyAddresses: true}},
		&corev1.Service{ObjectMeta: meta("default", "out"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web.default.svc.cluster.local"}},
		&discoveryv1.EndpointSlice{ObjectMeta: meta("default", "db-1", "db"), Ports: http, Endpoints: []discoveryv1.Endpoint{
			ready("db-0", true, "10.244.0.7"), ready("", true, "10.244.0.8"), ready("db-2", false, "10.244.0.9")}},
		&discoveryv1.EndpointSlice{ObjectMeta: meta("default", "early-1", "early"), Endpoints: []discoveryv1.Endpoint{ready("", false, "10.244.0.9")}},
	)
}

func start(t *testing.T, upstreams ...string) string {
	t.Helper()
	f := informers.NewSharedInformerFactory(cluster(), 0)
	s, err := New(Config{Domain: "cluster.local", Informers: f, Upstreams: upstreams, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	f.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), s.synced...) {
		t.Fatal("informers did not sync")
	}
	l, err := s.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestAnswers(t *testing.T) {
	addr := start(t)
	for _, c := range []struct {
		name  string
		qtype uint16
		rcode int
		want  []string // the data of each answer
	}{
		{"web.default.svc.cluster.local.", dns.TypeA, 0, []string{"10.96.3.4"}},
		{"WEB.default.svc.CLUSTER.local.", dns.TypeA, 0, []string{"10.96.3.4"}},
		{"web.default.svc.cluster.local.", dns.TypeAAAA, 0, []string{"fd00::34"}},
		{"web.default.svc.cluster.local.", dns.TypeMX, 0, nil},
		{"_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, 0, []string{"0 100 80 web.default.svc.cluster.local."}},
		{"_smtp._tcp.web.default.svc.cluster.local.", dns.TypeSRV, dns.RcodeNameError, nil},
		{"db.default.svc.cluster.local.", dns.TypeA, 0, []string{"10.244.0.7", "10.244.0.8"}},
		{"db-0.db.default.svc.cluster.local.", dns.TypeA, 0, []string{"10.244.0.7"}},
		{"10-244-0-8.db.default.svc.cluster.local.", dns.TypeA, 0, []string{"10.244.0.8"}},
		{"db-2.db.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil},
		{"early.default.svc.cluster.local.", dns.TypeA, 0, []string{"10.244.0.9"}},
		{"_http._tcp.db.default.svc.cluster.local.", dns.TypeSRV, 0, []string{
			"0 100 8080 10-244-0-8.db.default.svc.cluster.local.", "0 100 8080 db-0.db.default.svc.cluster.local."}},
		{"out.default.svc.cluster.local.", dns.TypeA, 0, []string{"10.96.3.4", "web.default.svc.cluster.local."}},
		{"nothing.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil},
		{"default.svc.cluster.local.", dns.TypeA, 0, nil},
		{"other.svc.cluster.local.", dns.TypeA, dns.RcodeNameError, nil},
		{"10-244-0-99.default.pod.cluster.local.", dns.TypeA, 0, []string{"10.244.0.99"}},
		{"dns-version.cluster.local.", dns.TypeTXT, 0, []string{`"1.1.0"`}},
		{"4.3.96.10.in-addr.arpa.", dns.TypePTR, 0, []string{"web.default.svc.cluster.local."}},
		{"7.0.244.10.in-addr.arpa.", dns.TypePTR, 0, []string{"db-0.db.default.svc.cluster.local."}},
		{"example.org.", dns.TypeA, dns.RcodeServerFailure, nil}, // no upstream
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(c.name+dns.TypeToString[c.qtype]+"/"+network, func(t *testing.T) {
				got, _, err := (&dns.Client{Net: network, Timeout: time.Minute}).Exchange(new(dns.Msg).SetQuestion(c.name, c.qtype), addr)
				if err != nil {
					t.Fatal(err)
				}
				var data []string
				for _, rr := range got.Answer {
					data = append(data, rr.String()[len(rr.Header().String()):])
				}
				slices.Sort(data)
				if got.Rcode != c.rcode || !slices.Equal(data, c.want) {
					t.Errorf("got %s %q, want %s %q", dns.RcodeToString[got.Rcode], data, dns.RcodeToString[c.rcode], c.want)
				}
			})
		}
	}
}

func TestForward(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	up := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 1)}}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = up.ActivateAndServe() }()
	t.Cleanup(func() { _ = pc.Close() })
	addr := start(t, "127.0.0.1:1", pc.LocalAddr().String()) // the first upstream is dead
	got, _, err := (&dns.Client{Timeout: time.Minute}).Exchange(new(dns.Msg).SetQuestion("example.org.", dns.TypeA), addr)
	if err != nil || len(got.Answer) != 1 {
		t.Fatalf("got %v, %v; want the upstream's answer", got, err)
	}
}

func FuzzRespond(f *testing.F) {
	fac := informers.NewSharedInformerFactory(cluster(), 0)
	s, err := New(Config{Domain: "cluster.local", Informers: fac, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("web.default.svc.cluster.local.", uint16(1))
	f.Add("1.0.0.0.ip6.arpa.", uint16(12))
	f.Fuzz(func(t *testing.T, name string, qtype uint16) {
		r := new(dns.Msg).SetQuestion(name, qtype)
		if _, err := s.respond(r, "udp").Pack(); err != nil {
			if _, bad := r.Pack(); bad == nil {
				t.Errorf("answer to %q cannot be packed: %v", name, err)
			}
		}
	})
}
