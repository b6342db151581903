package nodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// monitored are the conditions that say nothing when their kubelet is silent.
var monitored = []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}

// byCondition are the NoSchedule taints that follow from conditions.
var byCondition = []struct {
	condition corev1.NodeConditionType
	status    corev1.ConditionStatus
	key       string
}{
	{corev1.NodeReady, corev1.ConditionFalse, corev1.TaintNodeNotReady},
	{corev1.NodeReady, corev1.ConditionUnknown, corev1.TaintNodeUnreachable},
	{corev1.NodeMemoryPressure, corev1.ConditionTrue, corev1.TaintNodeMemoryPressure},
	{corev1.NodeDiskPressure, corev1.ConditionTrue, corev1.TaintNodeDiskPressure},
	{corev1.NodePIDPressure, corev1.ConditionTrue, corev1.TaintNodePIDPressure},
	{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, corev1.TaintNodeNetworkUnavailable},
}

func condition(n *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// readiness of a node; a missing condition is Unknown.
func readiness(n *corev1.Node) corev1.ConditionStatus {
	if c := condition(n, corev1.NodeReady); c != nil {
		return c.Status
	}
	return corev1.ConditionUnknown
}

// silenced returns a copy of a node's status with the conditions that its silent
// kubelet can no longer vouch for, or nil when they say so already.
func silenced(n *corev1.Node, now time.Time) *corev1.Node {
	// Asked again and again while the node is silent: a copy only when there is news.
	if !slices.ContainsFunc(monitored, func(t corev1.NodeConditionType) bool {
		c := condition(n, t)
		return c == nil || c.Status != corev1.ConditionUnknown
	}) {
		return nil
	}
	next := n.DeepCopy()
	for _, t := range monitored {
		c := condition(next, t)
		switch {
		case c == nil:
			next.Status.Conditions = append(next.Status.Conditions, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: n.CreationTimestamp, LastTransitionTime: metav1.NewTime(now),
			})
		case c.Status != corev1.ConditionUnknown:
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = metav1.NewTime(now)
		}
	}
	return next
}

// taints returns what a node's taints should be: those that conditions call for and no
// other of ours. evict adds the NoExecute one; without it a present one stays as it is.
func taints(n *corev1.Node, evict bool, now time.Time) (want []corev1.Taint, changed bool) {
	ready := readiness(n)
	need := map[corev1.Taint]bool{} // by key and effect
	for _, b := range byCondition {
		c := condition(n, b.condition)
		status := corev1.ConditionStatus("")
		if c != nil {
			status = c.Status
		} else if b.condition == corev1.NodeReady {
			status = corev1.ConditionUnknown
		}
		if status == b.status {
			need[corev1.Taint{Key: b.key, Effect: corev1.TaintEffectNoSchedule}] = true
		}
	}
	if n.Spec.Unschedulable {
		need[corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}] = true
	}
	if key := evictionTaint(ready); key != "" {
		t := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
		// One kind turns into the other without waiting for a turn again.
		if evict || hasNoExecute(n) {
			need[t] = true
		}
	}
	for _, t := range n.Spec.Taints {
		id := corev1.Taint{Key: t.Key, Effect: t.Effect}
		switch {
		case need[id]:
			delete(need, id)
			want = append(want, t)
		case ours(id):
			changed = true
		default:
			want = append(want, t)
		}
	}
	for _, id := range slices.SortedFunc(keys(need), func(a, b corev1.Taint) int {
		return slices.Compare([]string{a.Key, string(a.Effect)}, []string{b.Key, string(b.Effect)})
	}) {
		t := metav1.NewTime(now)
		id.TimeAdded = &t
		want = append(want, id)
		changed = true
	}
	return want, changed
}

func keys(m map[corev1.Taint]bool) func(func(corev1.Taint) bool) {
	return func(yield func(corev1.Taint) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// evictionTaint is the NoExecute taint of an unready node.
func evictionTaint(ready corev1.ConditionStatus) string {
	switch ready {
	case corev1.ConditionFalse:
		return corev1.TaintNodeNotReady
	case corev1.ConditionUnknown:
		return corev1.TaintNodeUnreachable
	}
	return ""
}

func hasNoExecute(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	})
}

// ours are the taints that this controller alone adds and removes.
func ours(t corev1.Taint) bool {
	if t.Effect == corev1.TaintEffectNoExecute {
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	}
	return t.Effect == corev1.TaintEffectNoSchedule && (t.Key == corev1.TaintNodeUnschedulable ||
		slices.ContainsFunc(byCondition, func(b struct {
			condition corev1.NodeConditionType
			status    corev1.ConditionStatus
			key       string
		}) bool {
			return b.key == t.Key
		}))
}

// Eviction rates, nodes per second, as upstream's defaults.
const (
	evictionRate          = 0.1
	secondaryEvictionRate = 0.01
	unhealthyThreshold    = 0.55
	largeCluster          = 50
)

// zoneCount is how the nodes of a zone fare.
type zoneCount struct{ ready, notReady int }

func (z zoneCount) full() bool { return z.ready == 0 && z.notReady > 0 }
func (z zoneCount) partial() bool {
	return z.notReady > 2 && float64(z.notReady)/float64(z.ready+z.notReady) >= unhealthyThreshold
}

// rate is how many nodes a second may be emptied in a zone. When all zones are down, it is
// most likely our own connection, and nothing is.
func rate(z zoneCount, allDown bool) float64 {
	switch {
	case allDown && z.ready+z.notReady > 1:
		return 0
	case z.full():
		return evictionRate
	case z.partial():
		if z.ready+z.notReady > largeCluster {
			return secondaryEvictionRate
		}
		return 0
	}
	return evictionRate
}
