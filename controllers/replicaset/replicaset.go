// Package replicaset keeps the number of pods of each ReplicaSet, and with the same code
// of each ReplicationController.
//
// Owns: creating, adopting, releasing and deleting their pods, and their status. Must
// not: know Deployments beyond counting a sibling's pods when it chooses which to delete.
package replicaset

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/expectations"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// Controller reconciles one of the two kinds.
type Controller struct {
	cfg     controller.Config
	kind    kind
	loop    *controller.Loop[controller.Key]
	pods    ownership.Index[*corev1.Pod]
	control ownership.Pods
	expect  *expectations.Set[controller.Key]
	writes  *controller.Writes[controller.Key]
	pace    *controller.Pace[controller.Key]
	// terminating: the kind's status counts terminating pods (KEP-3973).
	terminating bool
}

// New makes the controller of ReplicaSets.
func New(cfg controller.Config) (*Controller, error) {
	inf := cfg.Informers.Apps().V1().ReplicaSets()
	return newController("replicaset-controller", cfg, replicaSets(cfg.Client, inf.Lister(), inf.Informer()), true)
}

// NewReplicationController makes the controller of ReplicationControllers.
func NewReplicationController(cfg controller.Config) (*Controller, error) {
	inf := cfg.Informers.Core().V1().ReplicationControllers()
	return newController("replicationcontroller-controller", cfg, replicationControllers(cfg.Client, inf.Lister(), inf.Informer()), false)
}

func newController(name string, cfg controller.Config, k kind, terminating bool) (*Controller, error) {
	c := &Controller{
		cfg:         cfg,
		kind:        k,
		control:     ownership.Pods{Client: cfg.Client, Events: cfg.Events},
		expect:      expectations.New[controller.Key](cfg.Clock),
		writes:      controller.NewWrites[controller.Key](cfg.Clock),
		pace:        controller.NewPace[controller.Key](cfg.Clock),
		terminating: terminating,
	}
	c.loop = controller.NewLoop(name, 5, cfg.Clock, cfg.Logger, c.reconcile)
	pods := cfg.Informers.Core().V1().Pods().Informer()
	var err error
	if c.pods, err = ownership.NewIndex[*corev1.Pod](pods); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, errors.Join(
		controller.Watch(c.loop, k.informer, controller.Enqueue[object](c.loop)),
		controller.Watch(c.loop, pods, controller.Handlers[*corev1.Pod]{
			Added: c.podAdded, Updated: c.podUpdated, Deleted: c.podDeleted,
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) podAdded(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		c.podDeleted(pod)
		return
	}
	if key, ok := c.ownerOf(pod); ok {
		c.expect.Created(key)
		c.loop.Add(key)
		return
	}
	c.orphan(pod)
}

func (c *Controller) podUpdated(old, pod *corev1.Pod) {
	if pod == old { // a resync
		return
	}
	if pod.DeletionTimestamp != nil {
		c.podDeleted(pod)
	}
	oldKey, hadOwner := c.ownerOf(old)
	key, hasOwner := c.ownerOf(pod)
	if hadOwner && (!hasOwner || key != oldKey) {
		c.loop.Add(oldKey)
	}
	if hasOwner {
		c.loop.Add(key)
		return
	}
	if hadOwner || !equality.Semantic.DeepEqual(old.Labels, pod.Labels) {
		c.orphan(pod)
	}
}

func (c *Controller) podDeleted(pod *corev1.Pod) {
	if key, ok := c.ownerOf(pod); ok {
		c.expect.Deleted(key, pod.UID)
		c.loop.Add(key)
	}
}

// ownerOf returns the key of the pod's controller if it is of our kind. Whether its uid
// is still the same is seen when pods are claimed.
func (c *Controller) ownerOf(pod *corev1.Pod) (controller.Key, bool) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != c.kind.gvk.Kind || ref.APIVersion != c.kind.gvk.GroupVersion().String() {
		return controller.Key{}, false
	}
	return controller.Key{Namespace: pod.Namespace, Name: ref.Name}, true
}

// orphan wakes all sets that could adopt the pod.
func (c *Controller) orphan(pod *corev1.Pod) {
	if metav1.GetControllerOfNoCopy(pod) != nil || len(pod.Labels) == 0 || !ownership.Active(pod) {
		return
	}
	sets, err := c.kind.list(pod.Namespace)
	if err != nil {
		return
	}
	for _, s := range sets {
		if !s.selector.Empty() && s.selector.Matches(labels.Set(pod.Labels)) {
			c.loop.Add(controller.KeyOf(s.obj))
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	set, err := c.kind.get(key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		c.expect.Forget(key)
		c.writes.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if c.writes.Behind(key, set.obj) {
		return 0, nil
	}
	if wait := c.pace.Wait(key, int(max(set.replicas, set.status.Replicas))); wait > 0 {
		return wait, nil
	}
	met := c.expect.Met(key)
	s, err := c.observe(ctx, set)
	if err != nil {
		return 0, err
	}
	var failed error
	if met {
		failed = c.act(ctx, key, s, decide(s))
	}
	status, again := statusOf(s, failed, c.terminating)
	if !equality.Semantic.DeepEqual(set.status, status) {
		written, err := c.kind.writeStatus(ctx, set, status)
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, errors.Join(failed, fmt.Errorf("updating status: %w", err))
		}
		if err == nil {
			c.writes.Note(key, written)
		}
	}
	return again, failed
}

func (c *Controller) observe(ctx context.Context, set *set) (state, error) {
	uid, namespace := set.obj.GetUID(), set.obj.GetNamespace()
	owned := c.pods.OwnedBy(uid)
	candidates := append(owned, c.pods.Orphans(namespace)...)
	active := candidates[:0:0]
	var terminating []*corev1.Pod
	for _, p := range candidates {
		switch {
		case ownership.Active(p):
			active = append(active, p)
		case ownership.Terminating(p):
			terminating = append(terminating, p)
		}
	}
	claim := ownership.Claim[*corev1.Pod]{
		Owner: set.obj, Kind: c.kind.gvk, Selector: set.selector,
		Live: func(ctx context.Context) (metav1.Object, error) {
			return c.kind.live(ctx, namespace, set.obj.GetName())
		},
		Patch: c.control.Patch,
	}
	claimed, err := claim.All(ctx, active)
	if err != nil {
		return state{}, err
	}
	s := state{
		set:         set,
		active:      claimed,
		terminating: ownership.Owned(uid, set.selector, terminating),
		now:         c.cfg.Clock.Now(),
	}
	if len(s.active) > int(set.replicas) {
		s.related = c.related(set)
	}
	return s, nil
}

// related returns the active pods of all sets that share set's controller.
func (c *Controller) related(set *set) []*corev1.Pod {
	uids := []types.UID{set.obj.GetUID()}
	if ref := metav1.GetControllerOfNoCopy(set.obj); ref != nil {
		siblings, err := c.kind.list(set.obj.GetNamespace())
		if err == nil {
			for _, o := range siblings {
				r := metav1.GetControllerOfNoCopy(o.obj)
				if r != nil && r.UID == ref.UID && o.obj.GetUID() != set.obj.GetUID() {
					uids = append(uids, o.obj.GetUID())
				}
			}
		}
	}
	var pods []*corev1.Pod
	for _, uid := range uids {
		for _, p := range c.pods.OwnedBy(uid) {
			if ownership.Active(p) {
				pods = append(pods, p)
			}
		}
	}
	return pods
}

func (c *Controller) act(ctx context.Context, key controller.Key, s state, p plan) error {
	switch {
	case p.create > 0:
		ref := &metav1.OwnerReference{
			APIVersion: c.kind.gvk.GroupVersion().String(), Kind: c.kind.gvk.Kind,
			Name: key.Name, UID: s.set.obj.GetUID(),
			Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
		}
		c.expect.Creations(key, p.create)
		made, err := ownership.SlowStart(p.create, func(int) error {
			pod := ownership.NewPod(s.set.template, key.Namespace, key.Name, ref)
			_, err := c.control.Create(ctx, pod, s.set.obj)
			return err
		})
		for range p.create - made { // failed or not tried: nothing will be seen of them
			c.expect.Created(key)
		}
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil // nothing can be created there any more
		}
		return err
	case len(p.remove) > 0:
		uids := make([]types.UID, len(p.remove))
		for i, pod := range p.remove {
			uids[i] = pod.UID
		}
		c.expect.Deletions(key, uids...)
		_, err := ownership.Parallel(len(p.remove), func(i int) error {
			err := c.control.Delete(ctx, p.remove[i], s.set.obj)
			if err != nil {
				c.expect.Deleted(key, p.remove[i].UID)
			}
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
		return err
	}
	return nil
}
