// Package bootstrap makes the objects that every cluster has and keeps them: system
// namespaces, the standard RBAC policy, priority classes, priority and fairness, the default
// ServiceCIDR, the `kubernetes` Service and the endpoints of all API servers behind it.
//
// Owns: what these objects are. Must not: overwrite what administrators changed where the
// field is theirs. It writes through the caches, below admission and authorization, as
// part of the API server.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/store"
)

// Config says what the cluster looks like.
type Config struct {
	Caches lookup.Caches
	Store  store.Store
	// Prefix of keys in the store; /registry/ if empty.
	Prefix string
	// ServiceCIDRs are the ranges of cluster IPs, the default family's first.
	ServiceCIDRs []netip.Prefix
	// AdvertiseAddress and Port are where this API server is reached.
	AdvertiseAddress netip.Addr
	Port             int32
	// Hostname makes the identity that the server has in the cluster; empty: it has none.
	Hostname string
	// Peer is where other API servers reach this one; none: the advertised address.
	Peer netip.AddrPort
	// Endpoints is how the servers' addresses are kept; empty: Leased. Servers is how many
	// there are, for Counted; 0: one.
	Endpoints Reconciler
	Servers   int
	// Serving blocks until this server takes requests: clients are led to it from then on.
	// nil: it does so already.
	Serving func(ctx context.Context) error
	// Policy is kept beside the standard one.
	Policy Policy
	// ClientCA and RequestHeaderCA are published for extension API servers, as PEM; either may be nil.
	ClientCA, RequestHeaderCA func() []byte
	Log                       *slog.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker
}

// Bootstrap is a component: ready after its first pass, at work until stopped.
type Bootstrap struct {
	Config
	endpoints *endpoints
	identity  *identity
	ready     chan struct{}
	once      sync.Once

	mu        sync.Mutex // of what is announced
	serving   bool
	left      bool
	collected time.Time // when Leases of others were looked through
}

// New builds a Bootstrap.
func New(c Config) (*Bootstrap, error) {
	switch {
	case c.Caches == nil || c.Store == nil:
		return nil, errors.New("bootstrap: Caches and Store must be set")
	case len(c.ServiceCIDRs) == 0:
		return nil, errors.New("bootstrap: at least one service CIDR is needed")
	case !c.AdvertiseAddress.IsValid() || c.Port == 0:
		return nil, errors.New("bootstrap: the API server's address and port must be set")
	case c.Endpoints != "" && !slices.Contains(Reconcilers, c.Endpoints):
		return nil, fmt.Errorf("bootstrap: there are no endpoints of kind %q", c.Endpoints)
	}
	if c.Endpoints == "" {
		c.Endpoints = Leased
	}
	c.Servers = max(c.Servers, 1)
	if !c.Peer.IsValid() {
		c.Peer = netip.AddrPortFrom(c.AdvertiseAddress, uint16(c.Port))
	}
	if c.Prefix == "" {
		c.Prefix = "/registry/"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	b := &Bootstrap{Config: c, ready: make(chan struct{}), serving: c.Serving == nil}
	b.endpoints = newEndpoints(b)
	b.identity = newIdentity(b)
	return b, nil
}

// WaitReady returns after the first pass.
func (b *Bootstrap) WaitReady(ctx context.Context) error {
	select {
	case <-b.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// heartbeat is how often the API server says that it is there, and looks after what must exist.
const heartbeat = 10 * time.Second

// Run makes what is missing, then keeps it until ctx ends.
func (b *Bootstrap) Run(ctx context.Context) error {
	if err := b.first(ctx, b.Ensure); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	b.once.Do(func() { close(b.ready) })

	serving := make(chan struct{})
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if b.Serving != nil {
		b.retract(ctx)
		waiting.Go(func() {
			if b.Serving(ctx) == nil {
				close(serving)
			}
		})
	}
	tick := b.Clock.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			b.Leave(context.WithoutCancel(ctx))
			return nil
		case <-serving:
			serving = nil
			b.mu.Lock()
			b.serving = true
			b.mu.Unlock()
			err = b.announce(ctx)
		case <-tick.C():
			err = b.keep(ctx)
		}
		if err != nil && ctx.Err() == nil {
			b.Log.Warn("keep the cluster's standard objects", "err", err)
		}
	}
}

// retract takes away what a process that ended without notice has left: nobody is led here
// before requests are served. Where this is the only server nothing is gained by that.
func (b *Bootstrap) retract(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	if err := b.endpoints.withdraw(ctx, false); err != nil {
		b.Log.Debug("did not take away the address of the process before", "err", err)
	}
}

// announce says that this API server is there, once it serves and until it leaves.
func (b *Bootstrap) announce(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.serving || b.left {
		return nil
	}
	errs := []error{b.endpoints.announce(ctx), b.identity.announce(ctx)}
	if now := b.Clock.Now(); now.Sub(b.collected) >= identityTime && b.Hostname != "" {
		b.collected = now
		errs = append(errs, b.identity.collect(ctx))
	}
	return errors.Join(errs...)
}

// leaveTime bounds how long the end waits for the store.
const leaveTime = 2 * time.Second

// Leave takes this API server out of the endpoints, for good: it is about to end, and clients
// are to stop coming before it is gone. What does not succeed runs out by itself.
func (b *Bootstrap) Leave(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left {
		return
	}
	b.left = true
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	if err := errors.Join(b.endpoints.withdraw(ctx, true), b.identity.withdraw(ctx)); err != nil {
		b.Log.Info("did not take this API server out of the kubernetes endpoints", "err", err)
	}
}

// first tries until everything is there. It gives up, after some tries, on what waiting does not
// mend: a starved machine is no reason to end, as the store and the caches will answer.
func (b *Bootstrap) first(ctx context.Context, ensure func(context.Context) error) error {
	const tries = 5
	for pass := 1; ; pass++ {
		err := ensure(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if pass >= tries && !passes(err) {
			return fmt.Errorf("bootstrap: %w", err)
		}
		b.Log.Warn("make the cluster's standard objects, trying again", "err", err)
		timer := b.Clock.NewTimer(200 * time.Millisecond << min(pass-1, tries-1))
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// passes says whether an error is one of load, of which the server itself tells clients to try again.
func passes(err error) bool {
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}

// keep is what a heartbeat does: cheap reads from the cache, and one write.
func (b *Bootstrap) keep(ctx context.Context) error {
	return errors.Join(
		b.ensureAll(ctx, namespaces, b.namespaces()),
		b.ensureServiceCIDR(ctx),
		b.ensureService(ctx),
		b.publishAuthentication(ctx),
		b.ensureFairness(ctx),
		b.announce(ctx),
	)
}

// Ensure makes one pass over everything.
func (b *Bootstrap) Ensure(ctx context.Context) error {
	policy, err := StandardPolicy()
	if err != nil {
		return err
	}
	if err := b.ensureAll(ctx, namespaces, b.namespaces()); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	byResource := map[schema.GroupResource][]api.Object{priorityClasses: systemPriorityClasses()}
	for _, o := range append(policy.objects(), b.Policy.objects()...) {
		gr := rbacResource(o)
		byResource[gr] = append(byResource[gr], o)
	}
	for gr, objs := range byResource {
		g.Go(func() error { return b.ensureAll(ctx, gr, objs) })
	}
	g.Go(func() error {
		if err := b.ensureServiceCIDR(ctx); err != nil {
			return err
		}
		if err := b.ensureService(ctx); err != nil {
			return err
		}
		return b.announce(ctx)
	})
	g.Go(func() error { return b.publishAuthentication(ctx) })
	g.Go(func() error { return b.trackTokens(ctx) })
	g.Go(func() error { return b.ensureFairness(ctx) })
	return g.Wait()
}

// parallel bounds the writes in flight: the store commits them in batches.
const parallel = 32

// ensureAll makes the objects that are missing and mends the RBAC objects that grant too little.
func (b *Bootstrap) ensureAll(ctx context.Context, gr schema.GroupResource, want []api.Object) error {
	r, err := lookup.Resource(b.Caches, gr)
	if err != nil {
		return err
	}
	have := map[types.NamespacedName]cacher.Object{}
	l, err := r.List(ctx, cacher.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list %s: %w", gr, err)
	}
	for _, o := range l.Items {
		have[types.NamespacedName{Namespace: o.Meta().GetNamespace(), Name: o.Meta().GetName()}] = o
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, w := range want {
		current, ok := have[types.NamespacedName{Namespace: w.GetNamespace(), Name: w.GetName()}]
		if ok {
			if _, o := reconcileRBAC(current.Runtime(), w); o == keep {
				continue
			}
		}
		g.Go(func() error {
			err := error(nil)
			if ok {
				err = b.mend(ctx, r, w)
			} else {
				err = b.create(ctx, r, w)
			}
			if err != nil {
				return fmt.Errorf("%s %s: %w", gr, w.GetName(), err)
			}
			return nil
		})
	}
	return g.Wait()
}

// create stores an object that may have come into being meanwhile.
func (b *Bootstrap) create(ctx context.Context, r cacher.Resource, o api.Object) error {
	o.SetUID(types.UID(uuid.NewString()))
	o.SetCreationTimestamp(metav1.NewTime(b.Clock.Now()).Rfc3339Copy())
	_, err := r.Create(ctx, o, 0)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

var errNothing = errors.New("nothing to change")

// mend brings an RBAC object up to the standard one.
func (b *Bootstrap) mend(ctx context.Context, r cacher.Resource, want api.Object) error {
	var replacement api.Object
	_, err := r.Update(ctx, want.GetNamespace(), want.GetName(), false, cacher.Preconditions{},
		func(current cacher.Object) (runtime.Object, time.Duration, error) {
			next, o := reconcileRBAC(current.Runtime(), want)
			switch o {
			case update:
				return next, 0, nil
			case replace:
				replacement = next
			}
			return nil, 0, errNothing
		})
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return b.create(ctx, r, want)
	case !errors.Is(err, errNothing):
		return err
	case replacement == nil:
		return nil
	}
	// A binding's role cannot change: the binding is made anew.
	uid := replacement.GetUID()
	if _, err := r.Delete(ctx, want.GetNamespace(), want.GetName(), cacher.Preconditions{UID: &uid}, nil); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	replacement.SetResourceVersion("")
	return b.create(ctx, r, replacement)
}
