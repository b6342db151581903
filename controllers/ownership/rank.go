package ownership

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Active pods neither ended nor are being deleted.
func Active(p *corev1.Pod) bool {
	return !Ended(p) && p.DeletionTimestamp == nil
}

// Ended pods will never run again.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Terminating pods are being deleted and may still run.
func Terminating(p *corev1.Pod) bool { return !Ended(p) && p.DeletionTimestamp != nil }

// ReadyCondition returns the pod's Ready condition or nil.
func ReadyCondition(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.PodReady {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// Ready reports whether the pod's Ready condition is True.
func Ready(p *corev1.Pod) bool {
	c := ReadyCondition(p)
	return c != nil && c.Status == corev1.ConditionTrue
}

// AvailableIn returns how long a pod must stay ready to have been so for minReady
// seconds: 0 when it is available, negative when it is not ready.
func AvailableIn(p *corev1.Pod, minReady int32, now time.Time) time.Duration {
	c := ReadyCondition(p)
	if c == nil || c.Status != corev1.ConditionTrue {
		return -1
	}
	if minReady == 0 {
		return 0
	}
	if c.LastTransitionTime.IsZero() {
		return -1
	}
	return max(0, c.LastTransitionTime.Add(time.Duration(minReady)*time.Second).Sub(now))
}

// SortForDeletion orders pods so that the first are the best to delete, by upstream's
// rules: unassigned, pending, unready, cheap by annotation, crowded on their node (by
// together, the number of related pods there), ready for a short time, restarted often, young.
func SortForDeletion(pods []*corev1.Pod, together map[string]int, now time.Time) {
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		ra, rb := Ready(a), Ready(b)
		order := []int{
			boolFirst(a.Spec.NodeName == "", b.Spec.NodeName == ""),
			cmp.Compare(phaseOrder(a), phaseOrder(b)),
			boolFirst(!ra, !rb),
			cmp.Compare(deletionCost(a), deletionCost(b)),
			cmp.Compare(together[b.Spec.NodeName], together[a.Spec.NodeName]),
		}
		if ra && rb {
			order = append(order, compareAge(ReadyCondition(a).LastTransitionTime.Time, ReadyCondition(b).LastTransitionTime.Time, a, b, now))
		}
		regularA, sidecarA := restarts(a)
		regularB, sidecarB := restarts(b)
		order = append(order,
			cmp.Compare(regularB, regularA),
			cmp.Compare(sidecarB, sidecarA),
			compareAge(a.CreationTimestamp.Time, b.CreationTimestamp.Time, a, b, now))
		return cmp.Or(order...)
	})
}

func boolFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func phaseOrder(p *corev1.Pod) int {
	switch p.Status.Phase {
	case corev1.PodRunning:
		return 2
	case corev1.PodUnknown:
		return 1
	}
	return 0
}

// deletionCost reads controller.kubernetes.io/pod-deletion-cost; nonsense costs 0.
func deletionCost(p *corev1.Pod) int32 {
	v := p.Annotations[corev1.PodDeletionCost]
	if v == "" || v[0] == '+' || v[0] == '0' && v != "0" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// compareAge puts the younger first, on a logarithmic scale so that similar ages are
// decided by uid, that is: randomly (KEP-2185). A missing time counts as youngest.
func compareAge(ta, tb time.Time, a, b *corev1.Pod, now time.Time) int {
	if ta.Equal(tb) {
		return 0
	}
	if ta.IsZero() || tb.IsZero() {
		return boolFirst(ta.IsZero(), tb.IsZero())
	}
	return cmp.Or(cmp.Compare(logAge(ta, now), logAge(tb, now)), cmp.Compare(a.UID, b.UID))
}

func logAge(t, now time.Time) int64 {
	d := now.Sub(t)
	if d <= 0 {
		return -1
	}
	return int64(math.Log2(float64(d)))
}

// restarts returns the greatest restart counts of regular and of sidecar containers.
func restarts(p *corev1.Pod) (regular, sidecar int32) {
	for i := range p.Status.ContainerStatuses {
		regular = max(regular, p.Status.ContainerStatuses[i].RestartCount)
	}
	for i := range p.Status.InitContainerStatuses {
		s := &p.Status.InitContainerStatuses[i]
		for j := range p.Spec.InitContainers {
			c := &p.Spec.InitContainers[j]
			if c.Name == s.Name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				sidecar = max(sidecar, s.RestartCount)
			}
		}
	}
	return regular, sidecar
}
