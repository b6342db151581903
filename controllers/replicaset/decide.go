package replicaset

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// burst bounds how many pods one pass creates or deletes, as upstream's.
const burst = 500

// state is what one pass looks at.
type state struct {
	set *set
	// active are claimed; related are active pods of all sets with the same controller
	// (so that a Deployment's pods spread over nodes when some are deleted).
	active, terminating, related []*corev1.Pod
	now                          time.Time
}

// plan is what one pass does.
type plan struct {
	create int
	remove []*corev1.Pod
}

// decide compares the pods there are with those wanted.
func decide(s state) plan {
	if s.set.obj.GetDeletionTimestamp() != nil {
		return plan{} // its pods are the garbage collector's
	}
	diff := len(s.active) - int(s.set.replicas)
	if diff <= 0 {
		return plan{create: min(-diff, burst)}
	}
	pods := slices.Clone(s.active)
	if diff < len(pods) {
		together := map[string]int{}
		for _, p := range s.related {
			together[p.Spec.NodeName]++
		}
		ownership.SortForDeletion(pods, together, s.now)
	}
	return plan{remove: pods[:min(diff, burst)]}
}

// statusOf counts the pods; failed is the error of creating or deleting some. The second
// result is when a ready pod becomes available next, 0 for never.
func statusOf(s state, failed error, countTerminating bool) (appsv1.ReplicaSetStatus, time.Duration) {
	status := appsv1.ReplicaSetStatus{
		Replicas:           int32(len(s.active)),
		ObservedGeneration: s.set.obj.GetGeneration(),
		Conditions:         slices.Clone(s.set.status.Conditions),
	}
	if countTerminating {
		status.TerminatingReplicas = ptr.To(int32(len(s.terminating)))
	}
	var again time.Duration
	full := labels.SelectorFromSet(s.set.template.Labels)
	for _, p := range s.active {
		if full.Matches(labels.Set(p.Labels)) {
			status.FullyLabeledReplicas++
		}
		if !ownership.Ready(p) {
			continue
		}
		status.ReadyReplicas++
		switch in := ownership.AvailableIn(p, s.set.minReady, s.now); {
		case in == 0:
			status.AvailableReplicas++
		case in > 0 && (again == 0 || in < again):
			again = in
		}
	}

	i := slices.IndexFunc(status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure
	})
	switch {
	case failed != nil && i < 0:
		reason := "FailedCreate"
		if len(s.active) > int(s.set.replicas) {
			reason = "FailedDelete"
		}
		status.Conditions = append(status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(s.now), Reason: reason, Message: failed.Error(),
		})
	case failed == nil && i >= 0:
		status.Conditions = slices.Delete(status.Conditions, i, i+1)
	}
	return status, again
}
