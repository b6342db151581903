package job

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// New pods wait after a failure: firstBackoff, doubled with each, up to maxBackoff.
const (
	firstBackoff = 10 * time.Second
	maxBackoff   = 10 * time.Minute
)

// record is a Job's failures since its last success. It lives in memory: after a
// restart the waits begin anew.
type record struct {
	failures int
	last     time.Time
}

// after adds pods that ended since.
func (r record) after(succeeded, failed []*corev1.Pod) record {
	if len(succeeded) > 0 {
		r = record{}
	}
	var lastSuccess time.Time
	for _, p := range succeeded {
		if t := endedAt(p); t.After(lastSuccess) {
			lastSuccess = t
		}
	}
	for _, p := range failed {
		t := endedAt(p)
		if len(succeeded) > 0 && !t.After(lastSuccess) {
			continue
		}
		r.failures++
		if t.After(r.last) {
			r.last = t
		}
	}
	return r
}

// wait is how long no pod may be made.
func (r record) wait(now time.Time) time.Duration {
	if r.failures == 0 {
		return 0
	}
	d := maxBackoff
	if r.failures <= 7 { // 10 s << 6 exceeds 10 min
		d = min(firstBackoff<<(r.failures-1), maxBackoff)
	}
	return max(0, d-now.Sub(r.last))
}

// endedAt is when a pod ended, by the best evidence there is.
func endedAt(p *corev1.Pod) time.Time {
	if t := containersEndedAt(p); !t.IsZero() {
		return t
	}
	if c := ownership.ReadyCondition(p); c != nil && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if p.DeletionTimestamp != nil {
		return p.DeletionTimestamp.Add(-time.Duration(ptr.Deref(p.DeletionGracePeriodSeconds, 0)) * time.Second)
	}
	return p.CreationTimestamp.Time
}

// containersEndedAt is zero unless all have ended; sidecars end after the others.
func containersEndedAt(p *corev1.Pod) time.Time {
	var last time.Time
	note := func(s *corev1.ContainerStatus) bool {
		t := s.State.Terminated
		if t == nil || t.FinishedAt.IsZero() {
			return false
		}
		if t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
		return true
	}
	for i := range p.Status.ContainerStatuses {
		if !note(&p.Status.ContainerStatuses[i]) {
			return time.Time{}
		}
	}
	for i := range p.Status.InitContainerStatuses {
		s := &p.Status.InitContainerStatuses[i]
		sidecar := slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == s.Name && podfit.Restartable(&c) })
		if sidecar && !note(s) {
			return time.Time{}
		}
	}
	return last
}
