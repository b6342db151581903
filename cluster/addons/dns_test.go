package addons

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func node(name string, cidrs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
}

func TestDNSFollowsNodes(t *testing.T) {
	client := fake.NewClientset(node("a", "10.244.0.0/24"), node("new"), node("six", "fd00::/64"))
	f := informers.NewSharedInformerFactory(client, 0)
	d, err := NewDNS(DNSConfig{Client: client, Informers: f, ServiceIP: netip.MustParseAddr("10.96.0.10"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	slices := client.DiscoveryV1().EndpointSlices("kube-system")
	want := func(addrs ...string) {
		t.Helper()
		for ctx.Err() == nil {
			w, err := slices.Watch(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			s, err := slices.Get(ctx, "kube-dns", metav1.GetOptions{})
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
