// Package nodelifecycle notices nodes whose kubelet has fallen silent, and keeps the
// taints and pods' readiness that follow from a node's conditions.
//
// Owns: conditions of silent nodes, the node.kubernetes.io/* taints that follow from
// conditions, and Ready=False of pods on unready nodes. Must not: delete pods; that is
// controllers/tainteviction's.
package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/controllers/bynode"
	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// Grace periods as upstream's --node-monitor-grace-period and
// --node-startup-grace-period.
const (
	Grace        = 50 * time.Second
	StartupGrace = 60 * time.Second
)

// Config of the controller.
type Config struct {
	controller.Config
	Grace time.Duration // 0: the default
}

// Controller watches over nodes.
type Controller struct {
	cfg   Config
	loop  *controller.Loop[controller.Key]
	nodes corelisters.NodeLister
	pods  bynode.Index

	mu    sync.Mutex
	seen  map[string]heartbeat
	zones *zones
	next  map[zone]time.Time // when a node may be emptied again
	ready map[string]string  // by node: readiness last acted on
}

// heartbeat is the last sign of life of a kubelet, by our own clock: nodes' clocks may be off.
type heartbeat struct {
	at      time.Time
	renewed time.Time // what the lease said then
	status  time.Time // what the Ready condition's heartbeat said then
}

// New makes the controller.
func New(cfg Config) (*Controller, error) {
	const name = "node-lifecycle-controller"
	if cfg.Grace == 0 {
		cfg.Grace = Grace
	}
	core := cfg.Informers.Core().V1()
	c := &Controller{
		cfg: cfg, nodes: core.Nodes().Lister(),
		seen: map[string]heartbeat{}, zones: newZones(), next: map[zone]time.Time{}, ready: map[string]string{},
	}
	c.loop = controller.NewLoop(name, 4, cfg.Clock, cfg.Logger, c.reconcile)
	var err error
	if c.pods, err = bynode.New(core.Pods().Informer()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, errors.Join(
		controller.Watch(c.loop, core.Nodes().Informer(), controller.Handlers[*corev1.Node]{
			Added: func(n *corev1.Node) {
				c.status(n)
				c.loop.Add(controller.KeyOf(n))
			},
			Updated: c.nodeUpdated,
			Deleted: c.forget,
		}),
		controller.Watch(c.loop, cfg.Informers.Coordination().V1().Leases().Informer(), controller.Handlers[*coordinationv1.Lease]{
			Added:   c.renewal,
			Updated: func(_, l *coordinationv1.Lease) { c.renewal(l) },
		}),
		// A pod that came to a node already unready.
		controller.Watch(c.loop, core.Pods().Informer(), controller.Handlers[*corev1.Pod]{
			Added: c.podPlaced,
			Updated: func(old, p *corev1.Pod) {
				if old.Spec.NodeName != p.Spec.NodeName || ownership.Ready(p) && !ownership.Ready(old) {
					c.podPlaced(p)
				}
			},
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) nodeUpdated(old, n *corev1.Node) {
	c.status(n)
	// Most updates are heartbeats.
	if old.Spec.Unschedulable != n.Spec.Unschedulable || !equality.Semantic.DeepEqual(old.Spec.Taints, n.Spec.Taints) || statuses(old) != statuses(n) {
		c.loop.Add(controller.KeyOf(n))
	}
}

// statuses are the conditions' statuses without their times.
func statuses(n *corev1.Node) string {
	s := ""
	for i := range n.Status.Conditions {
		s += string(n.Status.Conditions[i].Type) + "=" + string(n.Status.Conditions[i].Status) + " "
	}
	return s
}

func (c *Controller) podPlaced(p *corev1.Pod) {
	if p.Spec.NodeName == "" {
		return
	}
	if n, err := c.nodes.Get(p.Spec.NodeName); err == nil && readiness(n) != corev1.ConditionTrue {
		c.mu.Lock()
		delete(c.ready, n.Name)
		c.mu.Unlock()
		c.loop.Add(controller.KeyOf(n))
	}
}

// status notes a heartbeat in the node's status, and how the node fares.
func (c *Controller) status(n *corev1.Node) {
	var t time.Time
	if r := condition(n, corev1.NodeReady); r != nil {
		t = r.LastHeartbeatTime.Time
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.zones.set(n.Name, fare{zoneOf(n), readiness(n) == corev1.ConditionTrue})
	h, ok := c.seen[n.Name]
	if !ok || !t.Equal(h.status) {
		h.at, h.status = c.cfg.Clock.Now(), t
		c.seen[n.Name] = h
	}
}

// renewal notes a heartbeat in the node's lease.
func (c *Controller) renewal(l *coordinationv1.Lease) {
	if l.Namespace != corev1.NamespaceNodeLease || l.Spec.RenewTime == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.seen[l.Name]
	if !l.Spec.RenewTime.Time.Equal(h.renewed) {
		h.at, h.renewed = c.cfg.Clock.Now(), l.Spec.RenewTime.Time
		c.seen[l.Name] = h
	}
}

func (c *Controller) forget(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.zones.remove(n.Name)
	delete(c.seen, n.Name)
	delete(c.ready, n.Name)
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	node, err := c.nodes.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading node: %w", err)
	}
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	h, ok := c.seen[node.Name]
	if !ok {
		h = heartbeat{at: now}
		c.seen[node.Name] = h
	}
	c.mu.Unlock()

	grace := c.cfg.Grace
	if condition(node, corev1.NodeReady) == nil {
		grace = max(grace, StartupGrace)
	}
	left := h.at.Add(grace).Sub(now)
	if left <= 0 {
		if next := silenced(node, now); next != nil {
			c.cfg.Logger.Info("node is silent", "node", node.Name, "since", h.at)
			written, err := c.cfg.Client.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
			if err != nil {
				return 0, ignoreGone(err, "updating node status")
			}
			node = written
		}
		left = grace // look again: a heartbeat makes no noise by itself
	}
	again, err := c.follow(ctx, node, now)
	if again == 0 || again > left {
		again = left
	}
	return again, err
}

// follow brings taints and pods in line with the node's conditions.
func (c *Controller) follow(ctx context.Context, node *corev1.Node, now time.Time) (again time.Duration, err error) {
	ready := readiness(node)
	evict := false
	if evictionTaint(ready) != "" && !hasNoExecute(node) {
		// A node that has just come and is not ready yet has nothing to be evicted.
		if young := node.CreationTimestamp.Add(StartupGrace).Sub(now); young > 0 {
			again = young
		} else if evict, again = c.turn(node, now); !evict {
			again = max(again, time.Second)
		}
	}
	if want, changed := taints(node, evict, now); changed {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
			"spec":     map[string]any{"taints": want},
		})
		if err != nil {
			return again, fmt.Errorf("encoding patch: %w", err)
		}
		// A merge patch replaces the list; the revision guards others' taints.
		if _, err := c.cfg.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return again, ignoreGone(err, "tainting node")
		}
	}
	return again, c.pass(ctx, node, ready)
}

// pass tells a change of readiness on to pods and events.
func (c *Controller) pass(ctx context.Context, node *corev1.Node, ready corev1.ConditionStatus) error {
	c.mu.Lock()
	was, known := c.ready[node.Name]
	c.mu.Unlock()
	if was == string(ready) {
		return nil
	}
	if ready != corev1.ConditionTrue {
		if known && was == string(corev1.ConditionTrue) {
			c.cfg.Events.Eventf(node, corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
		}
		if err := c.markNotReady(ctx, node.Name); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready[node.Name] = string(ready)
	return nil
}

// markNotReady takes the pods of a node out of their Services.
func (c *Controller) markNotReady(ctx context.Context, node string) error {
	var errs []error
	for _, p := range c.pods.Pods(node) {
		r := ownership.ReadyCondition(p)
		if r == nil || r.Status != corev1.ConditionTrue {
			continue
		}
		cond := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(c.cfg.Clock.Now()), ObservedGeneration: p.Generation}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": p.UID},
			"status":   map[string]any{"conditions": []corev1.PodCondition{cond}},
		})
		if err != nil {
			return fmt.Errorf("encoding patch: %w", err)
		}
		_, err = c.cfg.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err := ignoreGone(err, "marking pod "+p.Name+" not ready"); err != nil {
			errs = append(errs, err)
			continue
		}
		c.cfg.Events.Event(p, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	return errors.Join(errs...)
}

func ignoreGone(err error, what string) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// turn says whether this node may be emptied now, or when to ask again.
func (c *Controller) turn(node *corev1.Node, now time.Time) (bool, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	zone := zoneOf(node)
	r := rate(c.zones.counts[zone], c.zones.allDown())
	if r == 0 {
		return false, 5 * time.Second
	}
	if wait := c.next[zone].Sub(now); wait > 0 {
		return false, wait
	}
	c.next[zone] = now.Add(time.Duration(float64(time.Second) / r))
	return true, 0
}
