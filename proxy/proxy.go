// Package proxy makes Services work on a node: it watches Services and EndpointSlices,
// decides what each port means here (model.go, endpoints.go, pure) and has a backend program it.
//
// Owns: watching, deciding, retrying, forgetting stale flows, the health ports of Services, its
// own health and metrics. Must not: know how rules look (proxy/nftables does), talk to other
// components.
package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// Backend programs ports into the kernel. Apply is called by one goroutine at a time.
type Backend interface {
	// Apply makes the ports of the given Services (namespace/name) be exactly these; none
	// removes them. All or nothing: after an error the next Apply must repair.
	Apply(changed map[string][]Port) error
	// NodePortAddresses are the host's addresses of a family at which node ports are open; none
	// and no error: all.
	NodePortAddresses(v6 bool) ([]netip.Addr, error)
}

// Config configures a Proxy.
type Config struct {
	NodeName string
	// Informers serve Services and EndpointSlices; the caller starts them.
	Informers informers.SharedInformerFactory
	Backend   Backend
	// Families that Backend programs.
	Families []corev1.IPFamily
	// MinSyncPeriod is the least time from one call of Backend to the next; 0: none.
	MinSyncPeriod time.Duration
	// DeleteFlows forgets tracked connections; nil: netlink.DeleteFlows.
	DeleteFlows func(match func(netlink.Flow) bool, kinds ...netlink.FlowKind) (int, error)
	// Clock; nil: the real one.
	Clock  clock.Clock
	Logger *slog.Logger
}

// Proxy keeps the kernel's rules equal to the API's Services.
type Proxy struct {
	cfg     Config
	svcs    cache.Indexer
	slices  cache.Indexer
	synced  []cache.DoneChecker
	kick    chan struct{}
	applied chan struct{} // closed after the first success
	started time.Time

	mu    sync.Mutex
	dirty map[string]*dirt
	zone  string

	status  *status
	metrics *metrics
	health  *healthPorts

	current map[string]service // as programmed; the loop's own
}

// service is what a Service means here.
type service struct {
	ports  []Port
	health []healthPort
}

// dirt is what is known of a Service's change.
type dirt struct {
	// triggers are when what its endpoints show happened (see
	// corev1.EndpointsLastChangeTriggerTime).
	triggers []time.Time
}

const byService = "proxy/service"

// retryAfter is the pause before the kernel is tried again.
const retryAfter = time.Second

// New builds a Proxy.
func New(cfg Config) (*Proxy, error) {
	if cfg.DeleteFlows == nil {
		cfg.DeleteFlows = netlink.DeleteFlows
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	svcs := cfg.Informers.Core().V1().Services().Informer()
	eps := cfg.Informers.Discovery().V1().EndpointSlices().Informer()
	p := &Proxy{
		cfg: cfg, svcs: svcs.GetIndexer(), slices: eps.GetIndexer(), started: cfg.Clock.Now(),
		kick: make(chan struct{}, 1), applied: make(chan struct{}),
		dirty: map[string]*dirt{}, current: map[string]service{},
		status: newStatus(cfg.Families, cfg.Clock), metrics: newMetrics(cfg.Families, cfg.Clock),
	}
	p.health = newHealthPorts(cfg.Backend.NodePortAddresses, p.status.healthy, cfg.Logger)
	err := eps.AddIndexers(cache.Indexers{byService: func(o any) ([]string, error) {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			return []string{sliceOwner(s)}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("index endpoint slices: %w", err)
	}
	for _, inf := range []cache.SharedIndexInformer{svcs, eps} {
		reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { p.touch(o, false) }, DeleteFunc: func(o any) { p.touch(o, true) },
			// A slice may move to another Service: both are touched.
			UpdateFunc: func(old, new any) {
				if moved(old, new) {
					p.touch(old, true)
				}
				p.touch(new, false)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("watch services: %w", err)
		}
		p.synced = append(p.synced, reg.HasSyncedChecker())
	}
	return p, nil
}

func sliceOwner(s *discoveryv1.EndpointSlice) string {
	return s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
}

func moved(old, new any) bool {
	a, ok1 := old.(*discoveryv1.EndpointSlice)
	b, ok2 := new.(*discoveryv1.EndpointSlice)
	return ok1 && ok2 && a.Labels[discoveryv1.LabelServiceName] != b.Labels[discoveryv1.LabelServiceName]
}

func (p *Proxy) touch(o any, deleted bool) {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = d.Obj
	}
	var key string
	var trigger time.Time
	switch o := o.(type) {
	case *corev1.Service:
		key = o.Namespace + "/" + o.Name
		p.metrics.serviceChanges.Add(1)
	case *discoveryv1.EndpointSlice:
		key = sliceOwner(o)
		p.metrics.endpointChanges.Add(1)
		if text := o.Annotations[corev1.EndpointsLastChangeTriggerTime]; text != "" && !deleted {
			// One that can't be read counts for nothing, as upstream.
			if t, err := time.Parse(time.RFC3339Nano, text); err == nil && t.After(p.started) {
				trigger = t
			}
		}
	default:
		return
	}
	p.mu.Lock()
	d := p.dirty[key]
	if d == nil {
		d = &dirt{}
		p.dirty[key] = d
	}
	if !trigger.IsZero() {
		d.triggers = append(d.triggers, trigger)
	}
	p.mu.Unlock()
	p.wake()
}

func (p *Proxy) wake() {
	p.status.queued()
	p.metrics.queued()
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// SetZone gives the node's zone (its label topology.kubernetes.io/zone), which endpoints
// are hinted for; unset, zone hints count for nothing.
func (p *Proxy) SetZone(zone string) {
	p.mu.Lock()
	if zone == p.zone {
		p.mu.Unlock()
		return
	}
	p.zone = zone
	for _, key := range p.svcs.ListKeys() {
		if p.dirty[key] == nil {
			p.dirty[key] = &dirt{}
		}
	}
	p.mu.Unlock()
	p.wake()
}

// SetNode tells what the API has of the node; nil: nothing.
func (p *Proxy) SetNode(n *corev1.Node) {
	p.status.setNode(n)
	if n != nil {
		p.SetZone(n.Labels[corev1.LabelTopologyZone])
	}
}

// Refresh has the backend called again though no Service has changed.
func (p *Proxy) Refresh() {
	p.mu.Lock()
	p.dirty[""] = &dirt{} // no Service has this name
	p.mu.Unlock()
	p.wake()
}

// WaitReady blocks until the Services of the cluster are programmed.
func (p *Proxy) WaitReady(ctx context.Context) error {
	select {
	case <-p.applied:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run programs until ctx ends. Rules stay in the kernel: Services go on working while no
// proxy runs.
func (p *Proxy) Run(ctx context.Context) error {
	defer p.health.close()
	if !cache.WaitFor(ctx, "", p.synced...) {
		return nil
	}
	first := true
	var retry <-chan time.Time
	for {
		var pause <-chan time.Time
		if p.cfg.MinSyncPeriod > 0 {
			pause = p.cfg.Clock.After(p.cfg.MinSyncPeriod)
		}
		if err := p.sync(first); err != nil {
			p.cfg.Logger.Error("program services", "err", err)
			retry = p.cfg.Clock.After(retryAfter)
		} else if retry = nil; first {
			first = false
			close(p.applied)
		}
		select {
		case <-p.kick:
		case <-retry:
		case <-ctx.Done():
			return nil
		}
		if pause == nil {
			continue
		}
		select {
		case <-pause:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *Proxy) sync(first bool) error {
	start := p.cfg.Clock.Now()
	p.mu.Lock()
	dirty := p.dirty
	p.dirty = map[string]*dirt{}
	here := where{p.cfg.NodeName, p.zone}
	p.mu.Unlock()
	changed, next := make(map[string][]Port, len(dirty)), make(map[string]service, len(dirty))
	for key := range dirty {
		s := p.service(key, here)
		next[key] = s
		if !slices.EqualFunc(s.ports, p.current[key].ports, equal) {
			changed[key] = s.ports
		}
	}
	_, refresh := dirty[""]
	if len(changed) > 0 || first || refresh {
		if err := p.cfg.Backend.Apply(changed); err != nil {
			p.metrics.failed()
			p.mu.Lock()
			for key, d := range dirty {
				if again := p.dirty[key]; again != nil {
					d.triggers = append(d.triggers, again.triggers...)
				}
				p.dirty[key] = d
			}
			p.mu.Unlock()
			return err
		}
		p.metrics.synced(start, first)
	}
	flows := newStale()
	for key := range changed {
		for i := range p.current[key].ports {
			flows.gone(&p.current[key].ports[i])
		}
		for i := range changed[key] {
			flows.changed(&changed[key][i])
		}
	}
	p.keep(next)
	for _, d := range dirty {
		p.metrics.programmed(d.triggers)
	}
	p.status.updated()
	return p.forget(flows)
}

// keep enters what is programmed into the books.
func (p *Proxy) keep(next map[string]service) {
	healthChanged := false
	for key, s := range next {
		was := p.current[key]
		p.metrics.count(was.ports, -1)
		p.metrics.count(s.ports, 1)
		healthChanged = healthChanged || !slices.Equal(was.health, s.health)
		if len(s.ports) == 0 {
			delete(p.current, key)
		} else {
			p.current[key] = s
		}
		if len(s.health)+len(was.health) > 0 {
			p.health.set(key, s.health)
		}
	}
	if healthChanged {
		p.health.open()
	}
}

func (p *Proxy) service(key string, here where) service {
	o, ok, err := p.svcs.GetByKey(key)
	if err != nil || !ok {
		return service{}
	}
	objs, err := p.slices.ByIndex(byService, key)
	if err != nil {
		return service{} // only an index that was never added
	}
	eps := make([]*discoveryv1.EndpointSlice, len(objs))
	for i, s := range objs {
		eps[i] = s.(*discoveryv1.EndpointSlice)
	}
	svc := o.(*corev1.Service)
	return service{ports: ports(svc, eps, here), health: healthOf(svc, eps, here.node)}
}

// forget drops flows that go where their port no longer leads.
func (p *Proxy) forget(flows *stale) (err error) {
	if flows.empty() {
		return nil
	}
	if flows.own, err = localAddresses(); err != nil {
		return err
	}
	start := p.cfg.Clock.Now()
	n, err := p.cfg.DeleteFlows(flows.match, flows.kinds()...)
	p.metrics.forgot(start, n)
	if n > 0 {
		p.cfg.Logger.Debug("forgot flows to endpoints that are gone", "flows", n)
	}
	return err
}

func equal(a, b Port) bool {
	return a.Name == b.Name && a.V6 == b.V6 && a.Protocol == b.Protocol && a.Port == b.Port && a.NodePort == b.NodePort && a.HealthPort == b.HealthPort &&
		a.ClusterIP == b.ClusterIP && a.Affinity == b.Affinity && a.Endpoints == b.Endpoints &&
		a.InternalLocal == b.InternalLocal && a.ExternalLocal == b.ExternalLocal &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) && slices.Equal(a.Sources, b.Sources) &&
		slices.Equal(a.Cluster, b.Cluster) && slices.Equal(a.Local, b.Local) && slices.Equal(a.Here, b.Here) && slices.Equal(a.Serving, b.Serving)
}
