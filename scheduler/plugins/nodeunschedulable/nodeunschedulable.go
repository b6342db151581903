// Package nodeunschedulable has the plugin NodeUnschedulable: cordoned nodes take only
// pods that tolerate it.
package nodeunschedulable

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "NodeUnschedulable"

var (
	rejected = framework.NewStatus(framework.Unresolvable, Name, "node(s) were unschedulable")
	taint    = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
)

// Plugin is NodeUnschedulable.
type Plugin struct{}

// Name of the plugin.
func (Plugin) Name() string { return Name }

// Filter looks at spec.unschedulable.
func (Plugin) Filter(c *framework.Cycle, n *snapshot.Node) *framework.Status {
	if !n.Object.Spec.Unschedulable || podfit.Tolerated(c.Pod.Spec.Tolerations, &taint) {
		return nil
	}
	return rejected
}

// Hints: a node that is not cordoned, or a new toleration.
func (Plugin) Hints() []framework.Hint {
	return []framework.Hint{
		{Kinds: framework.NodeAdd | framework.NodeTaint, Worth: func(_ *snapshot.Pod, e framework.Event) bool {
			return !e.Node.Spec.Unschedulable && (e.OldNode == nil || e.OldNode.Spec.Unschedulable)
		}},
		{Kinds: framework.SelfUpdate},
	}
}
