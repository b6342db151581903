// Package nodename has the plugin NodeName: a pod that names its node fits only there.
package nodename

import (
	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "NodeName"

var rejected = framework.NewStatus(framework.Unresolvable, Name, "node(s) didn't match the requested node name")

// Plugin is NodeName.
type Plugin struct{}

// Name of the plugin.
func (Plugin) Name() string { return Name }

// PreFilter skips pods that name no node, which is all that reach a scheduler normally.
func (Plugin) PreFilter(c *framework.Cycle) *framework.Status {
	if c.Pod.Spec.NodeName == "" {
		return framework.Skipped
	}
	return nil
}

// Filter compares names.
func (Plugin) Filter(c *framework.Cycle, n *snapshot.Node) *framework.Status {
	if c.Pod.Spec.NodeName == n.Object.Name {
		return nil
	}
	return rejected
}

// Hints: only a new node can have the name.
func (Plugin) Hints() []framework.Hint {
	return []framework.Hint{{Kinds: framework.NodeAdd}}
}
