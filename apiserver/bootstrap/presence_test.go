package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
	"github.com/skiff-k8s/skiff/store"
)

func server(t testing.TB, c *lookuptest.Caches, addr string, change func(*Config)) *Bootstrap {
	t.Helper()
	conf := Config{
		Caches: c, Store: c.Store, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		AdvertiseAddress: netip.MustParseAddr(addr), Port: 6443,
	}
	if change != nil {
		change(&conf)
	}
	b, err := New(conf)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newPresenceCaches(t testing.TB) *lookuptest.Caches {
	c := newCaches(t)
	c.AddKind(coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	return c
}

// Keys and bytes are those that kube-apiserver v1.37.2 writes, as recorded on a host named "vm".
func TestPresenceIsUpstreams(t *testing.T) {
	const id = "apiserver-wlv32tlttr4jl3gtroqexyxapa"
	c := newPresenceCaches(t)
	b := server(t, c, "192.0.2.7", func(c *Config) { c.Hostname = "vm" })
	if err := b.announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	const head = "k8s\x00\n\x0f\n\x02v1\x12\x09Endpoints"
	for key, want := range map[string]string{
		"/registry/masterleases/192.0.2.7": head + "\x12#\n\x10\n\x00\x12\x00\x1a\x00\"\x00*\x002\x008\x01B\x00\x12\x0f\n\x0d\n\x09192.0.2.7\x1a\x00\x1a\x00\"\x00",
		"/registry/peerserverleases/" + id: head + "\x12o\nK\n\x00\x12\x00\x1a\x00\"\x00*\x002\x008\x01B\x00Z9\n\x11apiserverIdentity\x12$" + id +
			"\x12 \n\x0d\n\x09192.0.2.7\x1a\x00\x1a\x0f\n\x05https\x10\xab2\x1a\x03TCP\x1a\x00\"\x00",
	} {
		kv, _, err := c.Store.Get(t.Context(), key)
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		if string(kv.Value) != want {
			t.Errorf("%s is\n%q, want\n%q", key, kv.Value, want)
		}
	}
	l, err := lookup.Fresh[*coordinationv1.Lease](t.Context(), c, leases, "kube-system", id)
	if err != nil {
		t.Fatal(err)
	}
	if l.Labels["apiserver.kubernetes.io/identity"] != "kube-apiserver" || l.Labels["kubernetes.io/hostname"] != "vm" ||
		l.Annotations["kubernetes.io/peer-advertise-address"] != "192.0.2.7:6443" ||
		!strings.HasPrefix(*l.Spec.HolderIdentity, id+"_") || *l.Spec.LeaseDurationSeconds != 3600 {
		t.Errorf("the identity's Lease is %+v", l)
	}
	b.Leave(t.Context())
	for _, key := range []string{"/registry/masterleases/192.0.2.7", "/registry/peerserverleases/" + id, "/registry/leases/kube-system/" + id} {
		if _, _, err := c.Store.Get(t.Context(), key); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s is left: %v", key, err)
		}
	}
}

func TestDecideSubsets(t *testing.T) {
	port, others := corev1.EndpointPort{Name: "https", Port: 6443, Protocol: "TCP"}, corev1.EndpointPort{Name: "https", Port: 8443, Protocol: "TCP"}
	of := func(p corev1.EndpointPort, ips ...string) []corev1.EndpointSubset {
		return subset(ips, []corev1.EndpointPort{p})
	}
	const a, b, c = "192.0.2.1", "192.0.2.10", "192.0.2.9" // in lexical order
	for name, test := range map[string]struct{ got, want []corev1.EndpointSubset }{
		"leased: none yet":         {leased(nil, []string{a}, port), of(port, a)},
		"leased: another":          {leased(of(port, a), []string{a, b}, port), of(port, a, b)},
		"leased: one gone":         {leased(of(port, a, b), []string{b}, port), of(port, b)},
		"leased: another's order":  {leased(of(port, c, a, b), []string{a, b, c}, port), of(port, c, a, b)},
		"leased: another's port":   {leased(of(others, a), []string{a, b}, port), of(others, a, b)},
		"leased: two subsets":      {leased(append(of(port, a), of(others, b)...), []string{a, b}, port), of(port, a, b)},
		"leased: all gone":         {leased(of(port, a), nil, port), nil},
		"counted: none yet":        {counted(nil, a, port, 2), of(port, a)},
		"counted: another":         {counted(of(port, c), b, port, 2), of(port, b, c)},
		"counted: there already":   {counted(of(port, c, a), a, port, 2), of(port, c, a)},
		"counted: one too many":    {counted(of(port, a, c), b, port, 2), of(port, a, b)},
		"counted: round the end":   {counted(of(port, a, b), c, port, 2), of(port, b, c)},
		"counted: two too many":    {counted(of(port, a, c), b, port, 1), of(port, b)},
		"without: it":              {without(of(port, a, b), a), of(port, b)},
		"without: what is not in":  {without(of(port, a), b), of(port, a)},
		"without: the last":        {without(of(port, a), a), nil},
		"without: where none were": {without(nil, a), nil},
	} {
		if !apiequality.Semantic.DeepEqual(test.got, test.want) {
			t.Errorf("%s: %v, want %v", name, test.got, test.want)
		}
	}
}

// Servers that know of different ports and orders, or of upstream's, do not write in turns.
func TestEndpointsAreStable(t *testing.T) {
	for _, kind := range []Reconciler{Leased, Counted} {
		t.Run(string(kind), func(t *testing.T) {
			c := newPresenceCaches(t)
			var all []*Bootstrap
			for i, addr := range []string{"192.0.2.9", "192.0.2.10", "192.0.2.100"} {
				all = append(all, server(t, c, addr, func(c *Config) { c.Port, c.Endpoints, c.Servers = int32(6443+i), kind, 3 }))
			}
			for range 2 {
				for _, b := range all {
					if err := b.announce(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			version := func() string {
				ep, err := lookup.Fresh[*corev1.Endpoints](t.Context(), c, endpointsResource, "default", "kubernetes")
				if err != nil {
					t.Fatal(err)
				}
				if got := addresses(ep.Subsets); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"192.0.2.10", "192.0.2.100", "192.0.2.9"}) || ep.Subsets[0].Ports[0].Port != 6443 {
					t.Errorf("endpoints are %v", ep.Subsets)
				}
				sl, err := lookup.Fresh[*discoveryv1.EndpointSlice](t.Context(), c, slicesResource, "default", "kubernetes")
				if err != nil {
					t.Fatal(err)
				}
				return ep.ResourceVersion + " " + sl.ResourceVersion
			}
			before := version()
			for range 3 {
				for _, b := range all {
					if err := b.announce(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if after := version(); after != before {
				t.Errorf("they were written again: %s, then %s", before, after)
			}
			for _, b := range all {
				b.Leave(t.Context())
			}
			ep, err := lookup.Fresh[*corev1.Endpoints](t.Context(), c, endpointsResource, "default", "kubernetes")
			if err != nil || len(ep.Subsets) != 0 {
				t.Errorf("when all have left there is %v %v", ep, err)
			}
		})
	}
}

// A cluster that moves to the other family gets a slice of that family.
func TestSliceOfOtherFamily(t *testing.T) {
	c := newPresenceCaches(t)
	first := server(t, c, "192.0.2.1", nil)
	if err := first.announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.Leave(t.Context())
	if err := server(t, c, "2001:db8::1", func(c *Config) {
		c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/112")}
	}).announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	sl, err := lookup.Fresh[*discoveryv1.EndpointSlice](t.Context(), c, slicesResource, "default", "kubernetes")
	if err != nil || sl.AddressType != discoveryv1.AddressTypeIPv6 || len(sl.Endpoints) != 1 || sl.Endpoints[0].Addresses[0] != "2001:db8::1" {
		t.Errorf("slice %+v, %v", sl, err)
	}
}

// A server is behind the Service from when it serves until it is told to leave, and what a
// process before it left does not lead clients to it meanwhile.
func TestAnnouncedWhileServing(t *testing.T) {
	c := newPresenceCaches(t)
	other := server(t, c, "192.0.2.1", nil)
	before := server(t, c, "192.0.2.2", nil)
	for _, b := range []*Bootstrap{other, before} {
		if err := b.announce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantEndpoints(t, c, "192.0.2.1", "192.0.2.2") // before ended without notice
	serves := make(chan struct{})
	b := server(t, c, "192.0.2.2", func(c *Config) {
		c.Serving = func(ctx context.Context) error {
			select {
			case <-serves:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	await := func(want ...string) {
		t.Helper()
		w, err := lookup.Resource(c, endpointsResource)
		if err != nil {
			t.Fatal(err)
		}
		for {
			o, err := w.Get(t.Context(), "default", "kubernetes", "")
			if err != nil {
				t.Fatal(err)
			}
			if slices.Equal(addresses(o.Runtime().(*corev1.Endpoints).Subsets), want) {
				return
			}
			if t.Context().Err() != nil {
				t.Fatalf("endpoints never were %v", want)
			}
		}
	}
	await("192.0.2.1")
	close(serves)
	await("192.0.2.1", "192.0.2.2")
	b.Leave(t.Context())
	wantEndpoints(t, c, "192.0.2.1")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantEndpoints(t, c, "192.0.2.1")
}

// What is said of servers that are gone goes, each in its time.
func TestExpiredIdentities(t *testing.T) {
	c := newPresenceCaches(t)
	clk := clocktesting.NewFakeClock(time.Now())
	lease := func(name string, label string, age time.Duration) {
		seconds, at := int32(3600), metav1.NewMicroTime(clk.Now().Add(-age))
		c.Create(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{identityLabel: label}},
			Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &at},
		})
	}
	lease("gone", identityValue, 2*time.Hour)
	lease("alive", identityValue, time.Minute)
	lease("anothers", "kube-scheduler", 2*time.Hour)
	c.Create(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "empty", Labels: map[string]string{identityLabel: identityValue}}})
	b := server(t, c, "192.0.2.1", func(c *Config) { c.Clock, c.Hostname = clk, "vm" })
	names := func() string {
		all, err := lookup.FreshList[*coordinationv1.Lease](t.Context(), c, leases, "kube-system")
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, l := range all {
			out = append(out, l.Name)
		}
		return fmt.Sprint(out)
	}
	if err := b.announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := names(), "[alive anothers "+b.identity.name+"]"; got != want {
		t.Errorf("Leases are %s, want %s", got, want)
	}
	clk.Step(59 * time.Minute)
	if err := b.announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	clk.Step(2 * time.Minute) // its time, and that of looking
	if err := b.announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := names(), "[anothers "+b.identity.name+"]"; got != want {
		t.Errorf("an hour later Leases are %s, want %s", got, want)
	}
}

// One that keeps nothing writes nothing.
func TestUnkept(t *testing.T) {
	c := newPresenceCaches(t)
	b := server(t, c, "192.0.2.1", func(c *Config) { c.Endpoints = Unkept })
	before, _ := c.Store.Revision(t.Context())
	if err := b.announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Leave(t.Context())
	if after, _ := c.Store.Revision(t.Context()); after != before {
		t.Errorf("%d writes", after-before)
	}
	if _, err := New(Config{Endpoints: "magic", Caches: newCaches(t), Store: newCaches(t).Store, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Port: 1}); err == nil {
		t.Error("endpoints of a kind that there is not were accepted")
	}
}
