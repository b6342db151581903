package addons

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// node serves DNS at the first address of each of its pod CIDRs.
func node(name string, cidrs ...string) *corev1.Node {
	n := plain(name, cidrs...)
	var addrs []string
	for _, c := range cidrs {
		addrs = append(addrs, netip.MustParsePrefix(c).Addr().Next().String())
	}
	n.Annotations = map[string]string{DNSAnnotation: strings.Join(addrs, ",")}
	return n
}

// plain is a node that serves no DNS, as another's kubelet.
func plain(name string, cidrs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
}

// TestDNSOfNodesThatServe: an endpoint is where a node listens, and nowhere else.
func TestDNSOfNodesThatServe(t *testing.T) {
	for _, c := range []struct {
		name, says string
		cidrs      []string
		v4, v6     string
	}{
		{name: "another's kubelet", cidrs: []string{"10.244.1.0/24"}},
		{name: "no pod CIDR", says: "10.244.1.1"},
		{name: "one family", says: "10.244.1.1", cidrs: []string{"10.244.1.0/24"}, v4: "10.244.1.1"},
		{name: "both", says: "fd00:1::1,10.244.1.1", cidrs: []string{"10.244.1.0/24", "fd00:1::/64"}, v4: "10.244.1.1", v6: "fd00:1::1"},
		{name: "one of both", says: "10.244.1.1", cidrs: []string{"10.244.1.0/24", "fd00:1::/64"}, v4: "10.244.1.1"},
		{name: "another node's address", says: "10.244.2.1", cidrs: []string{"10.244.1.0/24"}},
		{name: "an outsider's before its own", says: "192.0.2.1,10.244.1.9", cidrs: []string{"10.244.1.0/24"}, v4: "10.244.1.9"},
		{name: "no addresses", says: "yes", cidrs: []string{"10.244.1.0/24"}},
	} {
		n := plain("n", c.cidrs...)
		if c.says != "" {
			n.Annotations = map[string]string{DNSAnnotation: c.says}
		}
		for family, want := range map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: c.v4, discoveryv1.AddressTypeIPv6: c.v6} {
			got := ""
			if e := endpointOf(n, family); e != nil {
				got = strings.Join(e.Addresses, ",")
			}
			if got != want {
				t.Errorf("%s: %s endpoint %q, want %q", c.name, family, got, want)
			}
		}
	}
}

// TestDNSPrefersTheOwnNode: proxies go by hints, which all endpoints must have; who has no server of
// its own is led to those that are heard of.
func TestDNSPrefersTheOwnNode(t *testing.T) {
	heard, gone, zoned := node("heard", "10.244.0.0/24"), node("gone", "10.244.1.0/24"), node("zoned", "10.244.2.0/24")
	ready := func(s corev1.ConditionStatus) []corev1.NodeCondition {
		return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: s}}
	}
	heard.Status.Conditions, gone.Status.Conditions = ready(corev1.ConditionFalse), ready(corev1.ConditionUnknown)
	zoned.Labels = map[string]string{corev1.LabelTopologyZone: "z"}
	for _, c := range []struct {
		nodes []*corev1.Node
		ready []bool
	}{
		{[]*corev1.Node{heard, gone, zoned, plain("others", "10.244.9.0/24")}, []bool{true, false, true}},
		{[]*corev1.Node{gone}, []bool{true}}, // better than none
		{[]*corev1.Node{gone, plain("others", "10.244.9.0/24")}, []bool{true}},
	} {
		var got []bool
		for _, e := range endpointSlices(c.nodes, []netip.Addr{netip.MustParseAddr("10.96.0.10")})[0].Endpoints {
			got = append(got, *e.Conditions.Ready)
			if e.Hints == nil || len(e.Hints.ForNodes) != 1 || e.Hints.ForNodes[0].Name != *e.NodeName {
				t.Errorf("%s: hints are %v", *e.NodeName, e.Hints)
			}
			if zone := len(e.Hints.ForZones) == 1 && e.Hints.ForZones[0].Name == "z"; zone != (*e.NodeName == "zoned") {
				t.Errorf("%s: hints of zones are %v", *e.NodeName, e.Hints.ForZones)
			}
		}
		if !slices.Equal(got, c.ready) {
			t.Errorf("%d nodes: ready %v, want %v", len(c.nodes), got, c.ready)
		}
	}
}

func TestDNSFollowsNodes(t *testing.T) {
	client := fake.NewClientset(node("a", "10.244.0.0/24"), plain("new"), node("six", "fd00::/64"), plain("others", "10.244.9.0/24"))
	f := informers.NewSharedInformerFactory(client, 0)
	d, err := NewDNS(DNSConfig{Client: client, Informers: f, ServiceIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	written := client.DiscoveryV1().EndpointSlices("kube-system")
	want := func(addrs ...string) {
		t.Helper()
		for ctx.Err() == nil {
			w, err := written.Watch(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			s, err := written.Get(ctx, "kube-dns", metav1.GetOptions{})
			if err == nil {
				var got []string
				for _, e := range s.Endpoints {
					got = append(got, e.Addresses...)
				}
				if len(got) == len(addrs) {
					for i := range got {
						if got[i] != addrs[i] {
							t.Fatalf("endpoints %v, want %v", got, addrs)
						}
					}
					w.Stop()
					return
				}
			}
			select {
			case <-w.ResultChan():
			case <-ctx.Done():
			}
			w.Stop()
		}
		t.Fatalf("endpoints never became %v", addrs)
	}
	want("10.244.0.1")
	if _, err := client.CoreV1().Nodes().Create(ctx, node("b", "10.244.1.0/24"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want("10.244.0.1", "10.244.1.1")
	late := plain("late", "10.244.2.0/24")
	if _, err := client.CoreV1().Nodes().Create(ctx, late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	late.Annotations = map[string]string{DNSAnnotation: "10.244.2.1"}
	if _, err := client.CoreV1().Nodes().Update(ctx, late, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	want("10.244.0.1", "10.244.1.1", "10.244.2.1")
	if _, err := client.CoreV1().Nodes().Update(ctx, plain("late", "10.244.2.0/24"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	want("10.244.0.1", "10.244.1.1")
	if err := client.CoreV1().Nodes().Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want("10.244.1.1")
	svc, err := client.CoreV1().Services("kube-system").Get(ctx, "kube-dns", metav1.GetOptions{})
	if err != nil || svc.Spec.ClusterIP != "10.96.0.10" {
		t.Fatalf("service %v, %v", svc, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestManyNodesTakeManySlices: none is larger than allowed, a node more changes one slice, and
// those that are no longer needed go.
func TestManyNodesTakeManySlices(t *testing.T) {
	nodes := func(n int) (all []*corev1.Node) {
		for i := range n {
			all = append(all, node(fmt.Sprintf("n%d", i), fmt.Sprintf("10.%d.%d.0/24", 128+i/256, i%256)))
		}
		return all
	}
	ips := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")}
	before, after := endpointSlices(nodes(1250), ips[:1]), endpointSlices(nodes(1251), ips[:1])
	if len(before) != 13 || before[0].Name != "kube-dns" || before[12].Name != "kube-dns-12" {
		t.Fatalf("%d slices", len(before))
	}
	total, changed := 0, 0
	for i := range after {
		total += len(after[i].Endpoints)
		if len(after[i].Endpoints) > sliceSize {
			t.Errorf("%s has %d endpoints", after[i].Name, len(after[i].Endpoints))
		}
		if !equality.Semantic.DeepEqual(before[i], after[i]) {
			changed++
		}
	}
	if total != 1251 || changed != 1 {
		t.Errorf("%d endpoints, %d slices changed by one node more", total, changed)
	}
	if none := endpointSlices(nil, ips[:1]); len(none) != 1 {
		t.Errorf("without nodes: %d slices, want an empty one", len(none))
	}
	dual := node("dual", "10.244.1.0/24", "fd00:244:0:1::/64")
	both := endpointSlices([]*corev1.Node{dual}, ips)
	if len(both) != 2 || both[0].AddressType != discoveryv1.AddressTypeIPv4 || both[1].AddressType != discoveryv1.AddressTypeIPv6 ||
		both[0].Endpoints[0].Addresses[0] != "10.244.1.1" || both[1].Endpoints[0].Addresses[0] != "fd00:244:0:1::1" {
		t.Errorf("of both families: %+v", both)
	}

	client := fake.NewClientset()
	f := informers.NewSharedInformerFactory(client, 0)
	d, err := NewDNS(DNSConfig{Client: client, Informers: f, ServiceIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{250, 120, 0} {
		store := f.Core().V1().Nodes().Informer().GetStore()
		var objects []any
		for _, o := range nodes(n) {
			objects = append(objects, o)
		}
		if err := store.Replace(objects, ""); err != nil {
			t.Fatal(err)
		}
		if err := d.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := client.DiscoveryV1().EndpointSlices("kube-system").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, s := range list.Items {
			got += len(s.Endpoints)
		}
		if want := max(1, (n+sliceSize-1)/sliceSize); got != n || len(list.Items) != want {
			t.Errorf("%d nodes: %d endpoints in %d slices, want %d", n, got, len(list.Items), want)
		}
	}
}
