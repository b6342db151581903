package job

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// done is what came of a pass's creations and deletions.
type done struct {
	created int
	removed []*corev1.Pod
}

// account makes the status after a pass, and says which pods to release.
//
// Pods are counted exactly once, through crashes (KEP-2307): their uids are written to
// status.uncountedTerminatedPods first, then their finalizers are removed, then (settle)
// they move to the counters.
func (p *pass) account(d done) (next *batchv1.Job, release []*corev1.Pod, suspendEvent string) {
	next = p.job.DeepCopy()
	st := &next.Status
	if st.UncountedTerminatedPods == nil {
		st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if st.StartTime == nil && !suspended(next) {
		st.StartTime = ptr.To(metav1.NewTime(p.now))
	}
	active := int32(len(p.active) - len(d.removed) + d.created)
	var ready int32
	for _, pod := range p.active {
		if ownership.Ready(pod) && !slices.Contains(d.removed, pod) {
			ready++
		}
	}
	st.Active, st.Ready = active, ptr.To(ready)
	st.Terminating = ptr.To(int32(len(p.terminating) + len(d.removed)))

	if p.ending != nil && !p.managed && (len(d.removed) != len(p.active) || !p.met) {
		p.ending = nil // pods may be left that the cache does not show
	} else if p.ending == nil {
		if p.complete(active) {
			p.ends(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
		} else if p.managed {
			suspendEvent = p.suspension(st)
		}
	}
	release = p.uncount(st)
	if p.ending != nil && condition(next, p.ending.Type) == nil {
		st.Conditions = append(st.Conditions, *p.ending)
	}
	return next, release, suspendEvent
}

func (p *pass) complete(active int32) bool {
	if active > 0 {
		return false
	}
	if p.job.Spec.Completions == nil {
		return p.succeeded > 0
	}
	return p.succeeded >= *p.job.Spec.Completions
}

// suspension keeps the condition Suspended and returns the event's reason if it turned.
func (p *pass) suspension(st *batchv1.JobStatus) string {
	i := slices.IndexFunc(st.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobSuspended })
	set := func(c batchv1.JobCondition) {
		if i < 0 {
			st.Conditions = append(st.Conditions, c)
		} else {
			st.Conditions[i] = c
		}
	}
	if suspended(p.job) {
		if i >= 0 && st.Conditions[i].Status == corev1.ConditionTrue {
			return ""
		}
		set(newCondition(batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended", p.now))
		st.StartTime = nil
		return "Suspended"
	}
	if i < 0 || st.Conditions[i].Status == corev1.ConditionFalse {
		return ""
	}
	set(newCondition(batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed", p.now))
	st.StartTime = ptr.To(metav1.NewTime(p.now)) // the deadline counts from now
	return "Resumed"
}

// uncount notes ended pods in the status and returns those whose finalizer may go then.
func (p *pass) uncount(st *batchv1.JobStatus) (release []*corev1.Pod) {
	settle(st, p.withFinalizer())
	u := st.UncountedTerminatedPods
	var fresh indexes
	pods := slices.Clone(p.pods)
	if indexed(p.job) {
		slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return indexOf(a) - indexOf(b) })
	}
	n := 0
	for _, pod := range pods {
		if !tracked(pod) || p.released(pod.UID) {
			continue
		}
		bad := failed(p.job, pod)
		if !p.mayRelease(pod, bad) {
			continue
		}
		release = append(release, pod)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && !p.uncountedFailed[pod.UID]:
			if indexed(p.job) {
				if p.inRange(pod) && !p.doneBefore.has(indexOf(pod)) {
					fresh = append(fresh, span{indexOf(pod), indexOf(pod)})
					n++
				}
			} else if !p.uncountedDone[pod.UID] {
				u.Succeeded = append(u.Succeeded, pod.UID)
			}
		case bad || p.ending != nil && p.ending.Type == batchv1.JobFailureTarget:
			// When the Job has failed, what still ran counts as failed.
			if p.inRange(pod) && !p.uncountedFailed[pod.UID] && judge(p.job.Spec.PodFailurePolicy, pod).counts() {
				u.Failed = append(u.Failed, pod.UID)
			}
		}
		if n+len(u.Succeeded)+len(u.Failed) >= maxUncounted {
			break // the status stays small; the rest comes in the next pass
		}
	}
	if indexed(p.job) {
		counted := p.doneBefore.with(fresh)
		st.Succeeded = int32(counted.total())
		st.CompletedIndexes = counted.String()
		st.FailedIndexes = nil
		if p.job.Spec.BackoffLimitPerIndex != nil {
			st.FailedIndexes = ptr.To(p.failedIndexes.String())
		}
	}
	return release
}

func (p *pass) mayRelease(pod *corev1.Pod, bad bool) bool {
	if p.job.DeletionTimestamp != nil || p.ending != nil || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	// A failed pod carries its index's failure count until its replacement does.
	return bad && p.delayed[indexOf(pod)] != pod
}

func (p *pass) withFinalizer() map[types.UID]bool {
	set := map[types.UID]bool{}
	for _, pod := range p.pods {
		if tracked(pod) && !p.released(pod.UID) {
			set[pod.UID] = true
		}
	}
	return set
}

// settle moves pods that have lost their finalizer to the counters.
func settle(st *batchv1.JobStatus, withFinalizer map[types.UID]bool) {
	move := func(uids []types.UID, counter *int32) []types.UID {
		var left []types.UID
		for _, uid := range uids {
			if withFinalizer[uid] {
				left = append(left, uid)
			} else {
				*counter++
			}
		}
		return left
	}
	u := st.UncountedTerminatedPods
	u.Succeeded = move(u.Succeeded, &st.Succeeded)
	u.Failed = move(u.Failed, &st.Failed)
}

// finish ends the Job if nothing of it is left to count or to stop.
func (p *pass) finish(next *batchv1.Job, all bool) *batchv1.JobCondition {
	st := &next.Status
	u := st.UncountedTerminatedPods
	if p.ending == nil || !all || len(u.Succeeded)+len(u.Failed) > 0 || ptr.Deref(st.Terminating, 0) > 0 {
		return nil
	}
	t := batchv1.JobFailed
	if p.ending.Type == batchv1.JobSuccessCriteriaMet {
		t = batchv1.JobComplete
	}
	c := newCondition(t, corev1.ConditionTrue, p.ending.Reason, p.ending.Message, p.now)
	st.Conditions = append(st.Conditions, c)
	if t == batchv1.JobComplete {
		st.CompletionTime = ptr.To(c.LastTransitionTime)
	}
	return &c
}

// same compares two statuses; a missing uncountedTerminatedPods is an empty one.
func same(a, b *batchv1.JobStatus) bool {
	x, y := a.DeepCopy(), b.DeepCopy()
	for _, s := range []*batchv1.JobStatus{x, y} {
		if s.UncountedTerminatedPods == nil {
			s.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
		}
	}
	return equality.Semantic.DeepEqual(x, y)
}
