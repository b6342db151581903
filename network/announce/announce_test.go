package announce

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// kernel is a host that only remembers.
type kernel struct {
	links []netlink.Link
	kept  []netip.Addr
	told  map[string]int
}

func (k *kernel) Links() ([]netlink.Link, error) { return slices.Clone(k.links), nil }

func (k *kernel) Add(link string, a netip.Addr) error {
	for i := range k.links {
		if k.links[i].Name == link {
			k.links[i].Addresses = append(slices.Clone(k.links[i].Addresses), netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return nil
}

func (k *kernel) Remove(a netip.Addr) error {
	for i := range k.links {
		k.links[i].Addresses = slices.DeleteFunc(slices.Clone(k.links[i].Addresses), func(p netip.Prefix) bool { return p == netip.PrefixFrom(a, a.BitLen()) })
	}
	return nil
}

func (k *kernel) Announce(link string, a netip.Addr) error  { k.told[link+" "+a.String()]++; return nil }
func (k *kernel) Kept() ([]netip.Addr, error)               { return k.kept, nil }
func (k *kernel) Keep(a []netip.Addr) error                 { k.kept = slices.Clone(a); return nil }
func (k *kernel) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }
func (k *kernel) has(a string) bool                         { return has(k.links, netip.MustParseAddr(a)) }
func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

const annotation = "example.com/node"

func service(name, node string, ips ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	if node != "" {
		s.Annotations = map[string]string{annotation: node}
	}
	for _, ip := range ips {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	return s
}

func TestWanted(t *testing.T) {
	proxy := service("p", "me", "192.0.2.5")
	proxy.Status.LoadBalancer.Ingress[0].IPMode = ptr.To(corev1.LoadBalancerIPModeProxy)
	got := wanted([]*corev1.Service{
		service("mine", "me", "192.0.2.1", "fd00::1"), service("other", "you", "192.0.2.2"),
		service("nobody's, here", "", "192.0.2.3"), service("nobody's, elsewhere", "", "192.0.2.4"), proxy, service("a name", "me", "example"),
	}, "me", annotation, map[netip.Addr]int{netip.MustParseAddr("192.0.2.3"): 0, netip.MustParseAddr("192.0.2.2"): 0})
	want := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true, netip.MustParseAddr("fd00::1"): true, netip.MustParseAddr("192.0.2.3"): true}
	if !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestPlace(t *testing.T) {
	links := []netlink.Link{
		{Name: "lo", Up: true, Addresses: prefixes("127.0.0.1/8")},
		{Name: "eth0", Up: true, Neighbours: true, Addresses: prefixes("192.0.2.9/24", "192.0.2.77/32", "fd00::9/64")},
		{Name: "eth1", Up: true, Neighbours: true, Addresses: prefixes("192.0.2.130/25")},
		{Name: "eth2", Neighbours: true, Addresses: prefixes("198.51.100.1/24")},
		{Name: "pods", Up: true, Neighbours: true, Addresses: prefixes("203.0.113.1/24")},
	}
	for _, tt := range []struct{ addr, want string }{
		{"192.0.2.1", "eth0"}, {"192.0.2.200", "eth1"}, {"fd00::1", "eth0"},
		{"198.51.100.7", "eth0"}, {"203.0.113.7", "eth0"}, {"fd99::1", ""}, // by the node's address; none of IPv6
	} {
		got, err := place(links, netip.MustParseAddr(tt.addr), []netip.Addr{netip.MustParseAddr("192.0.2.9")}, "pods")
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s goes to %q, %v; want %q", tt.addr, got, err, tt.want)
		}
	}
}

func TestAnnouncer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{told: map[string]int{}, links: []netlink.Link{{Name: "eth0", Up: true, Neighbours: true, Addresses: prefixes("192.0.2.9/24", "192.0.2.5/32", "192.0.2.8/32")}},
			// A process before has left one that is no more, and one that is still to be here.
			kept: []netip.Addr{netip.MustParseAddr("192.0.2.5")}}
		inf := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Service{}, 0, cache.Indexers{})
		store := inf.GetStore()
		a, err := New(Config{NodeName: "me", Annotation: annotation, Services: synced{inf}, Table: "t", Host: k, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		put := func(s *corev1.Service) {
			if err := store.Add(s); err != nil {
				t.Fatal(err)
			}
			a.wake()
			synctest.Wait()
		}
		_ = store.Add(service("s", "me", "192.0.2.1"))
		_ = store.Add(service("foreign", "me", "192.0.2.8")) // somebody else has added that address
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		synctest.Wait()
		if !k.has("192.0.2.1") || k.has("192.0.2.5") || k.told["eth0 192.0.2.1"] != 1 {
			t.Errorf("%v, told %v", k.links, k.told)
		}
		for range 5 { // changes of links come in between
			a.wake()
			synctest.Wait()
		}
		if k.told["eth0 192.0.2.1"] != 1 {
			t.Errorf("the neighbours were told %d times at once", k.told["eth0 192.0.2.1"])
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if k.told["eth0 192.0.2.1"] != tells || k.told["eth0 192.0.2.8"] != 0 {
			t.Errorf("told %v", k.told)
		}
		// Somebody takes it.
		_ = k.Remove(netip.MustParseAddr("192.0.2.1"))
		time.Sleep(lookEvery)
		synctest.Wait()
		if !k.has("192.0.2.1") || k.told["eth0 192.0.2.1"] <= tells {
			t.Error("an address that somebody took does not come back")
		}
		put(service("s", "", "192.0.2.1"))
		if !k.has("192.0.2.1") {
			t.Error("without another's name it goes")
		}
		put(service("s", "you", "192.0.2.1"))
		if k.has("192.0.2.1") || len(k.kept) != 0 || !k.has("192.0.2.8") {
			t.Errorf("%v, kept %v", k.links, k.kept)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// synced is an informer that need not run.
type synced struct{ cache.SharedIndexInformer }

func (synced) HasSynced() bool { return true }

func TestConfigIsChecked(t *testing.T) {
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "required") {
		t.Error(err)
	}
}
