// Package ttlafterfinished deletes Jobs that ended spec.ttlSecondsAfterFinished ago.
package ttlafterfinished

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Controller deletes finished Jobs.
type Controller struct {
	cfg  controller.Config
	loop *controller.Loop[controller.Key]
	jobs batchlisters.JobLister
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	jobs := cfg.Informers.Batch().V1().Jobs()
	c := &Controller{cfg: cfg, jobs: jobs.Lister()}
	c.loop = controller.NewLoop("ttl-after-finished-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	note := func(j *batchv1.Job) {
		if _, ok := expiry(j); ok {
			c.loop.Add(controller.KeyOf(j))
		}
	}
	return c, controller.Watch(c.loop, jobs.Informer(), controller.Handlers[*batchv1.Job]{
		Added: note, Updated: func(_, j *batchv1.Job) { note(j) },
	})
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// expiry is when a Job is to go; false when it is not to.
func expiry(j *batchv1.Job) (time.Time, bool) {
	if j.Spec.TTLSecondsAfterFinished == nil || j.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, cond := range j.Status.Conditions {
		if (cond.Type == batchv1.JobComplete || cond.Type == batchv1.JobFailed) && cond.Status == corev1.ConditionTrue && !cond.LastTransitionTime.IsZero() {
			return cond.LastTransitionTime.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return time.Time{}, false
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	cached, err := c.jobs.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading Job: %w", err)
	}
	now := c.cfg.Clock.Now()
	if at, ok := expiry(cached); !ok || at.After(now) {
		return at.Sub(now), nil // nothing when !ok: the difference is negative
	}
	// The ttl may just have been raised.
	client := c.cfg.Client.BatchV1().Jobs(key.Namespace)
	j, err := client.Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading Job: %w", err)
	}
	if at, ok := expiry(j); !ok || at.After(now) {
		return at.Sub(now), nil
	}
	err = client.Delete(ctx, j.Name, metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationForeground),
		Preconditions:     &metav1.Preconditions{UID: ptr.To(j.UID), ResourceVersion: ptr.To(j.ResourceVersion)},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("deleting Job: %w", err)
	}
	return 0, nil
}
