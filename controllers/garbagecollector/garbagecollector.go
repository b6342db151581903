// Package garbagecollector deletes objects whose owners are all gone, and carries out
// foreground deletion and orphaning, for every kind that can be listed, watched and
// deleted, custom ones included.
//
// It watches metadata only, and of that keeps what decides deletions. It acts on the
// graph, but never without asking the API server about the object first, and never
// without a uid precondition. Must not: know any particular kind.
package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

const (
	workers = 5
	// patience is how long Run waits for all kinds to be listed before it works with
	// those that are: a broken extension API must not stop the collector.
	patience = 30 * time.Second
	// settle is how long an owner that is to leave its dependents behind waits, so that
	// those made just before are known: each kind has a watch of its own, and one that is not
	// known would be deleted for want of an owner.
	settle = 300 * time.Millisecond
)

// Controller is the garbage collector.
type Controller struct {
	cfg     controller.Config
	look    *controller.Loop[types.UID]
	orphans *controller.Loop[types.UID]
	watch   *monitors

	mu    sync.Mutex
	graph *graph
	// absent remembers owners that were found not to exist: uids never come back.
	absent *uidCache
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	const name = "garbage-collector-controller"
	if cfg.Metadata == nil || cfg.Discovery == nil {
		return nil, errors.New(name + ": Metadata and Discovery clients are required")
	}
	c := &Controller{cfg: cfg, graph: newGraph(), absent: newUIDCache(1000)}
	c.look = controller.NewLoop(name, workers, cfg.Clock, cfg.Logger, c.attempt)
	c.orphans = controller.NewLoop(name, workers, cfg.Clock, cfg.Logger, c.letGo)
	c.watch = newMonitors(cfg, c.changed, c.gone)
	return c, nil
}

// Run collects until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.watch.run(ctx) })
	c.watch.waitSynced(ctx, patience)
	orphans := make(chan error, 1)
	go func() { orphans <- c.orphans.Run(ctx) }()
	return errors.Join(c.look.Run(ctx), <-orphans)
}

func (c *Controller) changed(res resource, o *metav1.PartialObjectMetadata) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue(c.graph.set(res, o))
}

func (c *Controller) gone(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.absent.add(uid)
	c.queue(c.graph.remove(uid))
}

func (c *Controller) queue(w work) {
	for _, uid := range w.look {
		c.look.Add(uid)
	}
	for _, uid := range w.orphan {
		c.orphans.AddAfter(uid, settle)
	}
}

// snapshot copies what attempt needs of a node.
func (c *Controller) snapshot(uid types.UID) (n node, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.graph.nodes[uid]
	if p == nil {
		return node{}, false
	}
	return *p, true
}

// attempt looks at one object: should it be deleted, or let finish?
func (c *Controller) attempt(ctx context.Context, uid types.UID) (time.Duration, error) {
	n, ok := c.snapshot(uid)
	if !ok {
		return 0, nil
	}
	if n.virtual {
		return 0, c.verify(ctx, &n)
	}
	if n.deleting && !n.foreground {
		return 0, nil
	}
	if n.deleting {
		return 0, c.finishForeground(ctx, &n)
	}
	if len(n.owners) == 0 {
		return 0, nil
	}
	live, err := c.get(ctx, &n)
	if err != nil {
		return 0, err
	}
	if live == nil {
		c.gone(uid) // it went before its event came
		return 0, nil
	}
	if live.DeletionTimestamp != nil {
		return 0, nil // its event will come
	}
	return 0, c.collect(ctx, &n, live)
}

// verify finds out whether an owner that nobody has seen exists.
func (c *Controller) verify(ctx context.Context, n *node) error {
	exists, err := c.ownerExists(ctx, n.uid, n.claimed)
	if err != nil {
		return err
	}
	if !exists {
		// Its dependents are asked one by one: another may name it better.
		c.mu.Lock()
		defer c.mu.Unlock()
		if p := c.graph.nodes[n.uid]; p != nil && p.virtual {
			c.queue(c.graph.remove(n.uid))
		}
	}
	return nil // if it exists, its event will come
}

// collect deletes an object without owners, or takes away references to those gone.
func (c *Controller) collect(ctx context.Context, n *node, live *metav1.PartialObjectMetadata) error {
	var keep, waiting []metav1.OwnerReference
	gone := 0
	for i := range live.OwnerReferences {
		r := &live.OwnerReferences[i]
		c.mu.Lock()
		st := c.graph.owner(n, r)
		absent := c.absent.has(r.UID)
		misfit := c.graph.misfit(n, r)
		c.mu.Unlock()
		if misfit {
			c.refInvalid(n, r)
		}
		if st == unknown {
			exists := false
			if !absent {
				var err error
				exists, err = c.ownerExists(ctx, r.UID, ownerClaim{r.APIVersion, r.Kind, r.Name, n.namespace})
				if err != nil {
					return err
				}
			}
			st = dangling
			if exists {
				st = solid
			}
		}
		switch st {
		case solid:
			keep = append(keep, *r)
		case waits:
			waiting = append(waiting, *r)
		default:
			gone++
		}
	}
	switch {
	case len(keep) > 0:
		if gone+len(waiting) == 0 {
			return nil
		}
		return c.patchMeta(ctx, n.res, live, func(m map[string]any) { m["ownerReferences"] = keep })
	case len(waiting) > 0:
		c.mu.Lock()
		dependents, deleting := false, false
		if p := c.graph.nodes[n.uid]; p != nil {
			dependents, deleting = c.graph.subtree(p)
		}
		c.mu.Unlock()
		if !dependents {
			break
		}
		if deleting {
			// A dependent of ours waits already: were we in a circle, all would wait for
			// ever. Do not block our owners.
			if err := c.unblock(ctx, n, live); err != nil {
				return err
			}
		}
		return c.delete(ctx, n, live, metav1.DeletePropagationForeground)
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case slices.Contains(live.Finalizers, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(live.Finalizers, metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	return c.delete(ctx, n, live, policy)
}

func (c *Controller) unblock(ctx context.Context, n *node, live *metav1.PartialObjectMetadata) error {
	refs := slices.Clone(live.OwnerReferences)
	changed := false
	for i := range refs {
		if blocks(&refs[i]) {
			refs[i].BlockOwnerDeletion = nil
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return c.patchMeta(ctx, n.res, live, func(m map[string]any) { m["ownerReferences"] = refs })
}

// finishForeground lets an object go whose blocking dependents are all gone.
func (c *Controller) finishForeground(ctx context.Context, n *node) error {
	c.mu.Lock()
	blockers := 0
	if p := c.graph.nodes[n.uid]; p != nil {
		for _, d := range c.graph.blockers(p) {
			blockers++
			if !d.deleting {
				c.look.Add(d.uid)
			}
		}
	}
	c.mu.Unlock()
	if blockers > 0 {
		return nil
	}
	return c.removeFinalizer(ctx, n, metav1.FinalizerDeleteDependents)
}

// letGo takes the references to an owner out of its dependents, then lets it go.
func (c *Controller) letGo(ctx context.Context, uid types.UID) (time.Duration, error) {
	c.mu.Lock()
	var owner node
	var dependents []node
	if p := c.graph.nodes[uid]; p != nil {
		owner = *p
		for d := range p.dependents {
			if q := c.graph.nodes[d]; q != nil {
				dependents = append(dependents, *q)
			}
		}
	}
	c.mu.Unlock()
	if owner.uid == "" || !owner.deleting || !owner.orphan {
		return 0, nil
	}
	// Of the kinds that depend on it there may be more than the watches have told of by now.
	dependents, err := c.withLive(ctx, dependents, uid)
	if err != nil {
		return 0, err
	}
	var errs []error
	for i := range dependents {
		if err := c.forgetOwner(ctx, &dependents[i], uid); err != nil {
			errs = append(errs, fmt.Errorf("orphaning %s/%s: %w", dependents[i].namespace, dependents[i].name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	return 0, c.removeFinalizer(ctx, &owner, metav1.FinalizerOrphanDependents)
}

func (c *Controller) forgetOwner(ctx context.Context, n *node, owner types.UID) error {
	live, err := c.get(ctx, n)
	if err != nil || live == nil || ownerRef(live.OwnerReferences, owner) == nil {
		return err
	}
	refs := slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(r metav1.OwnerReference) bool { return r.UID == owner })
	return c.patchMeta(ctx, n.res, live, func(m map[string]any) {
		if len(refs) == 0 {
			m["ownerReferences"] = nil
		} else {
			m["ownerReferences"] = refs
		}
	})
}

func (c *Controller) removeFinalizer(ctx context.Context, n *node, finalizer string) error {
	live, err := c.get(ctx, n)
	if err != nil || live == nil || !slices.Contains(live.Finalizers, finalizer) {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == finalizer })
	err = c.patchMeta(ctx, n.res, live, func(m map[string]any) {
		if len(left) == 0 {
			m["finalizers"] = nil
		} else {
			m["finalizers"] = left
		}
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// refInvalid tells about a reference that can name nothing.
func (c *Controller) refInvalid(n *node, r *metav1.OwnerReference) {
	c.cfg.Events.Eventf(&corev1.ObjectReference{Namespace: n.namespace, Name: n.name, UID: n.uid}, corev1.EventTypeWarning,
		"OwnerRefInvalidNamespace", "ownerRef [%s/%s, name: %s, uid: %s] does not exist in namespace %q", r.APIVersion, r.Kind, r.Name, r.UID, n.namespace)
}
