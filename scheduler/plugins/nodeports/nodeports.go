// Package nodeports has the plugin NodePorts: a pod's host ports must be free.
package nodeports

import (
	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "NodePorts"

var rejected = framework.NewStatus(framework.Unschedulable, Name, "node(s) didn't have free ports for the requested pod ports")

// Plugin is NodePorts.
type Plugin struct{}

// Name of the plugin.
func (Plugin) Name() string { return Name }

// PreFilter skips pods without host ports.
func (Plugin) PreFilter(c *framework.Cycle) *framework.Status {
	if len(c.Pod.Ports) == 0 {
		return framework.Skipped
	}
	return nil
}

// Filter looks for a conflict with the node's ports in use.
func (Plugin) Filter(c *framework.Cycle, n *snapshot.Node) *framework.Status {
	if conflict(c.Pod.Ports, n.Ports) {
		return rejected
	}
	return nil
}

func conflict(want, used []podfit.HostPort) bool {
	for _, w := range want {
		for _, u := range used {
			if w.Conflicts(u) {
				return true
			}
		}
	}
	return false
}

// Hints: a port is freed by the pod that has it, or a node comes.
func (Plugin) Hints() []framework.Hint {
	return []framework.Hint{
		{Kinds: framework.NodeAdd},
		{Kinds: framework.PodDelete, Worth: func(p *snapshot.Pod, e framework.Event) bool {
			return conflict(p.Ports, e.Pod.Ports)
		}},
	}
}
