package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
)

var clusterRoles = schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}

func newCaches(t testing.TB) *lookuptest.Caches {
	c := lookuptest.New(t)
	for _, gvk := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("Service"), corev1.SchemeGroupVersion.WithKind("Endpoints"),
		discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"),
		networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), networkingv1.SchemeGroupVersion.WithKind("IPAddress"),
		flowcontrolv1.SchemeGroupVersion.WithKind("FlowSchema"), flowcontrolv1.SchemeGroupVersion.WithKind("PriorityLevelConfiguration"),
	} {
		c.AddKind(gvk)
	}
	return c
}

func newBootstrap(t testing.TB, c *lookuptest.Caches, addr string) *Bootstrap {
	b, err := New(Config{
		Caches: c, Store: c.Store,
		ServiceCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		AdvertiseAddress: netip.MustParseAddr(addr), Port: 6443,
		ClientCA:        func() []byte { return []byte("-----BEGIN CERTIFICATE-----\n" + addr + "\n") },
		RequestHeaderCA: func() []byte { return nil }, // no proxies to trust
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFreshCluster(t *testing.T) {
	c := newCaches(t)
	ctx := t.Context()
	if err := newBootstrap(t, c, "192.0.2.1").Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := lookup.Fresh[*corev1.Service](ctx, c, services, "default", "kubernetes")
	if err != nil || s.Spec.ClusterIP != "10.96.0.1" || s.Spec.Ports[0].TargetPort.IntValue() != 6443 {
		t.Errorf("service %+v, %v", s, err)
	}
	if _, err := lookup.Fresh[*networkingv1.IPAddress](ctx, c, ipAddresses, "", "10.96.0.1"); err != nil {
		t.Error(err)
	}
	for _, n := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		if ns, err := lookup.Fresh[*corev1.Namespace](ctx, c, namespaces, "", n); err != nil || ns.Labels["kubernetes.io/metadata.name"] != n || ns.Status.Phase != "Active" {
			t.Errorf("namespace %s: %+v, %v", n, ns, err)
		}
	}
	if p, err := lookup.Fresh[*schedulingv1.PriorityClass](ctx, c, priorityClasses, "", "system-node-critical"); err != nil || p.Value != 2000001000 {
		t.Errorf("priority class %+v, %v", p, err)
	}
	edit, err := lookup.Fresh[*rbacv1.ClusterRole](ctx, c, clusterRoles, "", "edit")
	if err != nil || len(edit.Rules) < 10 {
		t.Errorf("edit has %d rules, %v", len(edit.Rules), err)
	}

	// A second pass, and that of another API server, write next to nothing.
	before, _ := c.Store.Revision(ctx)
	if err := newBootstrap(t, c, "192.0.2.1").Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	if after, _ := c.Store.Revision(ctx); after-before != 1 { // the heartbeat
		t.Errorf("second pass made %d writes", after-before)
	}
	second := newBootstrap(t, c, "192.0.2.2")
	if err := second.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	wantEndpoints(t, c, "192.0.2.1", "192.0.2.2")
	cm, err := lookup.Fresh[*corev1.ConfigMap](ctx, c, configMaps, "kube-system", "extension-apiserver-authentication")
	if err != nil || strings.Count(cm.Data["client-ca-file"], "BEGIN") != 2 {
		t.Errorf("authorities are %q, %v", cm.Data["client-ca-file"], err)
	}
	if len(cm.Data) != 1 {
		t.Errorf("without proxies to trust there is %v", cm.Data)
	}
	second.Leave(ctx)
	if err := second.announce(ctx); err != nil { // a heartbeat that was under way
		t.Fatal(err)
	}
	wantEndpoints(t, c, "192.0.2.1")
}

func wantEndpoints(t *testing.T, c *lookuptest.Caches, want ...string) {
	t.Helper()
	ep, err := lookup.Fresh[*corev1.Endpoints](t.Context(), c, endpointsResource, "default", "kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range ep.Subsets[0].Addresses {
		got = append(got, a.IP)
	}
	if !slices.Equal(got, want) {
		t.Errorf("endpoints are %v, want %v", got, want)
	}
	slice, err := lookup.Fresh[*discoveryv1.EndpointSlice](t.Context(), c, slicesResource, "default", "kubernetes")
	if err != nil || len(slice.Endpoints) != len(want) || *slice.Ports[0].Port != 6443 || slice.Labels[discoveryv1.LabelServiceName] != "kubernetes" {
		t.Errorf("slice %+v, %v", slice, err)
	}
}

// What a machine under load answers passes; what does not pass ends it after some tries.
func TestFirstPass(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		tries int
		ends  bool
	}{
		"at once":  {nil, 1, false},
		"too slow": {fmt.Errorf("roles: %w", apierrors.NewTimeoutError("slow", 1)), 30, false},
		"too many": {fmt.Errorf("roles: %w", apierrors.NewTooManyRequests("filling", 1)), 30, false},
		"wrong":    {fmt.Errorf("roles: %w", apierrors.NewInternalError(errors.New("broken"))), 5, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &Bootstrap{Config: Config{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}}
				n := 0
				err := b.first(t.Context(), func(context.Context) error {
					if n++; n >= 30 {
						return nil
					}
					return test.err
				})
				if n != test.tries || (err != nil) != test.ends {
					t.Errorf("%v after %d tries", err, n)
				}
			})
		})
	}
}

func TestReconcile(t *testing.T) {
	c := newCaches(t)
	ctx := t.Context()
	less := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "system:basic-user", Labels: map[string]string{"mine": "1"}},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"things"}}},
	}
	off := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:discovery", Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}}}
	otherRole := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "system:basic-user"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "wrong"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "mine"}},
	}
	c.Create(less)
	c.Create(off)
	c.Create(otherRole)
	if err := newBootstrap(t, c, "192.0.2.1").Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	r, err := lookup.Fresh[*rbacv1.ClusterRole](ctx, c, clusterRoles, "", "system:basic-user")
	if err != nil || len(r.Rules) < 3 || r.Labels["mine"] != "1" || r.Labels["kubernetes.io/bootstrapping"] == "" {
		t.Errorf("role that granted too little is %+v, %v", r, err)
	}
	if r, err := lookup.Fresh[*rbacv1.ClusterRole](ctx, c, clusterRoles, "", "system:discovery"); err != nil || len(r.Rules) != 0 {
		t.Errorf("role without autoupdate is %+v, %v", r, err)
	}
	crb := schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}
	if b, err := lookup.Fresh[*rbacv1.ClusterRoleBinding](ctx, c, crb, "", "system:basic-user"); err != nil || b.RoleRef.Name != "system:basic-user" || len(b.Subjects) != 2 {
		t.Errorf("binding to the wrong role is %+v, %v", b, err)
	}
}

func TestPolicyText(t *testing.T) {
	p, err := StandardPolicy()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(p.ClusterRoles); n < 70 {
		t.Errorf("%d ClusterRoles", n)
	}
	rules, err := NodeRules()
	if err != nil || len(rules) < 10 {
		t.Errorf("system:node has %d rules, %v", len(rules), err)
	}
	for _, bad := range []string{"Thing x", "ClusterRole", "\tget \"\" pods", "Role x", "ClusterRoleBinding b\n\tClusterRole r Robot:x", "ClusterRole a b"} {
		if _, err := parsePolicy(bad); err == nil {
			t.Errorf("%q parses", bad)
		}
	}
}

func BenchmarkFreshCluster(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		c := newCaches(b)
		boot := newBootstrap(b, c, "192.0.2.1")
		b.StartTimer()
		if err := boot.Ensure(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
