// Package tainttoleration has the plugin TaintToleration: taints keep pods off nodes or,
// with effect PreferNoSchedule, make nodes less liked.
package tainttoleration

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "TaintToleration"

var rejected = framework.NewStatus(framework.Unresolvable, Name, "node(s) had untolerated taint(s)")

// Plugin is TaintToleration.
type Plugin struct{}

// Name of the plugin.
func (Plugin) Name() string { return Name }

// Filter looks for a taint NoSchedule or NoExecute that the pod does not tolerate.
func (Plugin) Filter(c *framework.Cycle, n *snapshot.Node) *framework.Status {
	for i := range n.HardTaints {
		if !podfit.Tolerated(c.Pod.Spec.Tolerations, &n.HardTaints[i]) {
			return rejected
		}
	}
	return nil
}

// PreScore skips when no node has a taint that matters.
func (Plugin) PreScore(_ *framework.Cycle, nodes []*snapshot.Node) *framework.Status {
	for _, n := range nodes {
		if len(n.SoftTaints) > 0 {
			return nil
		}
	}
	return framework.Skipped
}

// Score counts soft taints that the pod does not tolerate.
func (Plugin) Score(c *framework.Cycle, n *snapshot.Node) int64 {
	var count int64
	for i := range n.SoftTaints {
		if !tolerated(c.Pod.Spec.Tolerations, &n.SoftTaints[i]) {
			count++
		}
	}
	return count
}

func tolerated(all []corev1.Toleration, taint *corev1.Taint) bool {
	return podfit.Tolerated(all, taint)
}

// Normalize turns the most taints into the least score.
func (Plugin) Normalize(_ *framework.Cycle, _ []*snapshot.Node, scores []int64) {
	framework.NormalizeDefault(scores, true)
}

// Hints: a taint went, a node came, or the pod tolerates more.
func (Plugin) Hints() []framework.Hint {
	hard := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute}
	return []framework.Hint{
		{Kinds: framework.NodeAdd | framework.NodeTaint, Worth: func(p *snapshot.Pod, e framework.Event) bool {
			return podfit.Untolerated(e.Node.Spec.Taints, p.Spec.Tolerations, hard...) == nil &&
				(e.OldNode == nil || podfit.Untolerated(e.OldNode.Spec.Taints, p.Spec.Tolerations, hard...) != nil)
		}},
		{Kinds: framework.SelfUpdate},
	}
}
