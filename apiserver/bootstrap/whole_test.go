package bootstrap_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/admission"
	"github.com/skiff-k8s/skiff/apiserver/allocate"
	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/apiserver/authz"
	"github.com/skiff-k8s/skiff/apiserver/binding"
	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/crd"
	"github.com/skiff-k8s/skiff/apiserver/reviews"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/store/mem"
)

// whole is an API server with all of its parts, in memory.
type whole struct {
	t   *testing.T
	url string
}

func newWhole(t *testing.T) *whole {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db := mem.New(mem.Config{})
	scheme, resources := builtin.Scheme(), builtin.Resources()
	caches, err := cacher.New(cacher.Config{Store: db, Scheme: scheme})
	check(err)
	check(apiserver.AddStorage(caches, resources))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	issuer, err := authn.NewIssuer(authn.IssuerConfig{Key: key})
	check(err)
	users, err := authn.New(authn.Config{Issuer: issuer, Caches: caches, Bootstrap: true, Anonymous: true, Tokens: map[string]user.Info{
		"admin": &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}},
		"alice": &user.DefaultInfo{Name: "alice"},
		"n1":    &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}},
	}})
	check(err)
	rules, err := bootstrap.NodeRules()
	check(err)
	rights, err := authz.New(authz.Config{Caches: caches, NodeRules: rules})
	check(err)
	allocator, err := allocate.New(allocate.Config{Caches: caches, Store: db})
	check(err)
	objects, err := bootstrap.New(bootstrap.Config{
		Caches: caches, Store: db, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Port: 6443,
	})
	check(err)
	plugins, err := admission.New(admission.Config{Caches: caches, Authorizer: rights, Extra: []seams.Admission{rights.Escalation()}})
	check(err)
	endpoints, err := reviews.Endpoints(reviews.Config{Tokens: users, Audiences: users.Audiences(), Authorizer: rights, Rules: rights, Issuer: issuer, Caches: caches})
	check(err)
	srv, err := apiserver.New(apiserver.Config{
		Caches: caches, Scheme: scheme, Resources: resources, Authenticator: users, Authorizer: rights, Admission: plugins,
		Endpoints: append(endpoints, binding.Endpoints(caches, nil)...),
		Hooks:     []seams.Hooks{allocator.Hooks(), crd.Hooks(nil)},
	})
	check(err)
	definitions, err := crd.New(crd.Config{Caches: caches, Registry: srv.Registry()})
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 8)
	running := 0
	run := func(f func(context.Context) error) {
		running++
		go func() { ended <- f(ctx) }()
	}
	h := httptest.NewServer(srv)
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
		cancel()
		for range running {
			select {
			case err := <-ended:
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("something does not stop")
			}
		}
	})
	run(caches.Run)
	<-caches.Ready()
	run(objects.Run)
	check(objects.WaitReady(ctx))
	run(rights.Run)
	check(rights.WaitReady(ctx))
	run(allocator.Run)
	run(definitions.Run)
	check(definitions.WaitReady(ctx))
	return &whole{t: t, url: h.URL}
}

func (w *whole) as(token string) kubernetes.Interface {
	w.t.Helper()
	k, err := kubernetes.NewForConfig(&rest.Config{Host: w.url, BearerToken: token, QPS: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

func TestWhole(t *testing.T) {
	w := newWhole(t)
	ctx := t.Context()
	admin, alice, node := w.as("admin"), w.as("alice"), w.as("n1")
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := alice.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || err.Error() != `pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "ns"` {
		t.Errorf("alice lists pods: %v", err)
	}
	if _, err := w.as("").Discovery().ServerVersion(); err != nil {
		t.Errorf("anonymous asks for the version: %v", err)
	}
	if _, err := w.as("wrong").Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) {
		t.Errorf("wrong token: %v", err)
	}
	_, err = admin.RbacV1().RoleBindings("ns").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ServiceAccounts("ns").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	var p *corev1.Pod
	for deadline := time.Now().Add(time.Minute); ; {
		if p, err = alice.CoreV1().Pods("ns").Create(ctx, pod, metav1.CreateOptions{}); err == nil {
			break
		}
		if !apierrors.IsForbidden(err) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if p.Spec.ServiceAccountName != "default" || len(p.Spec.Volumes) != 1 || *p.Spec.Priority != 0 || len(p.Spec.Tolerations) != 2 {
		t.Errorf("admitted pod %+v", p.Spec)
	}
	svc, err := alice.CoreV1().Services("ns").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"a": "b"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil || !strings.HasPrefix(svc.Spec.ClusterIP, "10.96.") || svc.Spec.Ports[0].NodePort < 30000 {
		t.Fatalf("service %+v, %v", svc, err)
	}
	if ip, err := admin.NetworkingV1().IPAddresses().Get(ctx, svc.Spec.ClusterIP, metav1.GetOptions{}); err != nil || ip.Spec.ParentRef.Name != "s" {
		t.Errorf("address %+v, %v", ip, err)
	}
	svc.Spec.Type, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeClusterIP, 0
	if svc, err = alice.CoreV1().Services("ns").Update(ctx, svc, metav1.UpdateOptions{}); err != nil || svc.Spec.Ports[0].NodePort != 0 {
		t.Errorf("service without port %+v, %v", svc, err)
	}
	if err := alice.CoreV1().Services("ns").Delete(ctx, "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.NetworkingV1().IPAddresses().Get(ctx, svc.Spec.ClusterIP, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("address of a deleted service: %v", err)
	}
	if k, err := admin.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil || k.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("kubernetes service %+v, %v", k, err)
	}

	// A node registers, sees no Secret until a pod of its own needs it.
	n, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil || len(n.Spec.Taints) != 1 {
		t.Fatalf("node %+v, %v", n, err)
	}
	if _, err := node.CoreV1().ConfigMaps("ns").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("node reads a ConfigMap: %v", err)
	}
	if err := admin.CoreV1().Pods("ns").Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := node.CoreV1().ConfigMaps("ns").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("node reads a ConfigMap of its pod: %v", err)
		}
	}
	if p, err = node.CoreV1().Pods("ns").Get(ctx, "p", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Status.Phase = corev1.PodRunning
	if _, err := node.CoreV1().Pods("ns").UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Errorf("node reports its pod: %v", err)
	}

	// Nobody gives away what they do not have.
	_, err = alice.RbacV1().RoleBindings("ns").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("alice makes herself an administrator: %v", err)
	}
	if err := admin.CoreV1().Namespaces().Delete(ctx, "kube-system", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("kube-system: %v", err)
	}
}
