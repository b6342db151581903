package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

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
