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

// manage decides how many pods there should be.
func (p *pass) manage() {
	j := p.job
	switch {
	case p.ending != nil || suspended(j) && p.met && j.DeletionTimestamp == nil:
		p.remove = p.active
		p.managed = p.ending == nil
		return
	case !p.met || j.DeletionTimestamp != nil:
		return
	}
	p.managed = true
	active := int32(len(p.active))
	parallelism := ptr.Deref(j.Spec.Parallelism, 1)
	want := parallelism
	if j.Spec.Completions != nil {
		want = max(0, min(parallelism, *j.Spec.Completions-p.succeeded))
	} else if p.succeeded > 0 {
		want = active // one success is enough: let the others finish
	}
	if p.remove = p.surplus(int(max(0, active-want))); len(p.remove) > 0 {
		p.remove = p.remove[:min(len(p.remove), maxPerPass)]
		return
	}
	n := want - active
	if replaceFailedOnly(j) {
		n -= int32(len(p.terminating))
	}
	if n = min(n, maxPerPass); n <= 0 {
		return
	}
	if j.Spec.BackoffLimitPerIndex == nil {
		if wait := p.record.wait(p.now); wait > 0 {
			p.lookAgain(wait)
			return
		}
	}
	if !indexed(j) {
		p.create = slices.Repeat([]int{noIndex}, int(n))
		return
	}
	taken := p.done.with(p.busyIndexes(p.active)).with(p.failedIndexes)
	if replaceFailedOnly(j) {
		taken = taken.with(p.busyIndexes(p.terminating))
	}
	p.create = taken.missing(int(n), p.completions)
	if j.Spec.BackoffLimitPerIndex != nil {
		p.delayIndexes()
	}
}

// delayIndexes leaves out indexes that still back off; when all do, it says for how long.
func (p *pass) delayIndexes() {
	var least time.Duration
	ready := p.create[:0]
	for _, ix := range p.create {
		var wait time.Duration
		if last := p.delayed[ix]; last != nil {
			wait = record{failures: attempts(last) + 1, last: endedAt(last)}.wait(p.now)
		}
		if wait == 0 {
			ready = append(ready, ix)
		} else if least == 0 || wait < least {
			least = wait
		}
	}
	p.create = ready
	if least > 0 {
		p.lookAgain(least)
	}
}

func (p *pass) lookAgain(d time.Duration) {
	if p.again == 0 || d < p.again {
		p.again = d
	}
}

// surplus are at least n active pods to delete: duplicates of an index first.
func (p *pass) surplus(n int) []*corev1.Pod {
	left := slices.Clone(p.active)
	ownership.SortForDeletion(left, nil, p.now)
	var out []*corev1.Pod
	if indexed(p.job) {
		last := map[int]*corev1.Pod{} // the best pod of each index stays
		for _, pod := range left {
			if p.inRange(pod) {
				last[indexOf(pod)] = pod
			}
		}
		keep := left[:0]
		for _, pod := range left {
			if last[indexOf(pod)] == pod {
				keep = append(keep, pod)
			} else {
				out = append(out, pod)
			}
		}
		left = keep
	}
	if more := n - len(out); more > 0 {
		out = append(out, left[:min(more, len(left))]...)
	}
	return out
}
