// Package servicelb has the provider make a load balancer for each Service that wants one, keeps its
// set of nodes, and writes its addresses into the Service's status. A finalizer keeps the Service
// until its load balancer is gone (KEP-980). Services with a loadBalancerClass are others'.
//
// Must not: know any provider.
package servicelb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudapi "k8s.io/cloud-provider/api"
	servicehelpers "k8s.io/cloud-provider/service/helpers"

	"github.com/skiff-k8s/skiff/cloud/metrics"
	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Delays between failures, as upstream: a provider's calls may cost.
const (
	leastBackoff = 5 * time.Second
	mostBackoff  = 300 * time.Second
)

// Config of a Controller.
type Config struct {
	controller.Config
	Provider    cloudprovider.Interface
	ClusterName string
	// Workers is how many Services are looked at at a time; 0: one.
	Workers int
	Metrics *metrics.Metrics
}

// Controller keeps load balancers.
type Controller struct {
	cfg      Config
	balancer cloudprovider.LoadBalancer
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	loop     *controller.Loop[controller.Key]
	nodeLoop *controller.Loop[struct{}]

	mu sync.Mutex
	// known are Services as they were when last looked at. One that is gone without our finalizer
	// is taken down by it.
	known map[controller.Key]*corev1.Service
	// synced are the nodes that each load balancer has been told.
	synced map[controller.Key][]*corev1.Node
}

// New asks the informers for Services and nodes and starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	balancer, ok := cfg.Provider.LoadBalancer()
	if !ok {
		return nil, errors.New("the provider has no load balancers")
	}
	services, nodes := cfg.Informers.Core().V1().Services(), cfg.Informers.Core().V1().Nodes()
	c := &Controller{cfg: cfg, balancer: balancer, services: services.Lister(), nodes: nodes.Lister(),
		known: map[controller.Key]*corev1.Service{}, synced: map[controller.Key][]*corev1.Node{}}
	c.loop = controller.NewLoop("service", max(1, cfg.Workers), cfg.Clock, cfg.Logger, c.reconcile)
	c.loop.SetBackoff(leastBackoff, mostBackoff)
	c.nodeLoop = controller.NewLoop("service's nodes", 1, cfg.Clock, cfg.Logger, c.syncNodes)
	err := controller.Watch(c.loop, services.Informer(), controller.Handlers[*corev1.Service]{
		Added: func(s *corev1.Service) {
			if wants(s) || needsCleanup(s) {
				c.loop.Add(controller.KeyOf(s))
			}
		},
		Updated: func(old, s *corev1.Service) {
			if needsUpdate(old, s) || needsCleanup(s) {
				c.loop.Add(controller.KeyOf(s))
			}
		},
		// With the finalizer a Service is taken down before it goes. Upstream forgets one that goes
		// without, until it lists again.
		Deleted: func(s *corev1.Service) { c.loop.Add(controller.KeyOf(s)) },
	})
	if err != nil {
		return nil, err
	}
	add := func(*corev1.Node) { c.nodeLoop.Add(struct{}{}) }
	err = controller.Watch(c.nodeLoop, nodes.Informer(), controller.Handlers[*corev1.Node]{
		Added: add, Deleted: add,
		Updated: func(old, n *corev1.Node) {
			if included(old) != included(n) || old.Spec.ProviderID != n.Spec.ProviderID {
				add(n)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	c.loop.Needs(nodes.Informer().HasSynced)
	c.nodeLoop.Needs(services.Informer().HasSynced)
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	var nodesErr error
	wg.Go(func() { nodesErr = c.nodeLoop.Run(ctx) })
	err := c.loop.Run(ctx)
	wg.Wait()
	return errors.Join(err, nodesErr)
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	err := c.sync(ctx, key)
	var retry *cloudapi.RetryError
	if errors.As(err, &retry) { // the provider says when
		c.cfg.Logger.Info("load balancer is looked at again", "service", key.String(), "after", retry.RetryAfter(), "because", err)
		return retry.RetryAfter(), nil
	}
	return 0, err
}

func (c *Controller) sync(ctx context.Context, key controller.Key) error {
	svc, err := c.services.Services(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get service %s: %w", key, err)
	}
	before := c.lookUp(key)
	if err != nil {
		svc = nil
	}
	// Gone without our finalizer, or another of the same name.
	if before != nil && (svc == nil || svc.UID != before.UID) {
		if err := c.takeDown(ctx, before); err != nil {
			return err
		}
		c.forget(key)
	}
	if svc == nil {
		return nil
	}
	c.note(key, svc)
	if !wants(svc) || needsCleanup(svc) {
		if err := c.cleanUp(ctx, svc); err != nil {
			return c.failed(svc, err)
		}
		c.forget(key)
		return nil
	}
	if err := c.ensure(ctx, key, svc); err != nil {
		return c.failed(svc, err)
	}
	return nil
}

func (c *Controller) failed(svc *corev1.Service, err error) error {
	c.cfg.Events.Eventf(svc, corev1.EventTypeWarning, "SyncLoadBalancerFailed", "Error syncing load balancer: %v", err)
	return err
}

// takeDown the load balancer of a Service that is no more.
func (c *Controller) takeDown(ctx context.Context, svc *corev1.Service) error {
	if !wants(svc) {
		return nil
	}
	c.cfg.Events.Event(svc, corev1.EventTypeNormal, "DeletingLoadBalancer", "Deleting load balancer")
	if err := c.balancer.EnsureLoadBalancerDeleted(ctx, c.cfg.ClusterName, svc); err != nil {
		c.cfg.Events.Eventf(svc, corev1.EventTypeWarning, "DeleteLoadBalancerFailed", "Error deleting load balancer: %v", err)
		return err
	}
	c.cfg.Events.Event(svc, corev1.EventTypeNormal, "DeletedLoadBalancer", "Deleted load balancer")
	return nil
}

// cleanUp after a Service that wants no load balancer any more, or is being deleted.
func (c *Controller) cleanUp(ctx context.Context, svc *corev1.Service) error {
	_, exists, err := c.balancer.GetLoadBalancer(ctx, c.cfg.ClusterName, svc)
	if err != nil {
		return fmt.Errorf("failed to check if load balancer exists before cleanup: %w", err)
	}
	if exists {
		c.cfg.Events.Event(svc, corev1.EventTypeNormal, "DeletingLoadBalancer", "Deleting load balancer")
		if err := c.balancer.EnsureLoadBalancerDeleted(ctx, c.cfg.ClusterName, svc); err != nil && !errors.Is(err, cloudprovider.ImplementedElsewhere) {
			return fmt.Errorf("failed to delete load balancer: %w", err)
		}
	}
	if err := c.removeFinalizer(svc); err != nil {
		return fmt.Errorf("failed to remove load balancer cleanup finalizer: %w", err)
	}
	c.cfg.Events.Event(svc, corev1.EventTypeNormal, "DeletedLoadBalancer", "Deleted load balancer")
	return c.setStatus(svc, &corev1.LoadBalancerStatus{})
}

func (c *Controller) ensure(ctx context.Context, key controller.Key, svc *corev1.Service) error {
	c.cfg.Events.Event(svc, corev1.EventTypeNormal, "EnsuringLoadBalancer", "Ensuring load balancer")
	// First, so that the Service cannot go before what is made for it now.
	svc, err := c.addFinalizer(svc)
	if err != nil {
		return fmt.Errorf("failed to add load balancer cleanup finalizer: %w", err)
	}
	nodes, err := c.backends()
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		c.cfg.Events.Event(svc, corev1.EventTypeWarning, "UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer")
	}
	c.setSynced(key, nodes)
	status, err := c.balancer.EnsureLoadBalancer(ctx, c.cfg.ClusterName, svc.DeepCopy(), nodes)
	switch {
	case errors.Is(err, cloudprovider.ImplementedElsewhere):
		return nil // another controller makes it
	case err != nil:
		return fmt.Errorf("failed to ensure load balancer: %w", err)
	case status == nil:
		return errors.New("service status returned by EnsureLoadBalancer is nil")
	}
	c.cfg.Events.Event(svc, corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer")
	return c.setStatus(svc, status)
}

func (c *Controller) backends() ([]*corev1.Node, error) {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return eligible(all), nil
}

// addFinalizer returns the Service with it.
func (c *Controller) addFinalizer(svc *corev1.Service) (*corev1.Service, error) {
	if servicehelpers.HasLBFinalizer(svc) {
		return svc, nil
	}
	next := svc.DeepCopy()
	next.Finalizers = append(next.Finalizers, servicehelpers.LoadBalancerCleanupFinalizer)
	return servicehelpers.PatchService(c.cfg.Client.CoreV1(), svc, next)
}

func (c *Controller) removeFinalizer(svc *corev1.Service) error {
	if !servicehelpers.HasLBFinalizer(svc) {
		return nil
	}
	next := svc.DeepCopy()
	next.Finalizers = nil
	for _, f := range svc.Finalizers {
		if f != servicehelpers.LoadBalancerCleanupFinalizer {
			next.Finalizers = append(next.Finalizers, f)
		}
	}
	_, err := servicehelpers.PatchService(c.cfg.Client.CoreV1(), svc, next)
	return err
}

// setStatus writes the addresses, if they are others. A Service that is gone needs none.
func (c *Controller) setStatus(svc *corev1.Service, status *corev1.LoadBalancerStatus) error {
	if servicehelpers.LoadBalancerStatusEqual(&svc.Status.LoadBalancer, status) {
		return nil
	}
	next := svc.DeepCopy()
	next.Status.LoadBalancer = *status
	if _, err := servicehelpers.PatchService(c.cfg.Client.CoreV1(), svc, next); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("failed to update load balancer status: %w", err)
	}
	return nil
}

func (c *Controller) lookUp(key controller.Key) *corev1.Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[key]
}

func (c *Controller) note(key controller.Key, svc *corev1.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[key] = svc
}

func (c *Controller) forget(key controller.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, key)
	delete(c.synced, key)
}

func (c *Controller) setSynced(key controller.Key, nodes []*corev1.Node) (before []*corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = c.synced[key]
	c.synced[key] = nodes
	return before
}
