// Package noderoute makes a route of the provider's to each node's pod CIDRs, takes those that lead
// nowhere, and tells in the condition NetworkUnavailable whether a node has its own.
//
// Must not: know any provider, or how routes look on a node (network/routes does).
package noderoute

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/skiff-k8s/skiff/cloud/metrics"
	"github.com/skiff-k8s/skiff/controllers/controller"
)

const (
	// leastPause bounds how often changes of nodes have all routes looked at (KEP-5237).
	leastPause = 10 * time.Second
	// atATime bounds the calls of the provider that are under way.
	atATime = 200
	// conflictTries and conflictPause are for a route that the provider says conflicts.
	conflictTries = 5
	conflictPause = 100 * time.Millisecond
)

// Config of a Controller.
type Config struct {
	controller.Config
	Provider    cloudprovider.Interface
	ClusterName string
	// ClusterCIDRs hold all pod CIDRs; routes elsewhere are not ours.
	ClusterCIDRs []netip.Prefix
	// Every is how often all routes are looked at (--route-reconciliation-period); 0: 10 s.
	Every   time.Duration
	Metrics *metrics.Metrics
}

// Controller keeps the routes.
type Controller struct {
	cfg    Config
	routes cloudprovider.Routes
	nodes  corelisters.NodeLister
	synced cache.InformerSynced
	wake   chan struct{}
}

// New asks the informers for nodes and starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(cfg.ClusterCIDRs) == 0 {
		return nil, errors.New("routes of the provider need the cluster's CIDR")
	}
	routes, ok := cfg.Provider.Routes()
	if !ok {
		return nil, errors.New("the provider has no routes")
	}
	if cfg.Every <= 0 {
		cfg.Every = 10 * time.Second
	}
	inf := cfg.Informers.Core().V1().Nodes()
	c := &Controller{cfg: cfg, routes: routes, nodes: inf.Lister(), wake: make(chan struct{}, 1)}
	wake := func(*corev1.Node) {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	var err error
	c.synced, err = controller.Handle(inf.Informer(), controller.Handlers[*corev1.Node]{
		Added: wake, Deleted: wake,
		Updated: func(old, n *corev1.Node) {
			if !slices.Equal(old.Spec.PodCIDRs, n.Spec.PodCIDRs) || !slices.Equal(old.Status.Addresses, n.Status.Addresses) {
				wake(n)
			}
		},
	})
	return c, err
}

// Run looks at all routes each period, and sooner when nodes change, until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	if !controller.WaitSynced(ctx, c.synced) {
		return nil
	}
	select { // what there is at first
	case <-c.wake:
	default:
	}
	trigger := "periodic"
	for {
		begin := c.cfg.Clock.Now()
		changed, err := c.reconcile(ctx)
		c.count(changed, err, trigger)
		if err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("reconcile routes of nodes", "err", err)
		}
		period, stop := c.after(begin.Add(c.cfg.Every))
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-period:
			trigger = "periodic"
			continue
		case <-c.wake:
			stop()
			trigger = "node_change"
		}
		pause, stop := c.after(begin.Add(min(leastPause, c.cfg.Every)))
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-pause:
		}
	}
}

// after tells when a time has come.
func (c *Controller) after(at time.Time) (<-chan time.Time, func()) {
	t := c.cfg.Clock.NewTimer(max(0, at.Sub(c.cfg.Clock.Now())))
	return t.C(), func() { t.Stop() }
}

func (c *Controller) count(changed bool, err error, trigger string) {
	outcome := "noop"
	switch {
	case err != nil:
		outcome = "error"
	case changed:
		outcome = "changed"
	}
	c.cfg.Metrics.Count(metrics.RouteSyncs, "outcome", outcome, "trigger", trigger)
}

func (c *Controller) reconcile(ctx context.Context) (changed bool, err error) {
	have, err := c.routes.ListRoutes(ctx, c.cfg.ClusterName)
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("list nodes: %w", err)
	}
	p := decide(nodes, have, c.cfg.ClusterCIDRs)
	var did atomic.Bool
	var takes errgroup.Group
	takes.SetLimit(atATime)
	for _, r := range p.take {
		takes.Go(func() error {
			if err := c.routes.DeleteRoute(ctx, c.cfg.ClusterName, r); err != nil {
				c.cfg.Logger.Warn("delete route", "route", r.Name, "to", r.DestinationCIDR, "err", err)
				return nil
			}
			did.Store(true)
			return nil
		})
	}
	// A route that moves to another address is taken and made under one name.
	if len(have) > 0 && have[0].EnableNodeAddresses {
		_ = takes.Wait() // none fails
	}
	var mu sync.Mutex
	failed := map[string]bool{}
	var makes errgroup.Group
	makes.SetLimit(atATime)
	for _, w := range p.make {
		makes.Go(func() error {
			if err := c.create(ctx, w); err != nil {
				mu.Lock()
				failed[w.node.Name] = true
				mu.Unlock()
				return nil
			}
			did.Store(true)
			return nil
		})
	}
	_, _ = takes.Wait(), makes.Wait() // none fails
	var tells errgroup.Group
	tells.SetLimit(atATime)
	for _, n := range p.told {
		tells.Go(func() error {
			if err := c.tell(ctx, n, len(n.Spec.PodCIDRs) > 0 && !failed[n.Name]); err != nil && ctx.Err() == nil {
				c.cfg.Logger.Warn("tell whether a node has routes", "node", n.Name, "err", err)
			}
			return nil
		})
	}
	_ = tells.Wait() // none fails
	return did.Load(), nil
}

func (c *Controller) create(ctx context.Context, w wanted) error {
	var err error
	for try := range conflictTries {
		err = c.routes.CreateRoute(ctx, c.cfg.ClusterName, string(w.node.UID), w.route)
		if err == nil {
			return nil
		}
		ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.node.Name, UID: w.node.UID}
		c.cfg.Events.Eventf(ref, corev1.EventTypeWarning, "FailedToCreateRoute", "Could not create route %s %s for node %s: %v",
			w.node.UID, w.route.DestinationCIDR, w.node.Name, err)
		if !apierrors.IsConflict(err) || try == conflictTries-1 {
			break
		}
		again, stop := c.after(c.cfg.Clock.Now().Add(conflictPause << try))
		select {
		case <-ctx.Done():
			stop()
			return ctx.Err()
		case <-again:
		}
	}
	c.cfg.Logger.Warn("create route", "node", w.node.Name, "to", w.route.DestinationCIDR, "err", err)
	return err
}

// tell writes the condition, if it says something else.
func (c *Controller) tell(_ context.Context, n *corev1.Node, routed bool) error {
	want := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated",
		Message: "RouteController failed to create a route", LastTransitionTime: metav1.NewTime(c.cfg.Clock.Now())}
	if routed {
		want.Status, want.Reason, want.Message = corev1.ConditionFalse, "RouteCreated", "RouteController created a route"
	}
	if _, have := nodeutil.GetNodeCondition(&n.Status, want.Type); have != nil && have.Status == want.Status && have.Reason == want.Reason {
		return nil
	}
	if err := nodeutil.SetNodeCondition(c.cfg.Client, types.NodeName(n.Name), want); err != nil {
		return fmt.Errorf("set condition %s: %w", want.Type, err)
	}
	return nil
}
