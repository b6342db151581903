// Package baremetal is a provider of k8s.io/cloud-provider for machines that nobody but their owner
// provides: machines are what a configuration or the Nodes themselves say, load balancers are
// addresses of configured pools for which one node at a time answers on its link.
//
// Owns: choosing addresses, choosing the node of each, asking nodes' health ports. The truth is in
// the API alone: addresses in status.loadBalancer of Services, the node in an annotation of theirs.
// Must not: touch a node (network/announce there does what the annotation says).
package baremetal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/utils/clock"
)

// account is the ServiceAccount that the provider acts as: what it writes is what the
// controller of load balancers may write.
const account = "service-controller"

// Options of a Provider.
type Options struct {
	Config Config
	// OnLink tells whether a node is on a link with an address; nil: nobody knows.
	OnLink func(n *corev1.Node, a netip.Addr) bool
	// Healthy asks whether a node serves; nil: by HTTP, as load balancers do.
	Probe  Probe
	Clock  clock.WithTicker // nil: the real one
	Logger *slog.Logger
}

// Provider implements cloudprovider.Interface. Its manager runs it (cloud.Runner).
type Provider struct {
	opts  Options
	pools []pool
	kick  chan struct{}

	client   kubernetes.Interface
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	synced   []cache.InformerSynced
	setUp    error

	mu sync.Mutex
	// balancers are those that this process looks after.
	balancers map[types.NamespacedName]*balancer

	// What only Run uses.
	events record.EventRecorder
	health *health
}

// balancer is a Service's.
type balancer struct {
	uid types.UID
	// promised are its addresses until its status shows them.
	promised []netip.Addr
	// nodes are those that may answer for it.
	nodes []string
	// announcer is the one chosen last.
	announcer string
}

// New checks the options and starts nothing.
func New(o Options) (*Provider, error) {
	pools, err := o.Config.pools()
	if err != nil {
		return nil, err
	}
	if o.Logger == nil {
		return nil, errors.New("bare metal provider: Logger is required")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Probe == nil {
		o.Probe = newHTTPProbe()
	}
	return &Provider{opts: o, pools: pools, kick: make(chan struct{}, 1), balancers: map[types.NamespacedName]*balancer{},
		health: newHealth(o.Probe)}, nil
}

// Initialize implements cloudprovider.Interface; what is to run runs in Run.
func (p *Provider) Initialize(b cloudprovider.ControllerClientBuilder, _ <-chan struct{}) {
	p.client, p.setUp = b.Client(account)
}

// SetInformers implements cloudprovider.InformerUser.
func (p *Provider) SetInformers(f informers.SharedInformerFactory) {
	services, nodes := f.Core().V1().Services(), f.Core().V1().Nodes()
	p.services, p.nodes = services.Lister(), nodes.Lister()
	balanced := func(o any) bool {
		s, ok := o.(*corev1.Service)
		return ok && s.Spec.Type == corev1.ServiceTypeLoadBalancer
	}
	s, err := services.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, o any) {
			if balanced(o) {
				p.wake()
			}
		},
	})
	if err != nil {
		p.setUp = errors.Join(p.setUp, fmt.Errorf("watch services: %w", err))
		return
	}
	p.synced = []cache.InformerSynced{s.HasSynced, nodes.Informer().HasSynced}
}

func (p *Provider) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Run chooses nodes for load balancers until ctx ends.
func (p *Provider) Run(ctx context.Context) error {
	if p.setUp != nil {
		return p.setUp
	}
	if p.client == nil || p.services == nil {
		return errors.New("bare metal provider: it runs after Initialize and SetInformers")
	}
	if len(p.pools) == 0 {
		<-ctx.Done()
		return nil
	}
	if !cache.WaitForCacheSync(ctx.Done(), p.synced...) {
		return nil
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: p.client.CoreV1().Events("")})
	p.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "baremetal-load-balancer"})
	return p.elect(ctx)
}

// ProviderName implements cloudprovider.Interface.
func (p *Provider) ProviderName() string { return ProviderName }

// HasClusterID implements cloudprovider.Interface: machines carry no mark of a cluster.
func (p *Provider) HasClusterID() bool { return true }

// LoadBalancer implements cloudprovider.Interface: there are some where there are pools.
func (p *Provider) LoadBalancer() (cloudprovider.LoadBalancer, bool) {
	return loadBalancers{p}, len(p.pools) > 0
}

// InstancesV2 implements cloudprovider.Interface.
func (p *Provider) InstancesV2() (cloudprovider.InstancesV2, bool) {
	return instances{&p.opts.Config}, true
}

// Instances implements cloudprovider.Interface; there are InstancesV2.
func (p *Provider) Instances() (cloudprovider.Instances, bool) { return nil, false }

// Zones implements cloudprovider.Interface; InstancesV2 tell them.
func (p *Provider) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters implements cloudprovider.Interface; there are none.
func (p *Provider) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// Routes implements cloudprovider.Interface; nodes make their own.
func (p *Provider) Routes() (cloudprovider.Routes, bool) { return nil, false }
