// Package podtopologyspread has the plugin PodTopologySpread: pods are spread over
// topology domains by spec.topologySpreadConstraints and, for those of Services and
// controllers that have none, by the cluster's default constraints.
package podtopologyspread

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "PodTopologySpread"

var (
	skewed  = framework.NewStatus(framework.Unschedulable, Name, "node(s) didn't match pod topology spread constraints")
	noLabel = framework.NewStatus(framework.Unresolvable, Name, "node(s) didn't match pod topology spread constraints (missing required label)")
)

// Plugin is PodTopologySpread.
type Plugin struct {
	// group returns the selector of the pods that belong together with p by Services and
	// its controller, or nil.
	group func(p *corev1.Pod) labels.Selector
}

// New makes the plugin.
func New(group func(p *corev1.Pod) labels.Selector) *Plugin { return &Plugin{group: group} }

// Name of the plugin.
func (*Plugin) Name() string { return Name }

// constraint is a compiled constraint.
type constraint struct {
	key        string
	maxSkew    int
	minDomains int
	selector   labels.Selector
	affinity   bool // count only nodes that the pod's node affinity allows
	taints     bool // count only nodes whose taints it tolerates
}

func compile(p *snapshot.Pod, when corev1.UnsatisfiableConstraintAction) []constraint {
	var out []constraint
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		if c.WhenUnsatisfiable != when {
			continue
		}
		sel, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
		if err != nil {
			sel = labels.Nothing()
		}
		for _, k := range c.MatchLabelKeys {
			if v, ok := p.Labels[k]; ok {
				if r, err := labels.NewRequirement(k, selection.In, []string{v}); err == nil {
					sel = sel.Add(*r)
				}
			}
		}
		k := constraint{key: c.TopologyKey, maxSkew: int(c.MaxSkew), minDomains: 1, selector: sel, affinity: true}
		if c.MinDomains != nil {
			k.minDomains = int(*c.MinDomains)
		}
		if c.NodeAffinityPolicy != nil {
			k.affinity = *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor
		}
		if c.NodeTaintsPolicy != nil {
			k.taints = *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
		}
		out = append(out, k)
	}
	return out
}

// counted reports whether a node's pods count for the constraint.
func (k *constraint) counted(p *snapshot.Pod, n *snapshot.Node) bool {
	if k.affinity && !podfit.MatchesNode(&p.Spec, n.Object) {
		return false
	}
	if k.taints {
		for i := range n.HardTaints {
			if !podfit.Tolerated(p.Spec.Tolerations, &n.HardTaints[i]) {
				return false
			}
		}
	}
	return true
}

func (k *constraint) selects(p, q *snapshot.Pod) bool {
	return q.DeletionTimestamp == nil && q.Namespace == p.Namespace && k.selector.Matches(labels.Set(q.Labels))
}

func (k *constraint) countOn(p *snapshot.Pod, n *snapshot.Node) int {
	if k.selector.Empty() {
		return 0 // an absent selector counts nothing
	}
	count := 0
	for _, q := range n.Pods {
		if k.selects(p, q) {
			count++
		}
	}
	return count
}

type filterKey struct{}

// filterState is how many pods each domain has, per constraint.
type filterState struct {
	constraints []constraint
	domains     []map[string]int
	least       []int // -1: to be found
	self        []int // 1 when the pod counts itself
}

// PreFilter counts once.
func (*Plugin) PreFilter(c *framework.Cycle) *framework.Status {
	if len(c.Pod.Spec.TopologySpreadConstraints) == 0 {
		return framework.Skipped
	}
	s := &filterState{constraints: compile(c.Pod, corev1.DoNotSchedule)}
	if len(s.constraints) == 0 {
		return framework.Skipped
	}
	for i := range s.constraints {
		k := &s.constraints[i]
		s.domains = append(s.domains, map[string]int{})
		s.least = append(s.least, -1)
		self := 0
		if k.selector.Matches(labels.Set(c.Pod.Labels)) {
			self = 1
		}
		s.self = append(s.self, self)
	}
nodes:
	for _, n := range c.Snap.Nodes {
		for i := range s.constraints { // a node counts only if it has all the keys
			if _, ok := n.Object.Labels[s.constraints[i].key]; !ok {
				continue nodes
			}
		}
		for i := range s.constraints {
			if k := &s.constraints[i]; k.counted(c.Pod, n) {
				s.domains[i][n.Object.Labels[k.key]] += k.countOn(c.Pod, n)
			}
		}
	}
	c.Set(filterKey{}, s)
	return nil
}

func (s *filterState) min(i int) int {
	if s.least[i] >= 0 {
		return s.least[i]
	}
	least := math.MaxInt
	for _, n := range s.domains[i] {
		least = min(least, n)
	}
	if len(s.domains[i]) < s.constraints[i].minDomains {
		least = 0
	}
	s.least[i] = least
	return least
}

// AddPod and RemovePod keep the counts while preemption tries.
func (*Plugin) AddPod(c *framework.Cycle, q *snapshot.Pod, n *snapshot.Node) { change(c, q, n, 1) }

// RemovePod undoes AddPod.
func (*Plugin) RemovePod(c *framework.Cycle, q *snapshot.Pod, n *snapshot.Node) { change(c, q, n, -1) }

func change(c *framework.Cycle, q *snapshot.Pod, n *snapshot.Node, by int) {
	s, ok := c.Get(filterKey{}).(*filterState)
	if !ok {
		return
	}
	for i := range s.constraints {
		k := &s.constraints[i]
		v, has := n.Object.Labels[k.key]
		if has && k.selects(c.Pod, q) && k.counted(c.Pod, n) {
			s.domains[i][v] += by
			s.least[i] = -1
		}
	}
}

// Filter compares the domain's count with the least.
func (*Plugin) Filter(c *framework.Cycle, n *snapshot.Node) *framework.Status {
	s, ok := c.Get(filterKey{}).(*filterState)
	if !ok {
		return nil
	}
	for i := range s.constraints {
		k := &s.constraints[i]
		v, has := n.Object.Labels[k.key]
		if !has {
			return noLabel
		}
		if s.domains[i][v]+s.self[i]-s.min(i) > k.maxSkew {
			return skewed
		}
	}
	return nil
}

// defaults are the cluster's for pods of a group, as upstream's system defaults.
var defaults = []constraint{
	{key: corev1.LabelHostname, maxSkew: 3, affinity: true},
	{key: corev1.LabelTopologyZone, maxSkew: 5, affinity: true},
}

type scoreKey struct{}

// scoreState is the soft constraints' counts.
type scoreState struct {
	constraints []constraint
	domains     []map[string]int // nil for hostname: the node is the domain
	weights     []float64
	// all keys are demanded of a node; with the defaults, those that it has count.
	strict bool
}

// PreScore counts pods in the domains of the feasible nodes.
func (pl *Plugin) PreScore(c *framework.Cycle, nodes []*snapshot.Node) *framework.Status {
	s := &scoreState{constraints: compile(c.Pod, corev1.ScheduleAnyway), strict: true}
	if len(c.Pod.Spec.TopologySpreadConstraints) == 0 {
		sel := pl.group(c.Pod.Pod)
		if sel == nil || sel.Empty() {
			return framework.Skipped
		}
		s.strict = false
		for _, d := range defaults {
			d.selector = sel
			s.constraints = append(s.constraints, d)
		}
	}
	if len(s.constraints) == 0 {
		return framework.Skipped
	}
	hosts := 0
	for range s.constraints {
		s.domains = append(s.domains, nil)
	}
	for _, n := range nodes {
		if s.ignored(n) {
			continue
		}
		hosts++
		for i := range s.constraints {
			if k := &s.constraints[i]; k.key != corev1.LabelHostname {
				if v, ok := n.Object.Labels[k.key]; ok {
					if s.domains[i] == nil {
						s.domains[i] = map[string]int{}
					}
					s.domains[i][v] += 0
				}
			}
		}
	}
	for i := range s.constraints {
		size := len(s.domains[i])
		if s.constraints[i].key == corev1.LabelHostname {
			size = hosts
		}
		s.weights = append(s.weights, math.Log(float64(size+2)))
	}
	for i := range s.constraints {
		k := &s.constraints[i]
		if len(s.domains[i]) == 0 {
			continue
		}
		for _, n := range c.Snap.Nodes {
			v, ok := n.Object.Labels[k.key]
			if !ok {
				continue
			}
			if _, relevant := s.domains[i][v]; relevant && len(n.Pods) > 0 && k.counted(c.Pod, n) {
				s.domains[i][v] += k.countOn(c.Pod, n)
			}
		}
	}
	c.Set(scoreKey{}, s)
	return nil
}

// ignored nodes lack a key that a constraint of the pod's own demands.
func (s *scoreState) ignored(n *snapshot.Node) bool {
	if !s.strict {
		return false
	}
	for i := range s.constraints {
		if _, ok := n.Object.Labels[s.constraints[i].key]; !ok {
			return true
		}
	}
	return false
}

// ignoredScore marks a node that gets the worst score.
const ignoredScore = -1

// Score is how many pods the node's domains have: the fewer the better.
func (*Plugin) Score(c *framework.Cycle, n *snapshot.Node) int64 {
	s, ok := c.Get(scoreKey{}).(*scoreState)
	if !ok {
		return 0
	}
	if s.ignored(n) {
		return ignoredScore
	}
	var sum float64
	for i := range s.constraints {
		k := &s.constraints[i]
		v, ok := n.Object.Labels[k.key]
		if !ok {
			continue
		}
		count := s.domains[i][v]
		if k.key == corev1.LabelHostname {
			count = k.countOn(c.Pod, n)
		}
		sum += float64(count)*s.weights[i] + float64(k.maxSkew-1)
	}
	return int64(math.Round(sum))
}

// Normalize turns the least pods into the greatest score.
func (*Plugin) Normalize(_ *framework.Cycle, _ []*snapshot.Node, scores []int64) {
	low, high := int64(math.MaxInt64), int64(0)
	for _, s := range scores {
		if s != ignoredScore {
			low, high = min(low, s), max(high, s)
		}
	}
	for i, s := range scores {
		switch {
		case s == ignoredScore:
			scores[i] = 0
		case high == 0:
			scores[i] = framework.MaxScore
		default:
			scores[i] = framework.MaxScore * (high + low - s) / high
		}
	}
}

// Hints: pods that count come, go or change, and nodes with the keys.
func (*Plugin) Hints() []framework.Hint {
	about := func(p *snapshot.Pod, q *snapshot.Pod) bool {
		if q == nil || q.Namespace != p.Namespace {
			return false
		}
		for _, k := range compile(p, corev1.DoNotSchedule) {
			if k.selector.Matches(labels.Set(q.Labels)) {
				return true
			}
		}
		return false
	}
	return []framework.Hint{
		{Kinds: framework.PodAdd | framework.PodUpdate | framework.PodDelete | framework.PodTerminates, Worth: func(p *snapshot.Pod, e framework.Event) bool {
			return about(p, e.Pod) || about(p, e.OldPod)
		}},
		{Kinds: framework.NodeAdd | framework.NodeLabel | framework.NodeDelete | framework.NodeTaint, Worth: func(p *snapshot.Pod, e framework.Event) bool {
			for i := range p.Spec.TopologySpreadConstraints {
				key := p.Spec.TopologySpreadConstraints[i].TopologyKey
				for _, n := range []*corev1.Node{e.OldNode, e.Node} {
					if n == nil {
						continue
					}
					if _, ok := n.Labels[key]; ok {
						return true
					}
				}
			}
			return false
		}},
		{Kinds: framework.SelfUpdate},
	}
}
