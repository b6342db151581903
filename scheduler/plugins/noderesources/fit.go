// Package noderesources has the plugins that compare what pods request with what nodes
// have left: NodeResourcesFit and NodeResourcesBalancedAllocation.
package noderesources

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// FitName is the plugin's name in configurations.
const FitName = "NodeResourcesFit"

// Weighted is a resource and its weight in a score.
type Weighted struct {
	Name   corev1.ResourceName
	Weight int64
}

// DefaultResources weigh CPU and memory alike.
var defaultResources = []Weighted{{corev1.ResourceCPU, 1}, {corev1.ResourceMemory, 1}}

// FitArgs configure Fit; the zero value is upstream's default.
type FitArgs struct {
	// Ignored resources and groups ("example.com") are not counted.
	Ignored, IgnoredGroups []string
	Resources              []Weighted
	// MostAllocated packs nodes instead of spreading over them.
	MostAllocated bool
}

// Fit keeps pods off nodes that have too little left, and prefers those with most left.
type Fit struct {
	args    FitArgs
	onlyCPU bool // the default resources: the fast path

	mu       sync.Mutex
	statuses map[string]*framework.Status // by reasons, so that each is made once
}

// NewFit makes the plugin.
func NewFit(args FitArgs) *Fit {
	f := &Fit{args: args, statuses: map[string]*framework.Status{}}
	if len(f.args.Resources) == 0 {
		f.args.Resources = defaultResources
		f.onlyCPU = true
	}
	return f
}

// Name of the plugin.
func (*Fit) Name() string { return FitName }

func (f *Fit) ignored(name corev1.ResourceName) bool {
	if len(f.args.Ignored) == 0 && len(f.args.IgnoredGroups) == 0 {
		return false
	}
	group, _, _ := strings.Cut(string(name), "/")
	return slices.Contains(f.args.Ignored, string(name)) || slices.Contains(f.args.IgnoredGroups, group)
}

// Filter compares each amount; all that is missing is named.
func (f *Fit) Filter(c *framework.Cycle, n *snapshot.Node) *framework.Status {
	r := &c.Pod.Requests
	pods := len(n.Pods)+1 > n.AllowedPods
	cpu := r.MilliCPU > 0 && r.MilliCPU > n.Allocatable.MilliCPU-n.Requested.MilliCPU
	mem := r.Memory > 0 && r.Memory > n.Allocatable.Memory-n.Requested.Memory
	eph := r.EphemeralStorage > 0 && r.EphemeralStorage > n.Allocatable.EphemeralStorage-n.Requested.EphemeralStorage
	scalar := false
	for i := range r.Scalars {
		s := &r.Scalars[i]
		if s.Value > 0 && s.Value > n.Allocatable.Scalar(s.Name)-n.Requested.Scalar(s.Name) && !f.ignored(s.Name) {
			scalar = true
			break
		}
	}
	if !(pods || cpu || mem || eph || scalar) {
		return nil
	}
	return f.insufficient(r, n, pods, cpu, mem, eph)
}

// insufficient names what is missing. Preemption cannot help where even an empty node has
// too little.
func (f *Fit) insufficient(r *snapshot.Resources, n *snapshot.Node, pods, cpu, mem, eph bool) *framework.Status {
	var reasons []string
	code := framework.Unschedulable
	lack := func(reason string, want, have int64) {
		reasons = append(reasons, reason)
		if want > have {
			code = framework.Unresolvable
		}
	}
	if pods {
		lack("Too many pods", 1, int64(n.AllowedPods))
	}
	if cpu {
		lack("Insufficient cpu", r.MilliCPU, n.Allocatable.MilliCPU)
	}
	if mem {
		lack("Insufficient memory", r.Memory, n.Allocatable.Memory)
	}
	if eph {
		lack("Insufficient ephemeral-storage", r.EphemeralStorage, n.Allocatable.EphemeralStorage)
	}
	for i := range r.Scalars {
		s := &r.Scalars[i]
		have := n.Allocatable.Scalar(s.Name)
		if s.Value > 0 && s.Value > have-n.Requested.Scalar(s.Name) && !f.ignored(s.Name) {
			lack("Insufficient "+string(s.Name), s.Value, have)
		}
	}
	key := strings.Join(reasons, "\x00")
	if code == framework.Unresolvable {
		key += "!"
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.statuses[key]
	if st == nil {
		st = framework.NewStatus(code, FitName, reasons...)
		f.statuses[key] = st
	}
	return st
}

// Score prefers the node with the greatest (or, packing, least) share left over.
func (f *Fit) Score(c *framework.Cycle, n *snapshot.Node) int64 {
	if f.onlyCPU && !f.args.MostAllocated {
		return leastAllocated2(c.Pod, n)
	}
	var sum, weights int64
	for _, r := range f.args.Resources {
		allocatable, requested, asked := amounts(r.Name, c.Pod, n)
		if allocatable == 0 || asked == 0 && isScalar(r.Name) {
			continue
		}
		want := requested + asked
		var score int64
		switch {
		case f.args.MostAllocated:
			score = min(want, allocatable) * framework.MaxScore / allocatable
		case want <= allocatable:
			score = (allocatable - want) * framework.MaxScore / allocatable
		}
		sum += score * r.Weight
		weights += r.Weight
	}
	if weights == 0 {
		return 0
	}
	return sum / weights
}

// leastAllocated2 is the default: CPU and memory, equal weights.
func leastAllocated2(p *snapshot.Pod, n *snapshot.Node) int64 {
	var sum, weights int64
	if have := n.Allocatable.MilliCPU; have > 0 {
		weights++
		if left := have - n.NonzeroCPU - p.NonzeroCPU; left > 0 {
			sum += left * framework.MaxScore / have
		}
	}
	if have := n.Allocatable.Memory; have > 0 {
		weights++
		if left := have - n.NonzeroMemory - p.NonzeroMemory; left > 0 {
			sum += left * framework.MaxScore / have
		}
	}
	if weights == 0 {
		return 0
	}
	return sum / weights
}

func isScalar(name corev1.ResourceName) bool {
	return name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage
}

// amounts of one resource as Fit scores them: CPU and memory with defaults for
// containers that name none.
func amounts(name corev1.ResourceName, p *snapshot.Pod, n *snapshot.Node) (allocatable, requested, asked int64) {
	switch name {
	case corev1.ResourceCPU:
		return n.Allocatable.MilliCPU, n.NonzeroCPU, p.NonzeroCPU
	case corev1.ResourceMemory:
		return n.Allocatable.Memory, n.NonzeroMemory, p.NonzeroMemory
	}
	return n.Allocatable.Get(name), n.Requested.Get(name), p.Requests.Get(name)
}

// Hints: room appears when a pod goes or shrinks, or a node comes or grows.
func (f *Fit) Hints() []framework.Hint {
	return []framework.Hint{
		{Kinds: framework.PodDelete | framework.PodUpdate},
		{Kinds: framework.SelfUpdate},
		{Kinds: framework.NodeAdd | framework.NodeAllocatable, Worth: func(p *snapshot.Pod, e framework.Event) bool {
			have := snapshot.ResourcesOf(e.Node.Status.Allocatable)
			if !fitsEmpty(&p.Requests, &have, f) || e.Node.Status.Allocatable.Pods().Value() == 0 {
				return false
			}
			return e.OldNode == nil || grown(&p.Requests, e.OldNode, e.Node)
		}},
	}
}

func fitsEmpty(r, have *snapshot.Resources, f *Fit) bool {
	if r.MilliCPU > have.MilliCPU || r.Memory > have.Memory || r.EphemeralStorage > have.EphemeralStorage {
		return false
	}
	for i := range r.Scalars {
		if s := &r.Scalars[i]; s.Value > have.Scalar(s.Name) && !f.ignored(s.Name) {
			return false
		}
	}
	return true
}

func grown(r *snapshot.Resources, old, now *corev1.Node) bool {
	a, b := snapshot.ResourcesOf(old.Status.Allocatable), snapshot.ResourcesOf(now.Status.Allocatable)
	if now.Status.Allocatable.Pods().Cmp(*old.Status.Allocatable.Pods()) > 0 ||
		r.MilliCPU > 0 && b.MilliCPU > a.MilliCPU || r.Memory > 0 && b.Memory > a.Memory ||
		r.EphemeralStorage > 0 && b.EphemeralStorage > a.EphemeralStorage {
		return true
	}
	for i := range r.Scalars {
		if name := r.Scalars[i].Name; b.Scalar(name) > a.Scalar(name) {
			return true
		}
	}
	return false
}
