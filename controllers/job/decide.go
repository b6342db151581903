package job

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/ownership"
)

const (
	// maxPerPass bounds how many pods one pass creates or deletes.
	maxPerPass = 500
	// maxUncounted bounds status.uncountedTerminatedPods.
	maxUncounted = 500
)

// state is what one pass looks at.
type state struct {
	job  *batchv1.Job
	pods []*corev1.Pod // claimed, shared
	// met: no creation or deletion is outstanding.
	met bool
	// released: the finalizer's removal was sent and not yet seen.
	released func(types.UID) bool
	backoff  record
	now      time.Time
}

func indexed(j *batchv1.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion
}

func suspended(j *batchv1.Job) bool { return ptr.Deref(j.Spec.Suspend, false) }

func replaceFailedOnly(j *batchv1.Job) bool {
	return j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed
}

// finishedAs returns the condition that ended a Job, or nil.
func finishedAs(j *batchv1.Job) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		c := &j.Status.Conditions[i]
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

func condition(j *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if c := &j.Status.Conditions[i]; c.Type == t && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// failed reports whether a pod counts as failed: it did, or it is being deleted and
// will be replaced without waiting for its end.
func failed(j *batchv1.Job, p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodFailed {
		return true
	}
	return !replaceFailedOnly(j) && p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded
}

func tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) }

// pass is one look at a Job: what there is, what ends it, what to do.
type pass struct {
	state
	completions int // of an indexed Job

	active, terminating             []*corev1.Pod
	newSucceeded, newFailed         []*corev1.Pod // not yet in the status in any form
	uncountedDone, uncountedFailed  map[types.UID]bool
	succeeded, failures             int32
	doneBefore, done, failedIndexes indexes
	delayed                         map[int]*corev1.Pod // failed pods that hold an index's failure count

	// ending is what ends the Job: SuccessCriteriaMet or FailureTarget.
	ending *batchv1.JobCondition
	record record

	create []int // completion indexes, noIndex for pods without
	remove []*corev1.Pod
	again  time.Duration
	// managed: the number of pods was looked at.
	managed bool
}

// decide finds out what to do about the pods of an unfinished Job.
func decide(s state) *pass {
	p := &pass{state: s, completions: int(ptr.Deref(s.job.Spec.Completions, 0))}
	p.count()
	p.end()
	p.manage()
	return p
}

func (p *pass) count() {
	p.uncountedDone, p.uncountedFailed = map[types.UID]bool{}, map[types.UID]bool{}
	if u := p.job.Status.UncountedTerminatedPods; u != nil {
		for _, uid := range u.Succeeded {
			p.uncountedDone[uid] = true
		}
		for _, uid := range u.Failed {
			p.uncountedFailed[uid] = true
		}
	}
	for _, pod := range p.pods {
		switch {
		case ownership.Active(pod):
			p.active = append(p.active, pod)
		case ownership.Terminating(pod):
			p.terminating = append(p.terminating, pod)
		}
		if !p.counts(pod) {
			continue
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && !p.uncountedDone[pod.UID] && !p.uncountedFailed[pod.UID]:
			p.newSucceeded = append(p.newSucceeded, pod)
		case failed(p.job, pod) && !p.uncountedFailed[pod.UID]:
			p.newFailed = append(p.newFailed, pod)
		}
	}
	p.succeeded = p.job.Status.Succeeded + int32(len(p.newSucceeded)+len(p.uncountedDone))
	p.failures = p.job.Status.Failed + int32(len(p.uncountedFailed))
	for _, pod := range p.newFailed {
		if judge(p.job.Spec.PodFailurePolicy, pod).counts() {
			p.failures++
		}
	}
	p.record = p.backoff.after(p.newSucceeded, p.newFailed)
	if indexed(p.job) {
		p.countIndexes()
	}
}

// counts reports whether a pod may still change the status: it has the finalizer, and
// an index in range if it needs one.
func (p *pass) counts(pod *corev1.Pod) bool {
	return tracked(pod) && !p.released(pod.UID) && p.inRange(pod)
}

func (p *pass) inRange(pod *corev1.Pod) bool {
	if !indexed(p.job) {
		return true
	}
	ix := indexOf(pod)
	return ix != noIndex && ix < p.completions
}

func (p *pass) countIndexes() {
	p.doneBefore = parseIndexes(p.job.Status.CompletedIndexes, p.completions)
	p.done = p.doneBefore
	for _, pod := range p.pods {
		if pod.Status.Phase == corev1.PodSucceeded && tracked(pod) && p.inRange(pod) {
			p.done = p.done.plus(indexOf(pod))
		}
	}
	p.succeeded = int32(p.done.total())
	if p.job.Spec.BackoffLimitPerIndex == nil {
		return
	}
	p.failedIndexes = parseIndexes(ptr.Deref(p.job.Status.FailedIndexes, ""), p.completions)
	for _, pod := range p.pods {
		if tracked(pod) && p.inRange(pod) && p.indexFailed(pod) {
			p.failedIndexes = p.failedIndexes.plus(indexOf(pod))
		}
	}
	busy := p.busyIndexes(p.active)
	p.delayed = map[int]*corev1.Pod{}
	for _, pod := range p.pods {
		ix := indexOf(pod)
		if !p.counts(pod) || !failed(p.job, pod) || p.done.has(ix) || p.failedIndexes.has(ix) || busy.has(ix) {
			continue
		}
		if other := p.delayed[ix]; other == nil ||
			attempts(other) <= attempts(pod) && !endedAt(pod).Before(endedAt(other)) {
			p.delayed[ix] = pod
		}
	}
}

func (p *pass) busyIndexes(pods []*corev1.Pod) indexes {
	var x indexes
	for _, pod := range pods {
		if ix := indexOf(pod); ix != noIndex {
			x = append(x, span{ix, ix})
		}
	}
	return x.joined()
}

// indexFailed reports whether this pod's failure is its index's last.
func (p *pass) indexFailed(pod *corev1.Pod) bool {
	if !failed(p.job, pod) {
		return false
	}
	v := judge(p.job.Spec.PodFailurePolicy, pod)
	if v.action == batchv1.PodFailurePolicyActionFailIndex {
		return true
	}
	return v.counts() && annotationCount(pod, batchv1.JobIndexFailureCountAnnotation) >= int(*p.job.Spec.BackoffLimitPerIndex)
}

func annotationCount(pod *corev1.Pod, name string) int {
	n, err := strconv.Atoi(pod.Annotations[name])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// attempts are an index's failures before this pod, ignored ones included.
func attempts(pod *corev1.Pod) int {
	return annotationCount(pod, batchv1.JobIndexFailureCountAnnotation) + annotationCount(pod, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

func (p *pass) ends(t batchv1.JobConditionType, reason, message string) {
	if p.ending == nil {
		c := newCondition(t, corev1.ConditionTrue, reason, message, p.now)
		p.ending = &c
	}
}

func newCondition(t batchv1.JobConditionType, s corev1.ConditionStatus, reason, message string, now time.Time) batchv1.JobCondition {
	return batchv1.JobCondition{Type: t, Status: s, Reason: reason, Message: message, LastProbeTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now)}
}

// end looks for what ends the Job, in upstream's order: what was decided before, then
// failures, then the success policy. Completions are looked at when pods were counted.
func (p *pass) end() {
	j := p.job
	for _, t := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget} {
		if c := condition(j, t); c != nil {
			p.ending = c.DeepCopy()
			return
		}
	}
	if j.Spec.PodFailurePolicy != nil {
		for _, pod := range p.pods {
			if failed(j, pod) {
				if v := judge(j.Spec.PodFailurePolicy, pod); v.action == batchv1.PodFailurePolicyActionFailJob {
					p.ends(batchv1.JobFailureTarget, batchv1.JobReasonPodFailurePolicy, v.message)
					break
				}
			}
		}
	}
	limit := ptr.Deref(j.Spec.BackoffLimit, 6)
	switch {
	case p.failures > limit || restartedTooOften(j, p.pods, limit):
		p.ends(batchv1.JobFailureTarget, batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	case j.Spec.ActiveDeadlineSeconds != nil && j.Status.StartTime != nil && !suspended(j):
		left := j.Status.StartTime.Add(time.Duration(*j.Spec.ActiveDeadlineSeconds) * time.Second).Sub(p.now)
		if left <= 0 {
			p.ends(batchv1.JobFailureTarget, batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		} else {
			p.again = left
		}
	}
	if !indexed(j) {
		return
	}
	if j.Spec.BackoffLimitPerIndex != nil {
		bad := p.failedIndexes.total()
		switch {
		case j.Spec.MaxFailedIndexes != nil && bad > int(*j.Spec.MaxFailedIndexes):
			p.ends(batchv1.JobFailureTarget, batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
		case bad > 0 && bad+p.done.total() >= p.completions:
			p.ends(batchv1.JobFailureTarget, batchv1.JobReasonFailedIndexes, "Job has failed indexes")
		}
	}
	if rule := succeededEnough(j.Spec.SuccessPolicy, p.done, p.completions); rule >= 0 {
		p.ends(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, fmt.Sprintf("Matched rules at index %d", rule))
	}
}

// restartedTooOften counts the restarts of containers in place (restartPolicy OnFailure).
func restartedTooOften(j *batchv1.Job, pods []*corev1.Pod, limit int32) bool {
	if j.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var n int32
	for _, p := range pods {
		if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending {
			continue
		}
		for i := range p.Status.InitContainerStatuses {
			n += p.Status.InitContainerStatuses[i].RestartCount
		}
		for i := range p.Status.ContainerStatuses {
			n += p.Status.ContainerStatuses[i].RestartCount
		}
	}
	return n >= max(limit, 1)
}
