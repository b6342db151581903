package noderesources

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// BalancedName is the plugin's name in configurations.
const BalancedName = "NodeResourcesBalancedAllocation"

// Balanced prefers nodes whose CPU and memory the pod would use evenly.
type Balanced struct {
	resources []Weighted
}

// NewBalanced makes the plugin for the given resources; nil: CPU and memory.
func NewBalanced(resources []Weighted) *Balanced {
	if len(resources) == 0 {
		resources = defaultResources
	}
	return &Balanced{resources}
}

// Name of the plugin.
func (*Balanced) Name() string { return BalancedName }

// PreScore skips pods that ask for nothing: they balance nothing, and would all go to
// the same node.
func (b *Balanced) PreScore(c *framework.Cycle, _ []*snapshot.Node) *framework.Status {
	for _, r := range b.resources {
		if c.Pod.Requests.Get(r.Name) != 0 {
			return nil
		}
	}
	return framework.Skipped
}

// Score is how much evener the node's use gets, 75 for no change.
func (b *Balanced) Score(c *framework.Cycle, n *snapshot.Node) int64 {
	const half = framework.MaxScore / 2
	if len(b.resources) == 2 && b.resources[0].Name == corev1.ResourceCPU && b.resources[1].Name == corev1.ResourceMemory {
		a, r, p := &n.Allocatable, &n.Requested, &c.Pod.Requests
		if a.MilliCPU == 0 || a.Memory == 0 {
			return half + half/2 // one resource is always even
		}
		with := even2(r.MilliCPU+p.MilliCPU, a.MilliCPU, r.Memory+p.Memory, a.Memory)
		without := even2(r.MilliCPU, a.MilliCPU, r.Memory, a.Memory)
		return half + (half+with-without)/2
	}
	return half + (half+b.even(n, &c.Pod.Requests)-b.even(n, &snapshot.Resources{}))/2
}

func fraction(used, have int64) float64 {
	return min(float64(used)/float64(have), 1)
}

// even2 is 100 for equal fractions; the standard deviation of two is half their distance.
func even2(u1, a1, u2, a2 int64) int64 {
	std := math.Abs(fraction(u1, a1)-fraction(u2, a2)) / 2
	return int64((1 - std) * float64(framework.MaxScore))
}

func (b *Balanced) even(n *snapshot.Node, asked *snapshot.Resources) int64 {
	var buf [8]float64
	fractions := buf[:0]
	var total float64
	for _, r := range b.resources {
		have := n.Allocatable.Get(r.Name)
		if have == 0 {
			continue
		}
		f := fraction(n.Requested.Get(r.Name)+asked.Get(r.Name), have)
		fractions = append(fractions, f)
		total += f
	}
	std := 0.0
	if k := float64(len(fractions)); k > 1 {
		for _, f := range fractions {
			std += (f - total/k) * (f - total/k)
		}
		std = math.Sqrt(std / k)
	}
	return int64((1 - std) * float64(framework.MaxScore))
}
