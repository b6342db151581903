package cloud_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	cloudprovider "k8s.io/cloud-provider"
	cloudapi "k8s.io/cloud-provider/api"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/cloud"
)

// provider is one of the interface, with faults.
type provider struct {
	mu       sync.Mutex
	ensures  []error // the next answers; none: well
	ensured  map[string][]string
	deleted  []string
	unknown  map[string]bool // nodes whose machine is gone
	shutdown map[string]bool
	fails    error // of instances
}

func (p *provider) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (p *provider) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return p, true }
func (p *provider) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (p *provider) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return p, true }
func (p *provider) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (p *provider) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (p *provider) Routes() (cloudprovider.Routes, bool)                              { return nil, false }
func (p *provider) ProviderName() string                                              { return "test" }
func (p *provider) HasClusterID() bool                                                { return true }

func (p *provider) GetLoadBalancerName(_ context.Context, _ string, s *corev1.Service) string {
	return s.Name
}

func (p *provider) GetLoadBalancer(_ context.Context, _ string, s *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.ensured[s.Name]
	return nil, ok, nil
}

func (p *provider) EnsureLoadBalancer(_ context.Context, _ string, s *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ensures) > 0 {
		err := p.ensures[0]
		p.ensures = p.ensures[1:]
		if err != nil {
			return nil, err
		}
	}
	p.note(s, nodes)
	s.Spec.Type = corev1.ServiceTypeClusterIP // whoever changes its argument does no harm
	return &corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)}}}, nil
}

func (p *provider) note(s *corev1.Service, nodes []*corev1.Node) {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	p.ensured[s.Name] = names
}

func (p *provider) UpdateLoadBalancer(_ context.Context, _ string, s *corev1.Service, nodes []*corev1.Node) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note(s, nodes)
	return nil
}

func (p *provider) EnsureLoadBalancerDeleted(_ context.Context, _ string, s *corev1.Service) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deleted = append(p.deleted, s.Name)
	delete(p.ensured, s.Name)
	return nil
}

func (p *provider) InstanceExists(_ context.Context, n *corev1.Node) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.unknown[n.Name], p.fails
}

func (p *provider) InstanceShutdown(_ context.Context, n *corev1.Node) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shutdown[n.Name], p.fails
}

func (p *provider) InstanceMetadata(_ context.Context, n *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails != nil {
		return nil, p.fails
	}
	return &cloudprovider.InstanceMetadata{ProviderID: "test://" + n.Name, InstanceType: "big", Zone: "z", Region: "r",
		AdditionalLabels: map[string]string{"example.com/rack": "1", "node.kubernetes.io/mine": "no"},
		NodeAddresses:    []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.9"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}}, nil
}

func (p *provider) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// bed is a manager against an API server of ours.
type bed struct {
	*testing.T
	client   kubernetes.Interface
	provider *provider
}

func start(t *testing.T) *bed {
	s := servertest.Full(t)
	client, err := kubernetes.NewForConfig(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t, client, &provider{ensured: map[string][]string{}, unknown: map[string]bool{}, shutdown: map[string]bool{}}}
	m, err := cloud.New(cloud.Config{Provider: b.provider, Clients: cloud.Clients{Kubernetes: client, REST: s.Admin()},
		Informers: informers.NewSharedInformerFactory(client, 0), NodeMonitorEvery: 50 * time.Millisecond, NodeStatusEvery: time.Hour,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	return b
}

func (b *bed) eventually(what string, ok func() bool) {
	b.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	b.Fatalf("waited in vain until %s", what)
}

func (b *bed) node(name string, o *corev1.Node) {
	b.Helper()
	o.Name = name
	if _, err := b.client.CoreV1().Nodes().Create(b.Context(), o, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) get(name string) *corev1.Node {
	n, err := b.client.CoreV1().Nodes().Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return n
}

func TestLoadBalancers(t *testing.T) {
	b := start(t)
	b.node("n1", &corev1.Node{})
	b.node("n2", &corev1.Node{})
	b.provider.set(func() { b.provider.ensures = []error{cloudapi.NewRetryError("not yet", 100*time.Millisecond)} })
	services := b.client.CoreV1().Services("default")
	svc := func(name string, class *string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: class, Ports: []corev1.ServicePort{{Port: 80}}}}
	}
	for _, s := range []*corev1.Service{svc("others", ptr.To("example.com/other")), svc("web", nil)} {
		if _, err := services.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var web *corev1.Service
	b.eventually("the Service has its address, after the provider was not ready", func() bool {
		web, _ = services.Get(t.Context(), "web", metav1.GetOptions{})
		return web != nil && len(web.Status.LoadBalancer.Ingress) == 1
	})
	if in := web.Status.LoadBalancer.Ingress[0]; in.IP != "192.0.2.1" || *in.IPMode != corev1.LoadBalancerIPModeProxy || !slices.Equal(web.Finalizers, []string{"service.kubernetes.io/load-balancer-cleanup"}) {
		t.Errorf("%v, finalizers %v", in, web.Finalizers)
	}
	told := func() (out []string) { b.provider.set(func() { out = b.provider.ensured["web"] }); return }
	b.eventually("both nodes are behind it", func() bool { return slices.Equal(told(), []string{"n1", "n2"}) })
	exclude := []byte(`{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":""}}}`)
	if _, err := b.client.CoreV1().Nodes().Patch(t.Context(), "n2", types.MergePatchType, exclude, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("a node whose label says no is not", func() bool { return slices.Equal(told(), []string{"n1"}) })
	b.eventually("events tell", func() bool {
		list, err := b.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		seen := map[string]bool{}
		if err == nil {
			for _, e := range list.Items {
				seen[e.Reason] = e.Source.Component == "service-controller"
			}
		}
		return seen["EnsuringLoadBalancer"] && seen["EnsuredLoadBalancer"] && seen["SyncLoadBalancerFailed"] || seen["EnsuredLoadBalancer"] && seen["UpdatedLoadBalancer"]
	})
	// It wants none any more.
	if _, err := services.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"type":"ClusterIP"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	b.eventually("the load balancer is gone, finalizer and address with it", func() bool {
		web, _ = services.Get(t.Context(), "web", metav1.GetOptions{})
		return web != nil && len(web.Finalizers) == 0 && len(web.Status.LoadBalancer.Ingress) == 0
	})
	other, err := services.Get(t.Context(), "others", metav1.GetOptions{})
	if err != nil || len(other.Finalizers) > 0 || len(other.Status.LoadBalancer.Ingress) > 0 {
		t.Errorf("a Service of another class: %v, %v", other, err)
	}
}

func TestNodes(t *testing.T) {
	b := start(t)
	b.provider.set(func() {
		b.provider.fails = errors.New("the cloud is away")
		b.provider.unknown["gone"] = true
		b.provider.shutdown["down"] = true
	})
	taint := corev1.Taint{Key: cloudapi.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule}
	b.node("fresh", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{cloudapi.AnnotationAlphaProvidedIPAddr: "192.0.2.10"}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{taint}}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "fresh"}}}})
	b.node("gone", &corev1.Node{})
	b.node("down", &corev1.Node{})
	time.Sleep(200 * time.Millisecond) // a few looks, none of which may do anything
	if b.get("gone") == nil || len(b.get("fresh").Spec.ProviderID) > 0 {
		t.Fatal("a cloud that is away says nothing of nodes")
	}
	b.provider.set(func() { b.provider.fails = nil })
	b.eventually("a node whose machine is gone is deleted", func() bool { return b.get("gone") == nil })
	b.eventually("one that is shut down is tainted", func() bool {
		n := b.get("down")
		return n != nil && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == cloudapi.TaintNodeShutdown })
	})
	b.eventually("the new one is initialized", func() bool {
		n := b.get("fresh")
		return n != nil && n.Spec.ProviderID == "test://fresh" && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint.Key }) && len(n.Status.Addresses) == 2
	})
	n := b.get("fresh")
	for k, v := range map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelFailureDomainBetaZone: "z", corev1.LabelTopologyRegion: "r", corev1.LabelInstanceTypeStable: "big", "example.com/rack": "1", "node.kubernetes.io/mine": ""} {
		if n.Labels[k] != v {
			t.Errorf("label %s=%q, want %q", k, n.Labels[k], v)
		}
	}
	// Of two addresses of a type the one that the kubelet was given.
	if want := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeHostName, Address: "fresh"}}; !slices.Equal(n.Status.Addresses, want) {
		t.Errorf("addresses %v", n.Status.Addresses)
	}
}
