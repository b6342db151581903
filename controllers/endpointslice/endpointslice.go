// Package endpointslice keeps the EndpointSlices of Services that have a selector.
//
// Owns: the slices labelled as managed by endpointslice-controller.k8s.io. Must not: touch
// others' slices, nor Endpoints (controllers/endpoints).
package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/expectations"
	"github.com/skiff-k8s/skiff/controllers/services"
)

const byService = "service"

// Controller reconciles EndpointSlices.
type Controller struct {
	cfg      controller.Config
	loop     *controller.Loop[controller.Key]
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	slices   cache.Indexer
	expect   *expectations.Set[controller.Key]
	writes   *controller.Writes[controller.Key] // of slices
	pace     *controller.Pace[controller.Key]
	// triggers know when what a slice shows happened: proxies measure from then on how long
	// it took to program (network_programming_duration_seconds).
	triggers *endpointsliceutil.TriggerTimeTracker
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	const name = "endpointslice-controller"
	core := cfg.Informers.Core().V1()
	slices := cfg.Informers.Discovery().V1().EndpointSlices().Informer()
	if err := slices.AddIndexers(cache.Indexers{byService: func(o any) ([]string, error) {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelManagedBy] == ManagedBy {
			return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
		}
		return nil, nil
	}}); err != nil {
		return nil, fmt.Errorf("%s: indexing slices: %w", name, err)
	}
	c := &Controller{
		cfg:      cfg,
		services: core.Services().Lister(),
		pods:     core.Pods().Lister(),
		nodes:    core.Nodes().Lister(),
		slices:   slices.GetIndexer(),
		expect:   expectations.New[controller.Key](cfg.Clock),
		writes:   controller.NewWrites[controller.Key](cfg.Clock),
		pace:     controller.NewPace[controller.Key](cfg.Clock),
		triggers: endpointsliceutil.NewTriggerTimeTracker(),
	}
	c.loop = controller.NewLoop(name, 5, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, core.Services().Informer(), controller.Enqueue[*corev1.Service](c.loop)),
		controller.Watch(c.loop, core.Pods().Informer(), services.PodHandlers(c.services, c.loop)),
		controller.Watch(c.loop, slices, controller.Handlers[*discoveryv1.EndpointSlice]{
			Added:   func(s *discoveryv1.EndpointSlice) { c.sliceChanged(s, c.expect.Created) },
			Updated: c.sliceUpdated,
			Deleted: func(s *discoveryv1.EndpointSlice) {
				c.writes.Forget(controller.KeyOf(s))
				c.sliceChanged(s, func(k controller.Key) { c.expect.Deleted(k, s.UID) })
			},
		}),
		controller.Watch(c.loop, core.Nodes().Informer(), controller.Handlers[*corev1.Node]{
			Added: func(n *corev1.Node) { c.nodeChanged(n.Name) },
			Updated: func(old, n *corev1.Node) {
				if old.Labels[corev1.LabelTopologyZone] != n.Labels[corev1.LabelTopologyZone] {
					c.nodeChanged(n.Name)
				}
			},
			Deleted: func(n *corev1.Node) { c.nodeChanged(n.Name) },
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) sliceChanged(s *discoveryv1.EndpointSlice, note func(controller.Key)) {
	name := s.Labels[discoveryv1.LabelServiceName]
	if name == "" || s.Labels[discoveryv1.LabelManagedBy] != ManagedBy {
		return
	}
	key := controller.Key{Namespace: s.Namespace, Name: name}
	if note != nil {
		note(key)
	}
	c.loop.Add(key)
}

func (c *Controller) sliceUpdated(old, s *discoveryv1.EndpointSlice) {
	c.sliceChanged(s, nil)
	if old.Labels[discoveryv1.LabelServiceName] != s.Labels[discoveryv1.LabelServiceName] || old.Labels[discoveryv1.LabelManagedBy] != s.Labels[discoveryv1.LabelManagedBy] {
		c.sliceChanged(old, nil)
	}
}

// nodeChanged wakes the Services of the pods on a node.
func (c *Controller) nodeChanged(name string) {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return
	}
	all, err := c.services.List(labels.Everything())
	if err != nil {
		return
	}
	for _, p := range pods {
		if p.Spec.NodeName != name {
			continue
		}
		for _, s := range all {
			if s.Namespace == p.Namespace && services.Selects(s, p.Labels) {
				c.loop.Add(controller.KeyOf(s))
			}
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.expect.Forget(key) // the slices are the garbage collector's
		c.triggers.DeleteService(key.Namespace, key.Name)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading Service: %w", err)
	}
	if !services.Selecting(service) {
		return 0, nil
	}
	if !c.expect.Met(key) {
		return 0, nil // the awaited slices wake us up
	}
	s := state{service: service, node: c.node}
	if s.pods, err = services.Pods(c.pods, service); err != nil {
		return 0, fmt.Errorf("listing pods: %w", err)
	}
	if wait := c.pace.Wait(key, len(s.pods)); wait > 0 {
		return wait, nil
	}
	found, err := c.slices.ByIndex(byService, key.String())
	if err != nil {
		return 0, fmt.Errorf("listing EndpointSlices: %w", err)
	}
	for _, o := range found {
		slice := o.(*discoveryv1.EndpointSlice)
		if c.writes.Behind(controller.KeyOf(slice), slice) {
			return 0, nil
		}
		s.slices = append(s.slices, slice)
	}
	p := decide(s)
	p.stamp(c.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, s.pods))
	if err := c.act(ctx, key, p); err != nil {
		if !apierrors.IsConflict(err) {
			c.cfg.Events.Eventf(service, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices", "Error updating Endpoint Slices for Service %s/%s: %v", key.Namespace, key.Name, err)
		}
		return 0, err
	}
	return 0, nil // pods left out come again when their node appears
}

// stamp says in slices that are written when what they show happened; zero: not known.
func (p *plan) stamp(trigger time.Time) {
	for _, slices := range [][]*discoveryv1.EndpointSlice{p.create, p.update} {
		for _, s := range slices {
			switch {
			case trigger.IsZero():
				delete(s.Annotations, corev1.EndpointsLastChangeTriggerTime)
			default:
				metav1.SetMetaDataAnnotation(&s.ObjectMeta, corev1.EndpointsLastChangeTriggerTime, trigger.UTC().Format(time.RFC3339Nano))
			}
		}
	}
}

func (c *Controller) node(name string) *corev1.Node {
	n, err := c.nodes.Get(name)
	if err != nil {
		return nil
	}
	return n
}

func (c *Controller) act(ctx context.Context, key controller.Key, p plan) error {
	client := c.cfg.Client.DiscoveryV1().EndpointSlices(key.Namespace)
	for _, s := range p.create {
		c.expect.Creations(key, 1)
		if _, err := client.Create(ctx, s, metav1.CreateOptions{}); err != nil {
			c.expect.Created(key)
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return nil
			}
			return fmt.Errorf("creating EndpointSlice: %w", err)
		}
	}
	for _, s := range p.update {
		written, err := client.Update(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("updating EndpointSlice %s: %w", s.Name, err)
		}
		c.writes.Note(controller.KeyOf(written), written)
	}
	for _, s := range p.remove {
		c.expect.Deletions(key, s.UID)
		err := client.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(s.UID)}})
		if err != nil {
			c.expect.Deleted(key, s.UID)
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting EndpointSlice %s: %w", s.Name, err)
			}
		}
	}
	return nil
}
