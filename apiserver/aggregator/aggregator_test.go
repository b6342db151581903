package aggregator_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/aggregator"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// newOther has wardle.example.com/v1: flunders, and tells whom it was asked for.
func newOther(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case req.URL.Path == "/apis/wardle.example.com/v1":
			_ = json.NewEncoder(w).Encode(&metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "wardle.example.com/v1",
				APIResources: []metav1.APIResource{{Name: "flunders", SingularName: "flunder", Kind: "Flunder", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}},
					{Name: "flunders/status", Kind: "Flunder", Namespaced: true, Verbs: metav1.Verbs{"get"}}}})
		case strings.HasSuffix(req.URL.Path, "/flunders/a"):
			_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "wardle.example.com/v1", "kind": "Flunder", "metadata": map[string]any{"name": "a"},
				"user": req.Header.Get("X-Remote-User"), "groups": strings.Join(req.Header.Values("X-Remote-Group"), ","), "authorization": req.Header.Get("Authorization"), "query": req.URL.RawQuery})
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestAggregation(t *testing.T) {
	var others *aggregator.Aggregator
	s := servertest.New(t, func(c *apiserver.Config) {
		var err error
		if others, err = aggregator.New(aggregator.Config{Caches: c.Caches}); err != nil {
			t.Fatal(err)
		}
		c.Aggregate = others.Wrap
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan error, 1)
	go func() { done <- others.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	other := newOther(t)
	address := netip.MustParseAddrPort(other.Listener.Addr().String())
	client, dyn := kubernetes.NewForConfigOrDie(s.Config()), dynamic.NewForConfigOrDie(s.Config())
	apiServices := dyn.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	flunders := dyn.Resource(schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1", Resource: "flunders"}).Namespace("ns")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, metav1.CreateOptions{}))
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1.wardle.example.com"},
		"spec": map[string]any{"group": "wardle.example.com", "version": "v1", "groupPriorityMinimum": int64(2000), "versionPriority": int64(200),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "ns", "name": "other", "port": int64(address.Port())}}}}
	must(apiServices.Create(ctx, service, metav1.CreateOptions{}))
	condition := func(reason string) {
		t.Helper()
		for {
			u, err := apiServices.Get(ctx, "v1.wardle.example.com", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
			if len(all) == 1 && all[0].(map[string]any)["reason"] == reason {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("conditions %v, want %s", all, reason)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	condition("ServiceNotFound")
	if _, err := flunders.Get(ctx, "a", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "service unavailable") && !strings.Contains(err.Error(), "unable to handle the request") {
		t.Errorf("while unavailable: %v", err)
	}
	must(client.CoreV1().Services("ns").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "other"},
		Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack), Ports: []corev1.ServicePort{{Name: "https", Port: int32(address.Port())}}}}, metav1.CreateOptions{}))
	condition("MissingEndpoints")
	// An endpoint may not be on the loopback; a name may.
	if err := client.CoreV1().Services("ns").Delete(ctx, "other", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(client.CoreV1().Services("ns").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "other"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}, metav1.CreateOptions{}))
	condition("Passed")

	a, err := flunders.Get(ctx, "a", metav1.GetOptions{ResourceVersion: "7"})
	if err != nil {
		t.Fatal(err)
	}
	if a.Object["user"] == "" || a.Object["authorization"] != "" || a.Object["query"] != "resourceVersion=7" {
		t.Errorf("the other server saw %v", a.Object)
	}
	for name, d := range map[string]*discovery.DiscoveryClient{"aggregated": discovery.NewDiscoveryClientForConfigOrDie(s.Config()),
		"legacy": func() *discovery.DiscoveryClient {
			d := discovery.NewDiscoveryClientForConfigOrDie(s.Config())
			d.UseLegacyDiscovery = true
			return d
		}()} {
		groups, lists, err := d.ServerGroupsAndResources()
		if err != nil {
			t.Fatalf("%s discovery: %v", name, err)
		}
		if !slices.ContainsFunc(groups, func(g *metav1.APIGroup) bool {
			return g.Name == "wardle.example.com" && g.PreferredVersion.Version == "v1"
		}) || !slices.ContainsFunc(groups, func(g *metav1.APIGroup) bool { return g.Name == "apps" }) {
			t.Errorf("%s discovery: groups %v", name, groups)
		}
		if !slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool {
			return l.GroupVersion == "wardle.example.com/v1" && len(l.APIResources) == 2 && l.APIResources[0].Kind == "Flunder"
		}) {
			t.Errorf("%s discovery: no flunders", name)
		}
	}
	raw, err := client.Discovery().RESTClient().Get().AbsPath("/apis/wardle.example.com").DoRaw(ctx)
	if err != nil || !strings.Contains(string(raw), `"preferredVersion":{"groupVersion":"wardle.example.com/v1","version":"v1"}`) {
		t.Errorf("group: %s, %v", raw, err)
	}
	raw, err = client.Discovery().RESTClient().Get().AbsPath("/openapi/v3").DoRaw(ctx)
	if err != nil || !strings.Contains(string(raw), `"apis/wardle.example.com/v1"`) || !strings.Contains(string(raw), `"apis/apps/v1"`) {
		t.Errorf("schemas: %.200s, %v", raw, err)
	}
	if err := apiServices.Delete(ctx, "v1.wardle.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := flunders.Get(ctx, "a", metav1.GetOptions{}); err != nil && strings.Contains(err.Error(), "could not find") {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("still served")
		}
		time.Sleep(5 * time.Millisecond)
	}
}
