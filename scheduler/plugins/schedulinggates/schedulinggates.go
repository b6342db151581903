// Package schedulinggates has the plugin SchedulingGates: pods with gates stay out of
// the queue until all are taken away (KEP-3521).
package schedulinggates

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/scheduler/framework"
)

// Name of the plugin in configurations.
const Name = "SchedulingGates"

// Plugin is SchedulingGates.
type Plugin struct{}

// Name of the plugin.
func (Plugin) Name() string { return Name }

// PreEnqueue names the gates that are left.
func (Plugin) PreEnqueue(p *corev1.Pod) *framework.Status {
	if len(p.Spec.SchedulingGates) == 0 {
		return nil
	}
	names := make([]string, len(p.Spec.SchedulingGates))
	for i, g := range p.Spec.SchedulingGates {
		names[i] = g.Name
	}
	return framework.NewStatus(framework.Unresolvable, Name,
		fmt.Sprintf("waiting for scheduling gates: [%s]", strings.Join(names, " ")))
}

// Hints: only the pod's own update helps.
func (Plugin) Hints() []framework.Hint {
	return []framework.Hint{{Kinds: framework.SelfUpdate}}
}
