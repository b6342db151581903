// Package proxy makes Services work on a node: it watches Services and EndpointSlices,
// decides what each port means here (model.go, pure) and has a backend program it.
//
// Owns: watching, deciding, retrying, forgetting stale UDP flows. Must not: know how rules
// look (proxy/nftables does), talk to other components.
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

	"github.com/skiff-k8s/skiff/host/netlink"
)

// Backend programs ports into the kernel. Apply is called by one goroutine at a time.
type Backend interface {
	// Apply makes the ports of the given Services (namespace/name) be exactly these; none
	// removes them. All or nothing: after an error the next Apply must repair.
	Apply(changed map[string][]Port) error
}

// Config configures a Proxy.
type Config struct {
	NodeName string
	// Informers serve Services and EndpointSlices; the caller starts them.
	Informers informers.SharedInformerFactory
	Backend   Backend
	// DeleteFlows forgets tracked connections; nil: netlink.DeleteFlows.
	DeleteFlows func(match func(netlink.Flow) bool) (int, error)
	Logger      *slog.Logger
}

// Proxy keeps the kernel's rules equal to the API's Services.
type Proxy struct {
	cfg     Config
	svcs    cache.Indexer
	slices  cache.Indexer
	synced  []cache.InformerSynced
	kick    chan struct{}
	applied chan struct{} // closed after the first success

	mu    sync.Mutex
	dirty map[string]bool
	zone  string

	current map[string][]Port // as programmed; the loop's own
}

const byService = "proxy/service"

// retryAfter is the pause before the kernel is tried again.
const retryAfter = time.Second

// New builds a Proxy.
func New(cfg Config) (*Proxy, error) {
	if cfg.DeleteFlows == nil {
		cfg.DeleteFlows = netlink.DeleteFlows
	}
	svcs := cfg.Informers.Core().V1().Services().Informer()
	eps := cfg.Informers.Discovery().V1().EndpointSlices().Informer()
	p := &Proxy{
		cfg: cfg, svcs: svcs.GetIndexer(), slices: eps.GetIndexer(),
		kick: make(chan struct{}, 1), applied: make(chan struct{}),
		dirty: map[string]bool{}, current: map[string][]Port{},
	}
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
			AddFunc: p.touch, DeleteFunc: p.touch,
			// A slice may move to another Service: both are touched.
			UpdateFunc: func(old, new any) { p.touch(old); p.touch(new) },
		})
		if err != nil {
			return nil, fmt.Errorf("watch services: %w", err)
		}
		p.synced = append(p.synced, reg.HasSynced)
	}
	return p, nil
}

func sliceOwner(s *discoveryv1.EndpointSlice) string {
	return s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
}

func (p *Proxy) touch(o any) {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = d.Obj
	}
	var key string
	switch o := o.(type) {
	case *corev1.Service:
		key = o.Namespace + "/" + o.Name
	case *discoveryv1.EndpointSlice:
		key = sliceOwner(o)
	default:
		return
	}
	p.mu.Lock()
	p.dirty[key] = true
	p.mu.Unlock()
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// SetZone gives the node's zone (its label topology.kubernetes.io/zone), which endpoints
// are hinted for; unset, zone hints count for nothing.
func (p *Proxy) SetZone(zone string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if zone == p.zone {
		return
	}
	p.zone = zone
	for _, key := range p.svcs.ListKeys() {
		p.dirty[key] = true
	}
	select {
	case p.kick <- struct{}{}:
	default:
	}
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
	if !cache.WaitForCacheSync(ctx.Done(), p.synced...) {
		return nil
	}
	first := true
	var retry <-chan time.Time
	for {
		if err := p.sync(first); err != nil {
			p.cfg.Logger.Error("program services", "err", err)
			retry = time.After(retryAfter)
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
	}
}

func (p *Proxy) sync(first bool) error {
	p.mu.Lock()
	dirty := p.dirty
	p.dirty = map[string]bool{}
	p.mu.Unlock()
	changed := map[string][]Port{}
	var stale []Port
	for key := range dirty {
		next := p.portsOf(key)
		if slices.EqualFunc(next, p.current[key], equal) {
			continue
		}
		changed[key] = next
		for i := range next {
			if next[i].UDP() {
				stale = append(stale, next[i])
			}
		}
		for _, old := range p.current[key] {
			if old.UDP() && len(next) == 0 {
				old.Internal, old.External = nil, nil
				stale = append(stale, old)
			}
		}
	}
	if len(changed) == 0 && !first {
		return nil
	}
	if err := p.cfg.Backend.Apply(changed); err != nil {
		p.mu.Lock()
		for key := range dirty {
			p.dirty[key] = true
		}
		p.mu.Unlock()
		return err
	}
	for key, next := range changed {
		if len(next) == 0 {
			delete(p.current, key)
		} else {
			p.current[key] = next
		}
	}
	return p.forget(stale)
}

func (p *Proxy) portsOf(key string) []Port {
	o, ok, err := p.svcs.GetByKey(key)
	if err != nil || !ok {
		return nil
	}
	objs, err := p.slices.ByIndex(byService, key)
	if err != nil {
		return nil // only an index that was never added
	}
	eps := make([]*discoveryv1.EndpointSlice, len(objs))
	for i, s := range objs {
		eps[i] = s.(*discoveryv1.EndpointSlice)
	}
	p.mu.Lock()
	here := where{p.cfg.NodeName, p.zone}
	p.mu.Unlock()
	return ports(o.(*corev1.Service), eps, here)
}

// forget drops UDP flows that go where their port no longer sends: without a reset,
// a client that keeps its socket would stay with a dead endpoint for ever.
func (p *Proxy) forget(changed []Port) error {
	if len(changed) == 0 {
		return nil
	}
	type target struct{ internal, external []netip.AddrPort }
	byAddr, byPort := map[netip.AddrPort]target{}, map[uint16]target{}
	for i := range changed {
		c := &changed[i]
		t := target{c.Internal, c.External}
		for _, a := range c.ClusterIPs {
			byAddr[netip.AddrPortFrom(a, c.Port)] = target{c.Internal, nil}
		}
		for _, a := range c.Externals {
			byAddr[netip.AddrPortFrom(a, c.Port)] = t
		}
		if c.NodePort != 0 {
			byPort[c.NodePort] = t
		}
	}
	n, err := p.cfg.DeleteFlows(func(f netlink.Flow) bool {
		if f.Protocol != protocols[corev1.ProtocolUDP] {
			return false
		}
		t, ok := byAddr[f.Original]
		if !ok {
			// A node port is reached by the node's own addresses: only flows that were
			// translated, or sent there in vain, end at another port.
			if t, ok = byPort[f.Original.Port()]; !ok || f.Answers.Port() == f.Original.Port() && f.Answers.Addr() != f.Original.Addr() {
				return false
			}
		}
		return !slices.Contains(t.internal, f.Answers) && !slices.Contains(t.external, f.Answers)
	})
	if err != nil {
		return err
	}
	if n > 0 {
		p.cfg.Logger.Debug("forgot UDP flows to endpoints that are gone", "flows", n)
	}
	return nil
}

func equal(a, b Port) bool {
	return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port && a.NodePort == b.NodePort &&
		a.Affinity == b.Affinity && a.KeepSource == b.KeepSource && slices.Equal(a.ClusterIPs, b.ClusterIPs) &&
		slices.Equal(a.Externals, b.Externals) && slices.Equal(a.Internal, b.Internal) && slices.Equal(a.External, b.External)
}
