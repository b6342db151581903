// Package job runs Jobs to completion.
//
// Owns: the pods of Jobs and their finalizer batch.kubernetes.io/job-tracking, and Jobs'
// status. Must not: delete finished Jobs (controllers/ttlafterfinished), nor touch Jobs
// with another spec.managedBy.
package job

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/expectations"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

var gvk = batchv1.SchemeGroupVersion.WithKind("Job")

// Controller reconciles Jobs.
type Controller struct {
	cfg     controller.Config
	loop    *controller.Loop[controller.Key]
	orphans *controller.Loop[controller.Key] // pods to free of their finalizer
	jobs    batchlisters.JobLister
	podList corelisters.PodLister
	pods    ownership.Index[*corev1.Pod]
	control ownership.Pods
	expect  *expectations.Set[controller.Key]
	writes  *controller.Writes[controller.Key]

	mu       sync.Mutex
	released map[types.UID]struct{} // pods whose finalizer we removed, not yet seen
	backoffs map[types.UID]record   // by Job
	finished map[types.UID]struct{} // Jobs whose end we wrote, not yet seen
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	const name = "job-controller"
	jobs := cfg.Informers.Batch().V1().Jobs()
	pods := cfg.Informers.Core().V1().Pods()
	c := &Controller{
		cfg:      cfg,
		jobs:     jobs.Lister(),
		podList:  pods.Lister(),
		control:  ownership.Pods{Client: cfg.Client, Events: cfg.Events},
		expect:   expectations.New[controller.Key](cfg.Clock),
		writes:   controller.NewWrites[controller.Key](cfg.Clock),
		released: map[types.UID]struct{}{},
		backoffs: map[types.UID]record{},
		finished: map[types.UID]struct{}{},
	}
	c.loop = controller.NewLoop(name, 5, cfg.Clock, cfg.Logger, c.reconcile)
	c.orphans = controller.NewLoop(name, 1, cfg.Clock, cfg.Logger, c.free)
	var err error
	if c.pods, err = ownership.NewIndex[*corev1.Pod](pods.Informer()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, errors.Join(
		controller.Watch(c.loop, jobs.Informer(), controller.Handlers[*batchv1.Job]{
			Added:   func(j *batchv1.Job) { c.loop.Add(controller.KeyOf(j)) },
			Updated: func(_, j *batchv1.Job) { c.loop.Add(controller.KeyOf(j)) },
			Deleted: c.jobDeleted,
		}),
		controller.Watch(c.loop, pods.Informer(), controller.Handlers[*corev1.Pod]{
			Added: c.podAdded, Updated: c.podUpdated, Deleted: c.podDeleted,
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	if !c.loop.WaitSynced(ctx) {
		return nil
	}
	var wg sync.WaitGroup
	var second error
	wg.Go(func() { second = c.orphans.Run(ctx) })
	err := c.loop.Run(ctx)
	wg.Wait()
	return errors.Join(err, second)
}

func (c *Controller) jobDeleted(j *batchv1.Job) {
	c.mu.Lock()
	delete(c.backoffs, j.UID)
	delete(c.finished, j.UID)
	c.mu.Unlock()
	c.loop.Add(controller.KeyOf(j))
	for _, p := range c.pods.OwnedBy(j.UID) {
		c.orphans.Add(controller.KeyOf(p))
	}
	if sel, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil {
		for _, p := range c.pods.Orphans(j.Namespace) { // orphaned on purpose
			if tracked(p) && sel.Matches(labels.Set(p.Labels)) {
				c.orphans.Add(controller.KeyOf(p))
			}
		}
	}
}

// ownerOf finds the pod's Job; false when it has none or the Job is gone.
func (c *Controller) ownerOf(p *corev1.Pod) (controller.Key, bool) {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind != gvk.Kind || ref.APIVersion != gvk.GroupVersion().String() {
		return controller.Key{}, false
	}
	j, err := c.jobs.Jobs(p.Namespace).Get(ref.Name)
	if err != nil || j.UID != ref.UID {
		return controller.Key{}, false
	}
	return controller.KeyOf(j), true
}

func (c *Controller) podAdded(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		c.podDeleted(p)
		return
	}
	if key, ok := c.ownerOf(p); ok {
		c.expect.Created(key)
		c.loop.Add(key)
		return
	}
	c.homeless(p)
}

func (c *Controller) podUpdated(old, p *corev1.Pod) {
	if !tracked(p) {
		c.seen(p.UID)
	}
	if p.DeletionTimestamp != nil && old.DeletionTimestamp == nil {
		if key, ok := c.ownerOf(p); ok {
			c.expect.Deleted(key, p.UID)
		}
	}
	if key, ok := c.ownerOf(old); ok {
		c.loop.Add(key)
	}
	if key, ok := c.ownerOf(p); ok {
		c.loop.Add(key)
		return
	}
	c.homeless(p)
}

func (c *Controller) podDeleted(p *corev1.Pod) {
	c.seen(p.UID)
	if key, ok := c.ownerOf(p); ok {
		c.expect.Deleted(key, p.UID)
		c.loop.Add(key)
		return
	}
	c.homeless(p)
}

func (c *Controller) seen(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.released, uid)
}

// homeless handles a pod without a Job: some may want to adopt it; else its finalizer,
// if it has ours, would keep it for ever.
func (c *Controller) homeless(p *corev1.Pod) {
	if metav1.GetControllerOfNoCopy(p) == nil && len(p.Labels) > 0 {
		jobs, err := c.jobs.Jobs(p.Namespace).List(labels.Everything())
		if err != nil {
			return
		}
		for _, j := range jobs {
			sel, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
			if err == nil && !sel.Empty() && sel.Matches(labels.Set(p.Labels)) && finishedAs(j) == nil {
				c.loop.Add(controller.KeyOf(j))
			}
		}
	}
	if tracked(p) {
		c.orphans.Add(controller.KeyOf(p))
	}
}

// free removes the finalizer of a pod whose Job is gone or finished.
func (c *Controller) free(ctx context.Context, key controller.Key) (time.Duration, error) {
	p, err := c.podList.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading pod: %w", err)
	}
	if !tracked(p) {
		return 0, nil
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		if ref.Kind != gvk.Kind || ref.APIVersion != gvk.GroupVersion().String() {
			return 0, nil
		}
		// The cache may not know a new Job yet: ask before taking its pod's finalizer.
		j, err := c.cfg.Client.BatchV1().Jobs(key.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("reading Job: %w", err)
		}
		if err == nil && j.UID == ref.UID && (foreign(j) || finishedAs(j) == nil) {
			return 0, nil
		}
	}
	return 0, c.release(ctx, p)
}

// foreign Jobs are another controller's.
func foreign(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName
}

func (c *Controller) release(ctx context.Context, p *corev1.Pod) error {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, p.UID, batchv1.JobTrackingFinalizer)
	err := c.control.Patch(ctx, p, []byte(patch))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("removing finalizer of pod %s: %w", p.Name, err)
	}
	return nil
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	j, err := c.jobs.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.expect.Forget(key)
		c.writes.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading Job: %w", err)
	}
	if foreign(j) || c.writes.Behind(key, j) {
		return 0, nil
	}
	c.mu.Lock()
	_, ended := c.finished[j.UID]
	backoff := c.backoffs[j.UID]
	if finishedAs(j) != nil {
		delete(c.finished, j.UID)
		delete(c.backoffs, j.UID)
	}
	c.mu.Unlock()
	if finishedAs(j) != nil {
		for _, p := range c.pods.OwnedBy(j.UID) {
			if tracked(p) {
				c.orphans.Add(controller.KeyOf(p))
			}
		}
		return 0, nil
	}
	if ended {
		return 0, nil
	}
	if m := j.Spec.CompletionMode; m != nil && *m != batchv1.NonIndexedCompletion && *m != batchv1.IndexedCompletion {
		c.cfg.Events.Event(j, corev1.EventTypeWarning, "UnknownCompletionMode", "Skipped Job sync because completion mode is unknown")
		return 0, nil
	}
	met := c.expect.Met(key) // before looking at pods: one that shows up later is met later
	// Before looking at pods, too: one that is shown without its finalizer meanwhile would be
	// forgotten as released, and counted again by what was read before.
	released := c.releasedNow()
	pods, err := c.claim(ctx, j)
	if err != nil {
		return 0, err
	}
	p := decide(state{job: j, pods: pods, met: met, released: released, backoff: backoff, now: c.cfg.Clock.Now()})
	d, actErr := c.act(ctx, key, p)
	if err := c.write(ctx, p, d); err != nil {
		return 0, errors.Join(actErr, err)
	}
	return p.again, actErr
}

// releasedNow tells pods whose finalizer was taken away and that may still be seen with it.
func (c *Controller) releasedNow() func(types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := maps.Clone(c.released)
	return func(uid types.UID) bool { _, ok := now[uid]; return ok }
}

func (c *Controller) claim(ctx context.Context, j *batchv1.Job) ([]*corev1.Pod, error) {
	sel, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	claim := ownership.Claim[*corev1.Pod]{
		Owner: j, Kind: gvk, Selector: sel, Finalizer: batchv1.JobTrackingFinalizer,
		Live: func(ctx context.Context) (metav1.Object, error) {
			return c.cfg.Client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
		},
		Patch: c.control.Patch,
	}
	pods, err := claim.All(ctx, append(c.pods.OwnedBy(j.UID), c.pods.Orphans(j.Namespace)...))
	if err != nil {
		return nil, err
	}
	for i, p := range pods { // those just adopted have the finalizer now
		if !metav1.IsControlledBy(p, j) && !tracked(p) {
			pods[i] = p.DeepCopy()
			pods[i].Finalizers = append(pods[i].Finalizers, batchv1.JobTrackingFinalizer)
		}
	}
	return pods, nil
}
