// Package statefulset keeps the pods of StatefulSets: each with a name, a place and
// volumes of its own, made, updated and removed in order.
//
// Owns: pods, claims and ControllerRevisions of StatefulSets, and their status.
package statefulset

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
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/history"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

var gvk = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// Controller reconciles StatefulSets.
type Controller struct {
	cfg     controller.Config
	loop    *controller.Loop[controller.Key]
	sets    appslisters.StatefulSetLister
	claims  corelisters.PersistentVolumeClaimLister
	pods    ownership.Index[*corev1.Pod]
	history history.Store
	control ownership.Pods
	writes  *controller.Writes[controller.Key]
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	const name = "statefulset-controller"
	apps, core := cfg.Informers.Apps().V1(), cfg.Informers.Core().V1()
	c := &Controller{cfg: cfg, sets: apps.StatefulSets().Lister(), claims: core.PersistentVolumeClaims().Lister(),
		control: ownership.Pods{Client: cfg.Client, Events: cfg.Events}, writes: controller.NewWrites[controller.Key](cfg.Clock)}
	c.loop = controller.NewLoop(name, 5, cfg.Clock, cfg.Logger, c.reconcile)
	var err1, err2 error
	c.pods, err1 = ownership.NewIndex[*corev1.Pod](core.Pods().Informer())
	revisions, err2 := ownership.NewIndex[*appsv1.ControllerRevision](apps.ControllerRevisions().Informer())
	c.history = history.Store{Client: cfg.Client, Index: revisions}
	c.loop.Needs(core.PersistentVolumeClaims().Informer().HasSynced, apps.ControllerRevisions().Informer().HasSynced)
	return c, errors.Join(err1, err2,
		controller.Watch(c.loop, apps.StatefulSets().Informer(), controller.Enqueue[*appsv1.StatefulSet](c.loop)),
		controller.Watch(c.loop, core.Pods().Informer(), controller.Handlers[*corev1.Pod]{
			Added: c.podChanged, Deleted: c.podChanged,
			Updated: func(old, p *corev1.Pod) {
				if key, ok := ownerOf(old); ok {
					c.loop.Add(key)
				}
				c.podChanged(p)
			},
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func ownerOf(p *corev1.Pod) (controller.Key, bool) {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind != gvk.Kind || ref.APIVersion != gvk.GroupVersion().String() {
		return controller.Key{}, false
	}
	return controller.Key{Namespace: p.Namespace, Name: ref.Name}, true
}

func (c *Controller) podChanged(p *corev1.Pod) {
	if key, ok := ownerOf(p); ok {
		c.loop.Add(key)
		return
	}
	if set, o := ordinalOf(p); o >= 0 && metav1.GetControllerOfNoCopy(p) == nil {
		c.loop.Add(controller.Key{Namespace: p.Namespace, Name: set}) // it may adopt it
	}
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	set, err := c.sets.StatefulSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading StatefulSet: %w", err)
	}
	if c.writes.Behind(key, set) {
		return 0, nil
	}
	sel, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("spec.selector: %w", err)
	}
	live := func(ctx context.Context) (metav1.Object, error) {
		return c.cfg.Client.AppsV1().StatefulSets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	}
	revisions, err := c.history.List(ctx, set, gvk, sel, live)
	if err != nil {
		return 0, err
	}
	current, update, err := c.revisions(ctx, set, revisions)
	if err != nil || update == nil {
		return 0, err
	}
	candidates := c.pods.OwnedBy(set.UID)
	for _, p := range c.pods.Orphans(set.Namespace) {
		if name, o := ordinalOf(p); o >= 0 && name == set.Name {
			candidates = append(candidates, p)
		}
	}
	claim := ownership.Claim[*corev1.Pod]{Owner: set, Kind: gvk, Selector: sel, Live: live, Patch: c.control.Patch}
	pods, err := claim.All(ctx, candidates)
	if err != nil {
		return 0, err
	}
	s := state{set: set, pods: pods, current: current.Name, update: update.Name, collisions: set.Status.CollisionCount, now: c.cfg.Clock.Now()}
	p := decide(s)
	actErr := c.act(ctx, s, p, current, update)
	status, again := statusOf(s, p.remove)
	if !equality.Semantic.DeepEqual(set.Status, status) {
		next := set.DeepCopy()
		next.Status = status
		written, err := c.cfg.Client.AppsV1().StatefulSets(key.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, errors.Join(actErr, fmt.Errorf("updating status: %w", err))
		}
		if err == nil {
			c.writes.Note(key, written)
		}
	}
	livRev := map[string]bool{current.Name: true, update.Name: true}
	for _, pod := range pods {
		livRev[revisionOf(pod)] = true
	}
	return again, errors.Join(actErr, c.history.Truncate(ctx, revisions, livRev, int(ptr.Deref(set.Spec.RevisionHistoryLimit, 10))))
}

// revisions finds or makes the revision of the set's template, and finds the one that
// its pods had before; nil after a collision.
func (c *Controller) revisions(ctx context.Context, set *appsv1.StatefulSet, all []*appsv1.ControllerRevision) (current, update *appsv1.ControllerRevision, err error) {
	data, err := history.Data(&set.Spec.Template)
	if err != nil {
		return nil, nil, err
	}
	collisions := ptr.To(ptr.Deref(set.Status.CollisionCount, 0))
	hash := history.Hash(data, collisions)
	l := map[string]string{}
	for k, v := range set.Spec.Template.Labels {
		l[k] = v
	}
	l["controller.kubernetes.io/hash"] = hash
	update, err = c.history.Ensure(ctx, all, history.New(set, gvk, history.Name(set.Name, hash), l, data, history.Next(all)))
	if errors.Is(err, history.ErrCollision) {
		next := set.DeepCopy()
		next.Status.CollisionCount = ptr.To(*collisions + 1)
		_, err := c.cfg.Client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	current = update
	for _, r := range all {
		if r.Name == set.Status.CurrentRevision {
			current = r
		}
	}
	return current, update, nil
}

func (c *Controller) act(ctx context.Context, s state, p plan, current, update *appsv1.ControllerRevision) error {
	for _, pod := range p.condemned {
		if err := c.keepClaims(ctx, s.set, pod, true); err != nil {
			return err
		}
	}
	templates := map[string]*corev1.PodTemplateSpec{}
	for _, r := range []*appsv1.ControllerRevision{current, update} {
		t, err := history.Template(r)
		if err != nil {
			return err
		}
		templates[r.Name] = t
	}
	_, err1 := ownership.Parallel(len(p.create), func(i int) error {
		o := p.create[i]
		revision := s.revisionFor(o)
		return c.create(ctx, s.set, newPod(s.set, templates[revision], revision, o), o)
	})
	_, err2 := ownership.Parallel(len(p.fix), func(i int) error { return c.fix(ctx, s.set, p.fix[i]) })
	_, err3 := ownership.Parallel(len(p.remove), func(i int) error {
		pod := p.remove[i]
		err := c.cfg.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(pod.UID)}})
		return c.tell(s.set, pod, "delete", err)
	})
	for _, pod := range s.pods { // what pods wait for, and the retention policy
		if _, o := ordinalOf(pod); o < startOrdinal(s.set) || o >= startOrdinal(s.set)+replicas(s.set) {
			continue
		}
		if pod.Status.Phase == corev1.PodPending || s.set.Generation != s.set.Status.ObservedGeneration {
			if err := c.keepClaims(ctx, s.set, pod, false); err != nil {
				return errors.Join(err1, err2, err3, err)
			}
		}
	}
	return errors.Join(err1, err2, err3)
}

// tell records an event as upstream words it, and forgives what is done already.
func (c *Controller) tell(set *appsv1.StatefulSet, pod *corev1.Pod, verb string, err error) error {
	title := map[string]string{"create": "Create", "delete": "Delete", "update": "Update"}[verb]
	if err == nil {
		c.cfg.Events.Eventf(set, corev1.EventTypeNormal, "Successful"+title, "%s Pod %s in StatefulSet %s successful", verb, pod.Name, set.Name)
		return nil
	}
	if apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	if !apierrors.IsConflict(err) {
		c.cfg.Events.Eventf(set, corev1.EventTypeWarning, "Failed"+title, "%s Pod %s in StatefulSet %s failed error: %v", verb, pod.Name, set.Name, err)
	}
	return fmt.Errorf("%s pod %s: %w", verb, pod.Name, err)
}

// create makes a pod's claims, then the pod.
func (c *Controller) create(ctx context.Context, set *appsv1.StatefulSet, pod *corev1.Pod, ordinal int) error {
	if err := c.makeClaims(ctx, set, ordinal); err != nil {
		return err
	}
	_, err := c.cfg.Client.CoreV1().Pods(set.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return c.tell(set, pod, "create", err)
}

func (c *Controller) makeClaims(ctx context.Context, set *appsv1.StatefulSet, ordinal int) error {
	for _, want := range claims(set, ordinal) {
		have, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(want.Name)
		switch {
		case err == nil && have.DeletionTimestamp != nil:
			return fmt.Errorf("claim %s is being deleted: %w", want.Name, controller.ErrStale)
		case err == nil:
			continue
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("reading claim %s: %w", want.Name, err)
		}
		want.OwnerReferences, _ = claimOwners(set, nil, false, want.OwnerReferences)
		_, err = c.cfg.Client.CoreV1().PersistentVolumeClaims(set.Namespace).Create(ctx, want, metav1.CreateOptions{})
		if err == nil {
			c.cfg.Events.Eventf(set, corev1.EventTypeNormal, "SuccessfulCreate", "create Claim %s Pod %s in StatefulSet %s success", want.Name, nameOf(set, ordinal), set.Name)
		} else if !apierrors.IsAlreadyExists(err) {
			c.cfg.Events.Eventf(set, corev1.EventTypeWarning, "FailedCreate", "create Claim %s for Pod %s in StatefulSet %s failed error: %v", want.Name, nameOf(set, ordinal), set.Name, err)
			return fmt.Errorf("creating claim %s: %w", want.Name, err)
		}
	}
	return nil
}

// keepClaims makes missing claims of a pod and sets who owns them.
func (c *Controller) keepClaims(ctx context.Context, set *appsv1.StatefulSet, pod *corev1.Pod, condemned bool) error {
	_, ordinal := ordinalOf(pod)
	if !condemned && pod.DeletionTimestamp == nil {
		if err := c.makeClaims(ctx, set, ordinal); err != nil {
			return err
		}
	}
	for _, want := range claims(set, ordinal) {
		have, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(want.Name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading claim %s: %w", want.Name, err)
		}
		owners, changed := claimOwners(set, pod, condemned, have.OwnerReferences)
		if !changed {
			continue
		}
		next := have.DeepCopy()
		next.OwnerReferences = owners
		if _, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(set.Namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("setting owners of claim %s: %w", next.Name, err)
		}
	}
	return nil
}

// fix gives a pod back the labels and volumes that make it what it is.
func (c *Controller) fix(ctx context.Context, set *appsv1.StatefulSet, pod *corev1.Pod) error {
	_, o := ordinalOf(pod)
	if err := c.makeClaims(ctx, set, o); err != nil {
		return err
	}
	next := pod.DeepCopy()
	identify(set, next, o)
	mount(set, next, o)
	_, err := c.cfg.Client.CoreV1().Pods(set.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	return c.tell(set, pod, "update", err)
}
