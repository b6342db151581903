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
	"slices"
	"strconv"
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
	pods, err := c.claim(ctx, j)
	if err != nil {
		return 0, err
	}
	p := decide(state{job: j, pods: pods, met: met, released: c.isReleased, backoff: backoff, now: c.cfg.Clock.Now()})
	d, actErr := c.act(ctx, key, p)
	if err := c.write(ctx, p, d); err != nil {
		return 0, errors.Join(actErr, err)
	}
	return p.again, actErr
}

func (c *Controller) isReleased(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.released[uid]
	return ok
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

// act creates and deletes pods.
func (c *Controller) act(ctx context.Context, key controller.Key, p *pass) (done, error) {
	var d done
	if len(p.remove) > 0 {
		uids := make([]types.UID, len(p.remove))
		for i, pod := range p.remove {
			uids[i] = pod.UID
		}
		c.expect.Deletions(key, uids...)
		var mu sync.Mutex
		_, err := ownership.Parallel(len(p.remove), func(i int) error {
			pod := p.remove[i]
			err := c.control.Delete(ctx, pod, p.job)
			if err != nil {
				c.expect.Deleted(key, pod.UID)
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			d.removed = append(d.removed, pod)
			return nil
		})
		return d, err
	}
	if len(p.create) == 0 {
		return d, nil
	}
	c.expect.Creations(key, len(p.create))
	ref := metav1.NewControllerRef(p.job, gvk)
	made, err := ownership.SlowStart(len(p.create), func(i int) error {
		_, err := c.control.Create(ctx, newPod(p, p.create[i], ref), p.job)
		return err
	})
	for range len(p.create) - made {
		c.expect.Created(key)
	}
	d.created = made
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		err = nil
	}
	return d, err
}

const indexEnv = "JOB_COMPLETION_INDEX"

// maxPrefix leaves room for the five characters that the server adds to generateName.
const maxPrefix = 58

// newPod makes a pod for an index (or noIndex).
func newPod(p *pass, ix int, ref *metav1.OwnerReference) *corev1.Pod {
	j := p.job
	pod := ownership.NewPod(&j.Spec.Template, j.Namespace, j.Name, ref)
	if !slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if ix == noIndex {
		return pod
	}
	v := strconv.Itoa(ix)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = v
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = v
	pod.Spec.Hostname = j.Name + "-" + v
	name := j.Name
	if over := len(name) + len(v) + 2 - maxPrefix; over > 0 {
		name = name[:len(name)-over]
	}
	pod.GenerateName = name + "-" + v + "-"
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			ct := &list[i]
			if !slices.ContainsFunc(ct.Env, func(e corev1.EnvVar) bool { return e.Name == indexEnv }) {
				ct.Env = append(ct.Env, corev1.EnvVar{Name: indexEnv, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
					FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation + "']"}}})
			}
		}
	}
	if j.Spec.BackoffLimitPerIndex != nil {
		countFailures(p, pod, ix)
	}
	return pod
}

// countFailures hands an index's failures on to its next pod.
func countFailures(p *pass, pod *corev1.Pod, ix int) {
	counted, ignored := 0, 0
	if last := p.delayed[ix]; last != nil {
		counted = annotationCount(last, batchv1.JobIndexFailureCountAnnotation)
		ignored = annotationCount(last, batchv1.JobIndexIgnoredFailureCountAnnotation)
		if judge(p.job.Spec.PodFailurePolicy, last).counts() {
			counted++
		} else {
			ignored++
		}
	}
	pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(counted)
	if ignored > 0 {
		pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(ignored)
	}
}

// write writes the status, releases counted pods, and writes again what that settled.
func (c *Controller) write(ctx context.Context, p *pass, d done) error {
	client := c.cfg.Client.BatchV1().Jobs(p.job.Namespace)
	next, release, turned := p.account(d)
	written := p.job
	// Nothing to release: the end can be written at once.
	var end *batchv1.JobCondition
	if len(release) == 0 {
		end = p.finish(next, true)
	}
	if !same(&p.job.Status, &next.Status) {
		var err error
		if written, err = client.UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
			return ignoreGone(err, "updating status")
		}
		c.writes.Note(controller.KeyOf(written), written)
	}
	c.mu.Lock()
	c.backoffs[p.job.UID] = p.record
	c.mu.Unlock()
	switch turned {
	case "Suspended":
		c.cfg.Events.Event(p.job, corev1.EventTypeNormal, turned, "Job suspended")
	case "Resumed":
		c.cfg.Events.Event(p.job, corev1.EventTypeNormal, turned, "Job resumed")
	}
	if end != nil {
		c.ended(p.job, written, end)
		return nil
	}
	if len(release) == 0 {
		return nil
	}

	var mu sync.Mutex
	held := p.withFinalizer()
	_, relErr := ownership.Parallel(len(release), func(i int) error {
		pod := release[i]
		c.mu.Lock()
		c.released[pod.UID] = struct{}{}
		c.mu.Unlock()
		if err := c.release(ctx, pod); err != nil {
			c.seen(pod.UID)
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		delete(held, pod.UID)
		return nil
	})
	last := written.DeepCopy()
	if last.Status.UncountedTerminatedPods == nil {
		last.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	settle(&last.Status, held)
	end = p.finish(last, relErr == nil && len(release) < maxUncounted)
	if !same(&written.Status, &last.Status) {
		var err error
		if written, err = client.UpdateStatus(ctx, last, metav1.UpdateOptions{}); err != nil {
			return errors.Join(relErr, ignoreGone(err, "updating status"))
		}
		c.writes.Note(controller.KeyOf(written), written)
		if end != nil {
			c.ended(p.job, written, end)
		}
	}
	return relErr
}

func ignoreGone(err error, what string) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// ended tells about a Job's end.
func (c *Controller) ended(j, written *batchv1.Job, end *batchv1.JobCondition) {
	c.mu.Lock()
	c.finished[j.UID] = struct{}{}
	c.mu.Unlock()
	if end.Type == batchv1.JobFailed {
		c.cfg.Events.Event(j, corev1.EventTypeWarning, end.Reason, end.Message)
		return
	}
	if j.Spec.Completions != nil && written.Status.Succeeded > *j.Spec.Completions {
		c.cfg.Events.Event(j, corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
	}
	c.cfg.Events.Event(j, corev1.EventTypeNormal, "Completed", "Job completed")
}
