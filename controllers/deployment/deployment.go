// Package deployment rolls out Deployments by way of ReplicaSets.
//
// Owns: creating, scaling, annotating and cleaning up a Deployment's ReplicaSets, and
// its status. Names, hashes and annotations are upstream's, so that either controller can
// take over from the other. Must not: write pods.
package deployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// Controller reconciles Deployments.
type Controller struct {
	cfg    controller.Config
	loop   *controller.Loop[controller.Key]
	lister appslisters.DeploymentLister
	sets   ownership.Index[*appsv1.ReplicaSet]
	pods   ownership.Index[*corev1.Pod]
	writes *controller.Writes[controller.Key] // of Deployments
	resize *controller.Writes[controller.Key] // of ReplicaSets
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	const name = "deployment-controller"
	deployments := cfg.Informers.Apps().V1().Deployments()
	sets := cfg.Informers.Apps().V1().ReplicaSets().Informer()
	pods := cfg.Informers.Core().V1().Pods().Informer()
	c := &Controller{cfg: cfg, lister: deployments.Lister(), writes: controller.NewWrites[controller.Key](cfg.Clock), resize: controller.NewWrites[controller.Key](cfg.Clock)}
	c.loop = controller.NewLoop(name, 5, cfg.Clock, cfg.Logger, c.reconcile)
	var err1, err2 error
	c.sets, err1 = ownership.NewIndex[*appsv1.ReplicaSet](sets)
	c.pods, err2 = ownership.NewIndex[*corev1.Pod](pods)
	return c, errors.Join(err1, err2,
		controller.Watch(c.loop, deployments.Informer(), controller.Enqueue[*appsv1.Deployment](c.loop)),
		controller.Watch(c.loop, sets, controller.Handlers[*appsv1.ReplicaSet]{
			Added: c.setChanged, Deleted: c.setChanged,
			Updated: func(old, rs *appsv1.ReplicaSet) {
				if metav1.GetControllerOfNoCopy(old) != nil {
					c.setChanged(old)
				}
				c.setChanged(rs)
			},
		}),
		controller.Watch(c.loop, pods, controller.Handlers[*corev1.Pod]{
			Updated: func(old, pod *corev1.Pod) {
				if ownership.Ended(pod) != ownership.Ended(old) {
					c.podGone(pod)
				}
			},
			Deleted: c.podGone,
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) setChanged(rs *appsv1.ReplicaSet) {
	if ref := metav1.GetControllerOfNoCopy(rs); ref != nil {
		if ref.Kind == gvk.Kind && ref.APIVersion == gvk.GroupVersion().String() {
			c.loop.Add(controller.Key{Namespace: rs.Namespace, Name: ref.Name})
		}
		return
	}
	if len(rs.Labels) == 0 {
		return
	}
	all, err := c.lister.Deployments(rs.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, d := range all {
		sel, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
		if err == nil && !sel.Empty() && sel.Matches(labels.Set(rs.Labels)) {
			c.loop.Add(controller.KeyOf(d))
		}
	}
}

// podGone wakes a Deployment of strategy Recreate, which waits for the last old pod.
func (c *Controller) podGone(pod *corev1.Pod) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return
	}
	rs, err := c.cfg.Informers.Apps().V1().ReplicaSets().Lister().ReplicaSets(pod.Namespace).Get(ref.Name)
	if err != nil {
		return
	}
	owner := metav1.GetControllerOfNoCopy(rs)
	if owner == nil {
		return
	}
	d, err := c.lister.Deployments(pod.Namespace).Get(owner.Name)
	if err == nil && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		c.loop.Add(controller.KeyOf(d))
	}
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	d, err := c.lister.Deployments(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.writes.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading Deployment: %w", err)
	}
	if c.writes.Behind(key, d) {
		return 0, nil
	}
	s := state{deployment: d, running: c.running, now: c.cfg.Clock.Now()}
	if d.Spec.Selector != nil && !equality.Semantic.DeepEqual(*d.Spec.Selector, metav1.LabelSelector{}) {
		if s.sets, err = c.claim(ctx, d); err != nil {
			return 0, err
		}
	}
	for _, rs := range s.sets {
		if c.resize.Behind(controller.KeyOf(rs), rs) {
			return 0, nil
		}
	}
	p := decide(s)
	if p.everything {
		c.cfg.Events.Event(d, corev1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
	}
	return p.again, c.act(ctx, d, p)
}

func (c *Controller) claim(ctx context.Context, d *appsv1.Deployment) ([]*appsv1.ReplicaSet, error) {
	sel, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	claim := ownership.Claim[*appsv1.ReplicaSet]{
		Owner: d, Kind: gvk, Selector: sel,
		Live: func(ctx context.Context) (metav1.Object, error) {
			return c.cfg.Client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, rs *appsv1.ReplicaSet, patch []byte) error {
			_, err := c.cfg.Client.AppsV1().ReplicaSets(rs.Namespace).Patch(ctx, rs.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}
	return claim.All(ctx, append(c.sets.OwnedBy(d.UID), c.sets.Orphans(d.Namespace)...))
}

func (c *Controller) running(rs *appsv1.ReplicaSet) bool {
	for _, p := range c.pods.OwnedBy(rs.UID) {
		if !ownership.Ended(p) {
			return true
		}
	}
	return false
}

func (c *Controller) act(ctx context.Context, d *appsv1.Deployment, p plan) error {
	client := c.cfg.Client.AppsV1()
	if p.create != nil {
		if ok, err := c.create(ctx, d, p.create); !ok {
			return err
		}
	}
	for _, ch := range p.update {
		// The update carries the revision we decided on: a conflict decides anew.
		written, err := client.ReplicaSets(d.Namespace).Update(ctx, ch.set, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("updating ReplicaSet %s: %w", ch.set.Name, err)
		}
		c.resize.Note(controller.KeyOf(written), written)
		if to := size(ch.set); to != ch.from {
			direction := "up"
			if to < ch.from {
				direction = "down"
			}
			c.cfg.Events.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", direction, ch.set.Name, ch.from, to)
		}
	}
	for _, rs := range p.remove {
		err := client.ReplicaSets(d.Namespace).Delete(ctx, rs.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: ptr.To(rs.UID), ResourceVersion: ptr.To(rs.ResourceVersion)},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting old ReplicaSet %s: %w", rs.Name, err)
		}
	}
	return c.writeStatus(ctx, p.status)
}

func (c *Controller) writeStatus(ctx context.Context, d *appsv1.Deployment) error {
	if d == nil {
		return nil
	}
	written, err := c.cfg.Client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("updating status: %w", err)
	}
	c.writes.Note(controller.KeyOf(written), written)
	return nil
}

// create creates the current set; false ends the pass.
func (c *Controller) create(ctx context.Context, d *appsv1.Deployment, rs *appsv1.ReplicaSet) (bool, error) {
	sets := c.cfg.Client.AppsV1().ReplicaSets(rs.Namespace)
	_, err := sets.Create(ctx, rs, metav1.CreateOptions{})
	switch {
	case err == nil:
		if n := size(rs); n > 0 {
			c.cfg.Events.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled up replica set %s from 0 to %d", rs.Name, n)
		}
		return true, nil
	case apierrors.IsAlreadyExists(err):
		there, getErr := sets.Get(ctx, rs.Name, metav1.GetOptions{})
		if getErr != nil {
			return false, fmt.Errorf("reading ReplicaSet %s: %w", rs.Name, getErr)
		}
		if metav1.IsControlledBy(there, d) && sameTemplate(&there.Spec.Template, &d.Spec.Template) {
			// Ours from before; the informer will show it.
			return false, fmt.Errorf("ReplicaSet %s was just made: %w", rs.Name, controller.ErrStale)
		}
		// Another template with the same hash: salt it.
		next := d.DeepCopy()
		next.Status.CollisionCount = ptr.To(ptr.Deref(d.Status.CollisionCount, 0) + 1)
		return false, c.writeStatus(ctx, next)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return false, nil
	}
	message := fmt.Sprintf("Failed to create new replica set %q: %v", rs.Name, err)
	c.cfg.Events.Event(d, corev1.EventTypeWarning, reasonCreateError, message)
	if hasDeadline(d) {
		next := d.DeepCopy()
		setCondition(&next.Status, c.cfg.Clock.Now(), appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonCreateError, message)
		err = errors.Join(err, c.writeStatus(ctx, next))
	}
	return false, fmt.Errorf("creating ReplicaSet: %w", err)
}
