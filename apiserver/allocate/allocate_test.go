package allocate

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
)

func cidr(name, block string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{block}}}
}

func newCaches(t testing.TB, blocks ...string) *lookuptest.Caches {
	c := lookuptest.New(t)
	c.AddKind(corev1.SchemeGroupVersion.WithKind("Service"))
	c.AddKind(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"))
	c.AddKind(networkingv1.SchemeGroupVersion.WithKind("IPAddress"))
	for i, b := range blocks {
		c.Create(cidr(fmt.Sprintf("cidr-%d", i), b))
	}
	return c
}

func newAllocator(t testing.TB, c *lookuptest.Caches, change func(*Config)) *Allocator {
	t.Helper()
	cfg := Config{Caches: c, Store: c.Store}
	if change != nil {
		change(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func service(name string, change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"a": "b"},
			Ports: []corev1.ServicePort{{Name: "p", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func nodePort(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }

func create(t testing.TB, a *Allocator, s *corev1.Service) *corev1.Service {
	t.Helper()
	finish, err := a.Hooks().BeginCreate(t.Context(), s, false)
	if err != nil {
		t.Fatal(err)
	}
	finish(t.Context(), true)
	return s
}

func exists(t testing.TB, a *Allocator, ip string) bool {
	t.Helper()
	_, err := lookup.Fresh[*networkingv1.IPAddress](t.Context(), a.caches, ipAddresses, "", ip)
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func TestClusterIP(t *testing.T) {
	c := newCaches(t, "10.96.0.0/24")
	a := newAllocator(t, c, nil)
	s := create(t, a, service("a", nil))
	ip, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil || !netip.MustParsePrefix("10.96.0.16/28").Overlaps(netip.PrefixFrom(ip, 32)) && ip.Less(netip.MustParseAddr("10.96.0.17")) {
		t.Errorf("cluster IP %q is of the lower part, %v", s.Spec.ClusterIP, err)
	}
	if *s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack || len(s.Spec.IPFamilies) != 1 || s.Spec.ClusterIPs[0] != s.Spec.ClusterIP {
		t.Errorf("families %+v", s.Spec)
	}
	obj, err := lookup.Fresh[*networkingv1.IPAddress](t.Context(), c, ipAddresses, "", s.Spec.ClusterIP)
	if err != nil || obj.Spec.ParentRef.Name != "a" || obj.Labels[networkingv1.LabelManagedBy] != "ipallocator.k8s.io" || obj.Labels[networkingv1.LabelIPAddressFamily] != "IPv4" {
		t.Errorf("%+v, %v", obj, err)
	}

	wanted := create(t, a, service("b", func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.5" }))
	if wanted.Spec.ClusterIPs[0] != "10.96.0.5" || !exists(t, a, "10.96.0.5") {
		t.Errorf("wanted address: %+v", wanted.Spec)
	}
	for ip, msg := range map[string]string{
		"10.96.0.5":   `Service "c" is invalid: spec.clusterIPs: Invalid value: ["10.96.0.5"]: failed to allocate IP 10.96.0.5: provided IP is already allocated`,
		"10.97.0.5":   "failed to allocate IP 10.97.0.5: the provided network does not match the current range",
		"10.96.0.255": "the provided network does not match the current range",
		"10.96.0.0":   "the provided network does not match the current range",
		"fd00::1":     "IPv6 is not configured on this cluster",
	} {
		_, err := a.create(t.Context(), service("c", func(s *corev1.Service) { s.Spec.ClusterIP = ip }), false)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), msg) {
			t.Errorf("%s: %v", ip, err)
		}
	}

	// A failed write gives back, a dry run takes nothing.
	s = service("d", nil)
	finish, err := a.create(t.Context(), s, false)
	if err != nil {
		t.Fatal(err)
	}
	finish(t.Context(), false)
	if exists(t, a, s.Spec.ClusterIP) {
		t.Error("a failed create keeps its address")
	}
	s = service("e", nodePort)
	if _, err := a.create(t.Context(), s, true); err != nil || s.Spec.ClusterIP == "" || s.Spec.Ports[0].NodePort == 0 || exists(t, a, s.Spec.ClusterIP) {
		t.Errorf("dry run: %+v, %v", s.Spec, err)
	}

	a.release(t.Context(), wanted)
	if exists(t, a, "10.96.0.5") {
		t.Error("a deleted Service keeps its address")
	}

	for name, change := range map[string]func(*corev1.Service){
		"headless":      func(s *corev1.Service) { s.Spec.ClusterIP = "None" },
		"external name": func(s *corev1.Service) { s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "x" },
	} {
		s := create(t, a, service(name, change))
		if len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] != "None" {
			t.Errorf("%s: %+v", name, s.Spec)
		}
	}
	orphan := create(t, a, service("selectorless", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.Selector = "None", nil }))
	if len(orphan.Spec.IPFamilies) != 2 || *orphan.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyRequireDualStack {
		t.Errorf("selectorless headless: %+v", orphan.Spec)
	}
}

func TestExhaustion(t *testing.T) {
	c := newCaches(t, "10.96.0.0/29") // six addresses
	a := newAllocator(t, c, nil)
	seen := map[string]bool{}
	for i := range 6 {
		seen[create(t, a, service(fmt.Sprint("s", i), nil)).Spec.ClusterIP] = true
	}
	if len(seen) != 6 {
		t.Fatalf("addresses %v", seen)
	}
	if _, err := a.create(t.Context(), service("x", nil), false); err == nil || !strings.Contains(err.Error(), "range is full") {
		t.Errorf("full: %v", err)
	}
	c.Create(cidr("more", "10.97.0.0/29"))
	if s := create(t, a, service("x", nil)); !strings.HasPrefix(s.Spec.ClusterIP, "10.97.") {
		t.Errorf("second range gives %s", s.Spec.ClusterIP)
	}
}

func TestDualStack(t *testing.T) {
	c := newCaches(t, "10.96.0.0/24", "fd00::/112")
	a := newAllocator(t, c, func(c *Config) { c.Families = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} })
	prefer, single := corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicySingleStack
	s := create(t, a, service("a", func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &prefer }))
	if len(s.Spec.ClusterIPs) != 2 || !strings.HasPrefix(s.Spec.ClusterIPs[1], "fd00::") || !exists(t, a, s.Spec.ClusterIPs[1]) {
		t.Fatalf("%+v", s.Spec)
	}
	next := s.DeepCopy()
	next.Spec.IPFamilyPolicy = &single
	finish, err := a.update(t.Context(), next, s, false)
	if err != nil {
		t.Fatal(err)
	}
	finish(t.Context(), true)
	if len(next.Spec.ClusterIPs) != 1 || exists(t, a, s.Spec.ClusterIPs[1]) || !exists(t, a, s.Spec.ClusterIP) {
		t.Errorf("downgrade: %+v", next.Spec)
	}
}

func TestNodePorts(t *testing.T) {
	c := newCaches(t, "10.96.0.0/24")
	small := func(c *Config) { c.NodePorts = utilnet.PortRange{Base: 30000, Size: 4} }
	a, other := newAllocator(t, c, small), newAllocator(t, c, small)
	s := create(t, a, service("a", func(s *corev1.Service) {
		nodePort(s)
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP})
	}))
	if s.Spec.Ports[0].NodePort == 0 || s.Spec.Ports[0].NodePort != s.Spec.Ports[1].NodePort {
		t.Errorf("ports of one number do not share: %+v", s.Spec.Ports)
	}
	taken := s.Spec.Ports[0].NodePort
	_, err := other.create(t.Context(), service("b", func(s *corev1.Service) { nodePort(s); s.Spec.Ports[0].NodePort = taken }), false)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "provided port is already allocated") {
		t.Errorf("taken port: %v", err)
	}
	_, err = other.create(t.Context(), service("b", func(s *corev1.Service) { nodePort(s); s.Spec.Ports[0].NodePort = 80 }), false)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "The range of valid ports is 30000-30003") {
		t.Errorf("port out of range: %v", err)
	}
	for i := range 3 {
		create(t, other, service(fmt.Sprint("c", i), nodePort))
	}
	if _, err := a.create(t.Context(), service("d", nodePort), false); err == nil || !strings.Contains(err.Error(), "range is full") {
		t.Errorf("full: %v", err)
	}
	// Back to ClusterIP: the port is free again, the address stays.
	next := s.DeepCopy()
	next.Spec.Type = corev1.ServiceTypeClusterIP
	finish, err := a.update(t.Context(), next, s, false)
	if err != nil {
		t.Fatal(err)
	}
	finish(t.Context(), true)
	if d := create(t, other, service("d", nodePort)); d.Spec.Ports[0].NodePort != taken {
		t.Errorf("the freed port is not given again: %+v", d.Spec.Ports)
	}
	// An update that leaves them out keeps address and port.
	c0 := create(t, newAllocator(t, newCaches(t, "10.96.0.0/24"), nil), service("e", nodePort))
	bare := service("e", nodePort)
	if _, err := newAllocator(t, newCaches(t, "10.96.0.0/24"), nil).update(t.Context(), bare, c0, false); err != nil {
		t.Fatal(err)
	}
	if bare.Spec.ClusterIP != c0.Spec.ClusterIP || bare.Spec.Ports[0].NodePort != c0.Spec.Ports[0].NodePort {
		t.Errorf("kept %+v, want %+v", bare.Spec, c0.Spec)
	}
}

func TestConcurrentServers(t *testing.T) {
	c := newCaches(t, "10.96.0.0/24")
	servers := []*Allocator{newAllocator(t, c, nil), newAllocator(t, c, nil), newAllocator(t, c, nil)}
	var mu sync.Mutex
	ips, ports := map[string]int{}, map[int32]int{}
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			s := service(fmt.Sprint("s", i), nodePort)
			finish, err := servers[i%3].create(context.Background(), s, false)
			if err != nil {
				t.Error(err)
				return
			}
			finish(context.Background(), true)
			mu.Lock()
			defer mu.Unlock()
			ips[s.Spec.ClusterIP]++
			ports[s.Spec.Ports[0].NodePort]++
		})
	}
	wg.Wait()
	if len(ips) != 60 || len(ports) != 60 {
		t.Errorf("%d addresses and %d ports for 60 Services", len(ips), len(ports))
	}
	// What one took another gives back, though it has not heard of it yet.
	for port := range ports {
		if err := servers[1].ports.release(t.Context(), []int32{port}); err != nil {
			t.Fatal(err)
		}
		s := service("again", func(s *corev1.Service) { nodePort(s); s.Spec.Ports[0].NodePort = port })
		if _, err := servers[2].create(t.Context(), s, false); err != nil {
			t.Errorf("port %d is not free again: %v", port, err)
		}
	}
}

func TestRepair(t *testing.T) {
	c := newCaches(t, "10.96.0.0/24")
	clk := clocktesting.NewFakeClock(time.Now())
	a := newAllocator(t, c, func(c *Config) { c.Clock = clk })
	lost := service("lost", func(s *corev1.Service) {
		nodePort(s)
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.9", []string{"10.96.0.9"}
		s.Spec.Ports[0].NodePort = 30009
	})
	c.Create(lost)
	orphan := create(t, a, service("orphan", nodePort)) // never stored
	if err := a.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !exists(t, a, "10.96.0.9") {
		t.Error("the address of a Service is not allocated again")
	}
	if _, err := a.create(t.Context(), service("x", func(s *corev1.Service) { nodePort(s); s.Spec.Ports[0].NodePort = 30009 }), false); err == nil {
		t.Error("the port of a Service is not allocated again")
	}
	if !exists(t, a, orphan.Spec.ClusterIP) {
		t.Error("a fresh address without Service is freed at once")
	}
	clk.Step(orphanAge + time.Second)
	if err := a.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exists(t, a, orphan.Spec.ClusterIP) {
		t.Error("an old address without Service stays")
	}
	port := orphan.Spec.Ports[0].NodePort
	create(t, a, service("y", func(s *corev1.Service) { nodePort(s); s.Spec.Ports[0].NodePort = port }))
}
