package statefulset

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// state is what one pass looks at.
type state struct {
	set             *appsv1.StatefulSet
	pods            []*corev1.Pod // claimed
	current, update string        // names of revisions
	collisions      *int32
	now             time.Time
}

// plan is what one pass does: at most one pod at a time under OrderedReady.
type plan struct {
	create []int // ordinals
	remove []*corev1.Pod
	fix    []*corev1.Pod // identity or volumes to be put right
	// condemned are beyond the wanted ordinals.
	condemned []*corev1.Pod
}

func running(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && ownership.Ready(p) }

type pass struct {
	state
	ordered   bool
	byOrdinal map[int]*corev1.Pod
	condemned []*corev1.Pod // highest ordinal first
	plan      plan
}

func (s state) sorted() *pass {
	p := &pass{state: s, ordered: s.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement, byOrdinal: map[int]*corev1.Pod{}}
	first, n := startOrdinal(s.set), replicas(s.set)
	for _, pod := range s.pods {
		_, o := ordinalOf(pod)
		switch {
		case o >= first && o < first+n:
			p.byOrdinal[o] = pod
		case o >= 0:
			p.condemned = append(p.condemned, pod)
		}
	}
	slices.SortFunc(p.condemned, func(a, b *corev1.Pod) int {
		_, x := ordinalOf(a)
		_, y := ordinalOf(b)
		return cmp.Compare(y, x)
	})
	return p
}

func (p *pass) available(pod *corev1.Pod) bool {
	return running(pod) && ownership.AvailableIn(pod, p.set.Spec.MinReadySeconds, p.now) == 0
}

// unavailable pods are missing, not available, or going.
func (p *pass) unavailable(pod *corev1.Pod) bool {
	return pod == nil || !p.available(pod) || pod.DeletionTimestamp != nil
}

// decide makes missing pods in order, then removes those too many from the top, then
// updates, also from the top.
func decide(s state) plan {
	p := s.sorted()
	p.plan.condemned = p.condemned
	if s.set.DeletionTimestamp != nil {
		return p.plan
	}
	if p.fill() && p.shrink() {
		p.renew()
	}
	return p.plan
}

// fill looks at the wanted ordinals from the bottom; false ends the pass.
func (p *pass) fill() bool {
	first := startOrdinal(p.set)
	complete := true
	for o := first; o < first+replicas(p.set); o++ {
		pod := p.byOrdinal[o]
		wait := false
		switch {
		case pod == nil:
			p.plan.create = append(p.plan.create, o)
			wait, complete = true, false
		case ownership.Ended(pod):
			if pod.DeletionTimestamp == nil {
				p.plan.remove = append(p.plan.remove, pod)
			}
			wait, complete = true, false
		case pod.DeletionTimestamp != nil, !p.available(pod):
			wait = true
		}
		if pod != nil && !ownership.Ended(pod) && pod.DeletionTimestamp == nil && (!identified(p.set, pod, o) || !mounted(p.set, pod, o)) {
			p.plan.fix = append(p.plan.fix, pod)
		}
		if wait && p.ordered {
			return false
		}
	}
	return complete
}

func mounted(s *appsv1.StatefulSet, pod *corev1.Pod, ordinal int) bool {
	for i := range s.Spec.VolumeClaimTemplates {
		t := &s.Spec.VolumeClaimTemplates[i]
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == t.Name && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claimName(s, t, ordinal)
		}) {
			return false
		}
	}
	return true
}

// shrink removes condemned pods; false ends the pass.
func (p *pass) shrink() bool {
	if len(p.condemned) == 0 {
		return true
	}
	if !p.ordered {
		for _, pod := range p.condemned {
			if pod.DeletionTimestamp == nil {
				p.plan.remove = append(p.plan.remove, pod)
			}
		}
		return true
	}
	// The first that is not available may go even so; others wait for it.
	var sick *corev1.Pod
	for _, pod := range slices.Backward(p.condemned) {
		if p.unavailable(pod) {
			sick = pod
			break
		}
	}
	pod := p.condemned[0]
	switch {
	case pod.DeletionTimestamp != nil:
	case !p.available(pod) && pod != sick:
	default:
		p.plan.remove = append(p.plan.remove, pod)
	}
	return false
}

// renew replaces pods of old revisions, from the top down to the partition.
func (p *pass) renew() {
	if p.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return
	}
	partition, budget := 0, 1
	if ru := p.set.Spec.UpdateStrategy.RollingUpdate; ru != nil {
		partition = int(ptr.Deref(ru.Partition, 0))
		if ru.MaxUnavailable != nil {
			n, err := intstr.GetScaledValueFromIntOrPercent(ru.MaxUnavailable, replicas(p.set), true)
			if err == nil {
				budget = max(1, n)
			}
		}
	}
	first, n := startOrdinal(p.set), replicas(p.set)
	for o := first; o < first+n; o++ {
		if p.unavailable(p.byOrdinal[o]) {
			budget--
		}
	}
	for i := n - 1; i >= partition; i-- {
		pod := p.byOrdinal[first+i]
		if pod == nil || revisionOf(pod) == p.update || pod.DeletionTimestamp != nil {
			continue
		}
		sick := p.unavailable(pod)
		switch {
		case sick && !p.ordered: // no loss
			p.plan.remove = append(p.plan.remove, pod)
		case budget <= 0:
			if p.ordered {
				return
			}
		default:
			budget--
			p.plan.remove = append(p.plan.remove, pod)
		}
	}
}

// revisionFor is the revision of a new pod: the update's at and above the partition.
func (s state) revisionFor(ordinal int) string {
	if s.current == s.update {
		return s.update
	}
	i := ordinal - startOrdinal(s.set)
	if s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		ru := s.set.Spec.UpdateStrategy.RollingUpdate
		if ru == nil && i < int(s.set.Status.CurrentReplicas) || ru != nil && i < int(ptr.Deref(ru.Partition, 0)) {
			return s.current
		}
		return s.update
	}
	return s.update
}

// statusOf counts pods as they will be after the plan. The duration is when a ready pod
// becomes available next, or 0.
func statusOf(s state, removed []*corev1.Pod) (appsv1.StatefulSetStatus, time.Duration) {
	st := appsv1.StatefulSetStatus{
		ObservedGeneration: s.set.Generation, CurrentRevision: s.current, UpdateRevision: s.update,
		CollisionCount: ptr.To(ptr.Deref(s.collisions, 0)), Conditions: s.set.Status.Conditions,
	}
	p := s.sorted()
	var again time.Duration
	for _, pod := range s.pods {
		if _, o := ordinalOf(pod); o < 0 || pod.Status.Phase == "" {
			continue
		}
		st.Replicas++
		if running(pod) {
			st.ReadyReplicas++
			if in := ownership.AvailableIn(pod, s.set.Spec.MinReadySeconds, s.now); in == 0 {
				st.AvailableReplicas++
			} else if again == 0 || in < again {
				again = in
			}
		}
		if pod.DeletionTimestamp != nil || slices.Contains(removed, pod) {
			continue
		}
		if revisionOf(pod) == s.current {
			st.CurrentReplicas++
		}
		if revisionOf(pod) == s.update {
			st.UpdatedReplicas++
		}
	}
	n := int32(replicas(s.set))
	if len(p.condemned) == 0 && st.UpdatedReplicas == n && st.ReadyReplicas == n && st.Replicas == n &&
		s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		st.CurrentReplicas, st.CurrentRevision = st.UpdatedReplicas, s.update // the update is complete
	}
	return st, again
}
