// Package policy enforces NetworkPolicies for the pods of one node.
//
// What is allowed follows from policies, namespaces and pods alone (decide.go, members.go: pure). The kernel
// gets it as data: a map from a pod's address to a chain that pods which are allowed the same share, and sets
// of peers that policies which select the same share, so that a pod that comes or goes elsewhere is one
// element of a set. Packets of a flow that was allowed pass, whatever is decided later.
//
// Owns: its nftables tables. Must not: know links, Services or CRI; touch other tables; watch pods while there
// is no policy.
package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/host/nft"
)

// Config configures an Enforcer.
type Config struct {
	NodeName string
	Client   kubernetes.Interface
	// Table is the name of the nftables tables, one a family.
	Table string
	// PodCIDRs of the cluster say which families pods have.
	PodCIDRs []netip.Prefix
	// Ports begin the names of pods' links where a bridge joins them; empty: none does.
	Ports string
	// Clock; nil: the real one.
	Clock  clock.Clock
	Logger *slog.Logger
}

// Enforcer keeps the kernel's tables equal to the API's policies.
type Enforcer struct {
	cfg    Config
	tables []*table
	near   *linkLocal
	kick   chan struct{}

	// forbidden: the API server lets this node read no policies, as others' that knows nothing of ours.
	forbidden atomic.Bool

	policies   *feed[rules]
	namespaces *feed[labelSet]
	pods       *feed[pod]

	mu      sync.Mutex
	book    map[string]sandbox // by id
	moved   bool               // the book has changed since the loop looked
	asked   uint64             // counts questions to the loop
	waiting []waiter

	// The loop's own.
	dir   *directory
	local map[name]*pod // as the API has them
}

// sandbox is what the runtime has told of one.
type sandbox struct {
	name
	uid   string
	addrs []netip.Addr
}

type waiter struct {
	question uint64
	done     chan struct{}
}

const (
	// retryAfter is the pause before the kernel is tried again.
	retryAfter = time.Second
	// linger is how long pods are watched on after the last policy has gone: there may be another soon.
	linger = time.Minute
	// patience is how long a pod waits for its policies to be programmed. They are unknown for so long only
	// if the API server does not answer.
	patience = 10 * time.Second
)

// New builds an Enforcer. It touches nothing: what an earlier process programmed is in force until
// policies, namespaces and pods are known.
func New(cfg Config) (*Enforcer, error) {
	if cfg.NodeName == "" || cfg.Client == nil || cfg.Table == "" || len(cfg.PodCIDRs) == 0 {
		return nil, errors.New("network policies need a node name, a client, a table name and a pod CIDR")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	e := &Enforcer{
		cfg: cfg, near: newLinkLocal(cfg.Table, cfg.Ports), kick: make(chan struct{}, 1), book: map[string]sandbox{},
		dir: newDirectory(), local: map[name]*pod{},
	}
	for _, v6 := range []bool{false, true} {
		if slices.ContainsFunc(cfg.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 }) {
			e.tables = append(e.tables, newTable(v6, cfg.Table, cfg.Logger))
		}
	}
	e.policies = newFeed(func(o runtime.Object) (name, *rules) {
		p, ok := o.(*networkingv1.NetworkPolicy)
		if !ok {
			return name{}, nil
		}
		r, err := read(p)
		if err != nil {
			cfg.Logger.Error("read a network policy; what is not understood allows nothing", "err", err)
		}
		return name{p.Namespace, p.Name}, r
	}, func(*rules, *rules) bool { return false }, e.wake)
	e.pods = newFeed(func(o runtime.Object) (name, *pod) {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return name{}, nil
		}
		return name{p.Namespace, p.Name}, podOf(p)
	}, (*pod).equal, e.wake)
	e.namespaces = newFeed(func(o runtime.Object) (name, *labelSet) {
		n, ok := o.(*corev1.Namespace)
		if !ok {
			return name{}, nil
		}
		l := labelsOf(n.Labels)
		return name{name: n.Name}, &l
	}, func(a, b *labelSet) bool { return slices.Equal(*a, *b) }, e.wake)
	return e, nil
}

// clear forgets what is watched only while there are policies.
func (e *Enforcer) clear() {
	e.pods.clear()
	e.namespaces.clear()
	e.dir, e.local = newDirectory(), map[name]*pod{}
}

func (e *Enforcer) wake() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// Remove takes the tables away. It needs no running Enforcer.
func Remove(table string) error {
	return errors.Join(nft.Remove(nft.IPv4, table), nft.Remove(nft.IPv6, table), newLinkLocal(table, "-").keepApart(false))
}

// Admit tells of a sandbox that has its addresses, before anything runs in it, and returns once what its
// pod is allowed is programmed, or all of its traffic dropped until it is. Where no policy can concern the
// pod it returns at once.
func (e *Enforcer) Admit(ctx context.Context, id, namespace, podName, uid string, addrs []netip.Addr) error {
	if e.tell(id, sandbox{name{namespace, podName}, uid, addrs}); !e.concerned(namespace) {
		return nil
	}
	done := e.ask()
	late := e.cfg.Clock.NewTimer(patience)
	defer late.Stop()
	select {
	case <-done:
		return nil
	case <-late.C():
		if !e.concerned(namespace) {
			return nil
		}
		return fmt.Errorf("network policies of pod %s/%s are not known or not programmed after %s; is the API server there? (see the node's log)", namespace, podName, patience)
	case <-ctx.Done():
		return fmt.Errorf("wait for network policies of pod %s/%s: %w", namespace, podName, context.Cause(ctx))
	}
}

// Forget tells that a sandbox has no addresses any more.
func (e *Enforcer) Forget(id string) {
	e.mu.Lock()
	_, ok := e.book[id]
	delete(e.book, id)
	e.moved = e.moved || ok
	e.mu.Unlock()
	if ok {
		e.wake()
	}
}

func (e *Enforcer) tell(id string, s sandbox) {
	e.mu.Lock()
	e.book[id] = s
	e.moved = true
	e.mu.Unlock()
	e.wake()
}

// concerned tells whether pods of a namespace may be isolated.
func (e *Enforcer) concerned(namespace string) bool {
	e.policies.mu.Lock()
	defer e.policies.mu.Unlock()
	if !e.policies.synced {
		return !e.forbidden.Load()
	}
	for n := range e.policies.items {
		if n.namespace == namespace {
			return true
		}
	}
	return false
}

// ask for what is known now to be programmed.
func (e *Enforcer) ask() <-chan struct{} {
	e.mu.Lock()
	e.asked++
	w := waiter{e.asked, make(chan struct{})}
	e.waiting = append(e.waiting, w)
	e.mu.Unlock()
	e.wake()
	return w.done
}

// answer those who asked before the loop looked.
func (e *Enforcer) answer(upTo uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = slices.DeleteFunc(e.waiting, func(w waiter) bool {
		if w.question > upTo {
			return false
		}
		close(w.done)
		return true
	})
}

// Run enforces until ctx ends. The tables stay: policies hold while no process runs.
func (e *Enforcer) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { e.policies.watch(ctx, e.policyLists(), &networkingv1.NetworkPolicy{}) })
	var stop func() // what is watched while there are policies
	defer func() {
		if stop != nil {
			stop()
		}
	}()
	var retry, idle <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.kick:
		case <-retry:
		case <-idle:
			idle = nil
			if e.policies.len() == 0 && stop != nil {
				stop()
				stop = nil
				e.clear()
			}
		}
		retry = nil
		if !e.policies.hasSynced() {
			continue
		}
		switch some := e.policies.len() > 0; {
		case !some && stop != nil && idle == nil:
			idle = e.cfg.Clock.After(linger)
		case some:
			idle = nil
			if stop == nil {
				stop = e.watchAll(ctx)
			}
		}
		if err := e.sync(); err != nil {
			e.cfg.Logger.Error("program network policies", "err", err)
			retry = e.cfg.Clock.After(retryAfter)
		}
	}
}

// watchAll watches pods and namespaces until stop is called.
func (e *Enforcer) watchAll(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { e.pods.watch(ctx, e.podLists(), &corev1.Pod{}) })
	all.Go(func() { e.namespaces.watch(ctx, e.namespaceLists(), &corev1.Namespace{}) })
	return func() { cancel(); all.Wait() }
}

// sync takes up what has changed and programs it, once everything is known.
func (e *Enforcer) sync() error {
	e.mu.Lock()
	question := e.asked
	e.mu.Unlock()
	e.policies.take(e.dir.setPolicy)
	switch some := len(e.dir.policies) > 0; {
	case e.pods.hasSynced() && e.namespaces.hasSynced():
		e.takeUp()
	case some:
		return nil // what an earlier process programmed is in force
	}
	want := newDecision()
	if len(e.dir.policies) > 0 {
		want = e.decide()
	}
	e.dir.follow(want.profiles())
	var errs []error
	for _, t := range e.tables {
		errs = append(errs, t.apply(want, e.dir.groups))
	}
	if err := errors.Join(errs...); err != nil {
		for _, t := range e.tables {
			t.held = nil
		}
		return err
	}
	for _, g := range e.dir.groups {
		clear(g.changed)
	}
	if err := e.near.keepApart(len(want[ingress])+len(want[egress]) > 0); err != nil {
		// There are kernels without tables for bridges. All else is in force.
		e.cfg.Logger.Warn("pods of one node may reach each other's link-local addresses, whatever network policies say", "err", err)
	}
	e.answer(question)
	return nil
}

// takeUp what pods and namespaces have become.
func (e *Enforcer) takeUp() {
	e.namespaces.take(func(n name, l *labelSet) {
		if l == nil {
			l = new(labelSet)
		}
		e.dir.setNamespace(n.name, *l)
	})
	e.mu.Lock()
	moved := e.moved
	e.moved = false
	e.mu.Unlock()
	e.pods.take(func(n name, p *pod) {
		if p == nil || p.node != e.cfg.NodeName {
			delete(e.local, n)
			e.dir.setPod(n, p)
			return
		}
		e.local[n] = p
		moved = true
	})
	if !moved {
		return
	}
	for n, p := range e.local { // one's address may have been another's
		if p, was := e.placed(p), e.dir.pods[n.namespace][n.name]; was == nil || !was.equal(p) {
			e.dir.setPod(n, p)
		}
	}
}

// placed is a pod of this node with the addresses that its sandbox has: the API learns them later, and for a
// moment has those of one that is gone.
func (e *Enforcer) placed(p *pod) *pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	var own, others []netip.Addr
	for _, s := range e.book {
		if s.name == p.name && s.uid == p.uid {
			own = append(own, s.addrs...)
		} else {
			others = append(others, s.addrs...)
		}
	}
	for _, a := range p.addrs {
		if !slices.Contains(own, a) && !slices.Contains(others, a) {
			own = append(own, a)
		}
	}
	out := *p
	out.addrs = own
	return &out
}

// decide for the pods of this node.
func (e *Enforcer) decide() decision {
	want := newDecision()
	policies := map[string][]*rules{}
	of := func(ns string) []*rules {
		if _, ok := policies[ns]; !ok {
			policies[ns] = e.dir.policiesOf(ns)
		}
		return policies[ns]
	}
	put := func(addrs []netip.Addr, profiles [directions]*profile) {
		for d, p := range profiles {
			for _, a := range addrs {
				if p != nil {
					want[d][a] = p
				}
			}
		}
	}
	for n := range e.local {
		if p := e.dir.pods[n.namespace][n.name]; p != nil && len(of(n.namespace)) > 0 {
			put(p.addrs, decide(p, of(n.namespace)))
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.book {
		p := e.local[s.name]
		if (p == nil || p.uid != s.uid) && len(of(s.namespace)) > 0 {
			put(s.addrs, closed())
		}
	}
	return want
}

func (e *Enforcer) policyLists() cache.ListerWatcher {
	c := e.cfg.Client.NetworkingV1().NetworkPolicies(metav1.NamespaceAll)
	return lists(e.cfg.Client, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		all, err := c.List(ctx, o)
		e.answered(err)
		return all, err
	}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := c.Watch(ctx, o)
		e.answered(err)
		return w, err
	})
}

// answered notes whether the API server lets this node read policies. Pods must start where it does not: such
// a cluster has been set up without skiff, and its policies are others' to enforce.
func (e *Enforcer) answered(err error) {
	if !apierrors.IsForbidden(err) {
		if err == nil {
			e.forbidden.Store(false)
		}
		return
	}
	if !e.forbidden.Swap(true) {
		e.cfg.Logger.Error("network policies are not enforced: grant nodes what ClusterRole skiff:node-network-policy says, or use --network-policy=false", "err", err)
	}
}

func (e *Enforcer) podLists() cache.ListerWatcher {
	c := e.cfg.Client.CoreV1().Pods(metav1.NamespaceAll)
	return lists(e.cfg.Client, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) }, c.Watch)
}

func (e *Enforcer) namespaceLists() cache.ListerWatcher {
	c := e.cfg.Client.CoreV1().Namespaces()
	return lists(e.cfg.Client, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) }, c.Watch)
}

func lists(client kubernetes.Interface, list func(context.Context, metav1.ListOptions) (runtime.Object, error), watch func(context.Context, metav1.ListOptions) (watch.Interface, error)) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: watch}, client)
}
