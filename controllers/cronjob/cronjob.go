// Package cronjob makes Jobs of CronJobs when it is time, and deletes old ones.
package cronjob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

var gvk = batchv1.SchemeGroupVersion.WithKind("CronJob")

// Controller reconciles CronJobs.
type Controller struct {
	cfg   controller.Config
	loop  *controller.Loop[controller.Key]
	crons batchlisters.CronJobLister
	jobs  ownership.Index[*batchv1.Job]
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	batch := cfg.Informers.Batch().V1()
	c := &Controller{cfg: cfg, crons: batch.CronJobs().Lister()}
	c.loop = controller.NewLoop("cronjob-controller", 5, cfg.Clock, cfg.Logger, c.reconcile)
	var err error
	c.jobs, err = ownership.NewIndex[*batchv1.Job](batch.Jobs().Informer())
	return c, errors.Join(err,
		controller.Watch(c.loop, batch.CronJobs().Informer(), controller.Enqueue[*batchv1.CronJob](c.loop)),
		controller.Watch(c.loop, batch.Jobs().Informer(), controller.OnEach(func(j *batchv1.Job) {
			if ref := metav1.GetControllerOfNoCopy(j); ref != nil && ref.Kind == gvk.Kind {
				c.loop.Add(controller.Key{Namespace: j.Namespace, Name: ref.Name})
			}
		})),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func finished(j *batchv1.Job) batchv1.JobConditionType {
	for _, cond := range j.Status.Conditions {
		if (cond.Type == batchv1.JobComplete || cond.Type == batchv1.JobFailed) && cond.Status == corev1.ConditionTrue {
			return cond.Type
		}
	}
	return ""
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	cached, err := c.crons.CronJobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading CronJob: %w", err)
	}
	cj := cached.DeepCopy()
	jobs := c.jobs.OwnedBy(cj.UID)
	errs := []error{c.cleanUp(ctx, cj, jobs)}
	c.account(ctx, cj, jobs)
	again, err := c.schedule(ctx, cj, jobs)
	errs = append(errs, err)
	if !equality.Semantic.DeepEqual(cached.Status, cj.Status) {
		if _, err := c.cfg.Client.BatchV1().CronJobs(key.Namespace).UpdateStatus(ctx, cj, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("updating status: %w", err))
		}
	}
	return again, errors.Join(errs...)
}

func drop(cj *batchv1.CronJob, match func(corev1.ObjectReference) bool) bool {
	n := len(cj.Status.Active)
	cj.Status.Active = slices.DeleteFunc(cj.Status.Active, match)
	return len(cj.Status.Active) != n
}

// account brings status.active in line with the Jobs there are.
func (c *Controller) account(ctx context.Context, cj *batchv1.CronJob, jobs []*batchv1.Job) {
	have := map[string]bool{}
	for _, j := range jobs {
		have[string(j.UID)] = true
		listed := slices.ContainsFunc(cj.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == j.UID })
		end := finished(j)
		switch {
		case !listed && end == "":
			c.cfg.Events.Eventf(cj, corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", j.Name)
		case listed && end != "":
			drop(cj, func(r corev1.ObjectReference) bool { return r.UID == j.UID })
			c.cfg.Events.Eventf(cj, corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, end)
		}
		if end == batchv1.JobComplete && j.Status.CompletionTime != nil && (cj.Status.LastSuccessfulTime == nil || j.Status.CompletionTime.After(cj.Status.LastSuccessfulTime.Time)) {
			cj.Status.LastSuccessfulTime = j.Status.CompletionTime
		}
	}
	for _, r := range slices.Clone(cj.Status.Active) {
		if have[string(r.UID)] {
			continue
		}
		// The cache may not show it yet.
		j, err := c.cfg.Client.BatchV1().Jobs(cj.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && j.UID != r.UID {
			c.cfg.Events.Eventf(cj, corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", r.Name)
			drop(cj, func(x corev1.ObjectReference) bool { return x.UID == r.UID })
		}
	}
}

// schedule makes a Job if it is time.
func (c *Controller) schedule(ctx context.Context, cj *batchv1.CronJob, jobs []*batchv1.Job) (time.Duration, error) {
	if cj.DeletionTimestamp != nil || ptr.Deref(cj.Spec.Suspend, false) {
		return 0, nil
	}
	s, err := parse(cj)
	if err != nil {
		c.cfg.Events.Eventf(cj, corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %v", err)
		return 0, nil // until it is mended
	}
	now := c.cfg.Clock.Now()
	at, missed := due(cj, s, now)
	again := next(s, now)
	if missed >= manyMissed {
		c.cfg.Events.Eventf(cj, corev1.EventTypeWarning, "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	if at.IsZero() {
		return again, nil
	}
	if d := cj.Spec.StartingDeadlineSeconds; d != nil && at.Add(time.Duration(*d)*time.Second).Before(now) {
		c.cfg.Events.Eventf(cj, corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s", at.UTC().Format(time.RFC1123Z))
		return again, nil
	}
	name := jobName(cj, at)
	if cj.Status.LastScheduleTime.Equal(&metav1.Time{Time: at}) || slices.ContainsFunc(cj.Status.Active, func(r corev1.ObjectReference) bool { return r.Name == name }) {
		return again, nil
	}
	if i := slices.IndexFunc(jobs, func(j *batchv1.Job) bool { return j.Name == name }); i >= 0 {
		started(cj, jobs[i], at) // made before; only our status is behind
		return again, nil
	}
	switch {
	case cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(cj.Status.Active) > 0:
		c.cfg.Events.Eventf(cj, corev1.EventTypeNormal, "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
		return again, nil
	case cj.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		for _, j := range jobs {
			if finished(j) == "" {
				if err := c.delete(ctx, cj, j); err != nil {
					return 0, err
				}
			}
		}
	}
	return again, c.create(ctx, cj, name, at)
}

func (c *Controller) create(ctx context.Context, cj *batchv1.CronJob, name string, at time.Time) error {
	t := &cj.Spec.JobTemplate
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cj.Namespace, Name: name, Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cj, gvk)},
		},
		Spec: *t.Spec.DeepCopy(),
	}
	if j.Annotations == nil {
		j.Annotations = map[string]string{}
	}
	stamp := at
	if cj.Spec.TimeZone != nil {
		if loc, err := time.LoadLocation(*cj.Spec.TimeZone); err == nil {
			stamp = at.In(loc)
		}
	}
	j.Annotations[batchv1.CronJobScheduledTimestampAnnotation] = stamp.Format(time.RFC3339)
	client := c.cfg.Client.BatchV1().Jobs(cj.Namespace)
	made, err := client.Create(ctx, j, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.cfg.Events.Eventf(cj, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", made.Name)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err):
		if made, err = client.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("reading Job %s: %w", name, err)
		}
		if !metav1.IsControlledBy(made, cj) {
			return fmt.Errorf("a Job named %s exists and is not ours", name)
		}
	default:
		c.cfg.Events.Eventf(cj, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return fmt.Errorf("creating Job: %w", err)
	}
	started(cj, made, at)
	return nil
}

// started notes the Job of a time in the status.
func started(cj *batchv1.CronJob, j *batchv1.Job, at time.Time) {
	cj.Status.LastScheduleTime = &metav1.Time{Time: at}
	if finished(j) == "" && !slices.ContainsFunc(cj.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == j.UID }) {
		cj.Status.Active = append(cj.Status.Active, corev1.ObjectReference{
			Kind: "Job", APIVersion: batchv1.SchemeGroupVersion.String(), Namespace: j.Namespace, Name: j.Name, UID: j.UID, ResourceVersion: j.ResourceVersion})
	}
}

func (c *Controller) delete(ctx context.Context, cj *batchv1.CronJob, j *batchv1.Job) error {
	err := c.cfg.Client.BatchV1().Jobs(j.Namespace).Delete(ctx, j.Name, metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground), Preconditions: &metav1.Preconditions{UID: ptr.To(j.UID)}})
	if err != nil && !apierrors.IsNotFound(err) {
		c.cfg.Events.Eventf(cj, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return fmt.Errorf("deleting Job %s: %w", j.Name, err)
	}
	drop(cj, func(r corev1.ObjectReference) bool { return r.UID == j.UID })
	c.cfg.Events.Eventf(cj, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", j.Name)
	return nil
}

// cleanUp deletes finished Jobs beyond the history limits, oldest first.
func (c *Controller) cleanUp(ctx context.Context, cj *batchv1.CronJob, jobs []*batchv1.Job) error {
	var errs []error
	for end, limit := range map[batchv1.JobConditionType]*int32{batchv1.JobComplete: cj.Spec.SuccessfulJobsHistoryLimit, batchv1.JobFailed: cj.Spec.FailedJobsHistoryLimit} {
		if limit == nil {
			continue
		}
		var old []*batchv1.Job
		for _, j := range jobs {
			if finished(j) == end && j.DeletionTimestamp == nil {
				old = append(old, j)
			}
		}
		slices.SortFunc(old, func(a, b *batchv1.Job) int {
			return cmp.Or(startOf(a).Compare(startOf(b)), cmp.Compare(a.Name, b.Name))
		})
		for _, j := range old[:max(0, len(old)-int(*limit))] {
			errs = append(errs, c.delete(ctx, cj, j))
		}
	}
	return errors.Join(errs...)
}

func startOf(j *batchv1.Job) time.Time {
	if j.Status.StartTime == nil {
		return j.CreationTimestamp.Time
	}
	return j.Status.StartTime.Time
}
