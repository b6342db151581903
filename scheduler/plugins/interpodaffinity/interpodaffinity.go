// Package interpodaffinity has the plugin InterPodAffinity: pods that want to be, or must
// not be, in the same topology domain as other pods.
package interpodaffinity

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "InterPodAffinity"

// hardWeight is what a required affinity of a pod already there weighs for scoring.
const hardWeight = 1

var (
	noAffinity = framework.NewStatus(framework.Unresolvable, Name, "node(s) didn't match pod affinity rules")
	repelled   = framework.NewStatus(framework.Unschedulable, Name, "node(s) didn't match pod anti-affinity rules")
	refused    = framework.NewStatus(framework.Unschedulable, Name, "node(s) didn't satisfy existing pods anti-affinity rules")
)

// Plugin is InterPodAffinity.
type Plugin struct {
	// namespaceLabels serves namespaceSelectors.
	namespaceLabels func(namespace string) labels.Set
}

// New makes the plugin.
func New(namespaceLabels func(namespace string) labels.Set) *Plugin {
	return &Plugin{namespaceLabels: namespaceLabels}
}

// Name of the plugin.
func (*Plugin) Name() string { return Name }

// domain is a value of a topology key.
type domain struct{ key, value string }

type counts map[domain]int

func (m counts) add(n *snapshot.Node, key string, by int) {
	if v, ok := n.Object.Labels[key]; ok {
		d := domain{key, v}
		if m[d] += by; m[d] == 0 {
			delete(m, d)
		}
	}
}

type filterKey struct{}

// filterState counts, by domain, the pods that matter.
type filterState struct {
	refusing  counts // pods there whose required anti-affinity is against ours
	attracts  counts // pods there that match all our required affinity terms
	repels    counts // pods there that match a required anti-affinity term of ours
	namespace labels.Set
}

// PreFilter counts once.
func (pl *Plugin) PreFilter(c *framework.Cycle) *framework.Status {
	p := c.Pod
	s := &filterState{refusing: counts{}, attracts: counts{}, repels: counts{}, namespace: pl.namespaceLabels(p.Namespace)}
	c.Snap.Repelling(func(n *snapshot.Node) {
		for _, q := range n.Repelling {
			s.refuse(p, q, n, 1)
		}
	})
	if len(p.RequiredAffinity)+len(p.RequiredAntiAffinity) > 0 {
		for _, n := range c.Snap.Nodes {
			for _, q := range n.Pods {
				pl.count(s, p, q, n, 1)
			}
		}
	} else if len(s.refusing) == 0 {
		return framework.Skipped
	}
	c.Set(filterKey{}, s)
	return nil
}

func (s *filterState) refuse(p, q *snapshot.Pod, n *snapshot.Node, by int) {
	for i := range q.RequiredAntiAffinity {
		if t := &q.RequiredAntiAffinity[i]; t.Matches(p, s.namespace) {
			s.refusing.add(n, t.TopologyKey, by)
		}
	}
}

// count adds pod q on node n to what p's own terms are about.
func (pl *Plugin) count(s *filterState, p, q *snapshot.Pod, n *snapshot.Node, by int) {
	if len(p.RequiredAffinity) > 0 && pl.matchesAll(p.RequiredAffinity, q) {
		for i := range p.RequiredAffinity {
			s.attracts.add(n, p.RequiredAffinity[i].TopologyKey, by)
		}
	}
	for i := range p.RequiredAntiAffinity {
		if t := &p.RequiredAntiAffinity[i]; pl.matches(t, q) {
			s.repels.add(n, t.TopologyKey, by)
		}
	}
}

func (pl *Plugin) matches(t *snapshot.Term, q *snapshot.Pod) bool {
	var ns labels.Set
	if t.NamespaceSelector != nil {
		ns = pl.namespaceLabels(q.Namespace)
	}
	return t.Matches(q, ns)
}

func (pl *Plugin) matchesAll(terms []snapshot.Term, q *snapshot.Pod) bool {
	for i := range terms {
		if !pl.matches(&terms[i], q) {
			return false
		}
	}
	return true
}

// AddPod and RemovePod keep the counts while preemption tries.
func (pl *Plugin) AddPod(c *framework.Cycle, q *snapshot.Pod, n *snapshot.Node) {
	pl.change(c, q, n, 1)
}

// RemovePod undoes AddPod.
func (pl *Plugin) RemovePod(c *framework.Cycle, q *snapshot.Pod, n *snapshot.Node) {
	pl.change(c, q, n, -1)
}

func (pl *Plugin) change(c *framework.Cycle, q *snapshot.Pod, n *snapshot.Node, by int) {
	if s, ok := c.Get(filterKey{}).(*filterState); ok {
		s.refuse(c.Pod, q, n, by)
		pl.count(s, c.Pod, q, n, by)
	}
}

// Filter looks the node's domains up.
func (pl *Plugin) Filter(c *framework.Cycle, n *snapshot.Node) *framework.Status {
	s, ok := c.Get(filterKey{}).(*filterState)
	if !ok {
		return nil
	}
	node := n.Object.Labels
	for i := range c.Pod.RequiredAffinity {
		key := c.Pod.RequiredAffinity[i].TopologyKey
		v, ok := node[key]
		if !ok {
			return noAffinity
		}
		// The first of pods that want to be together may go anywhere.
		if s.attracts[domain{key, v}] <= 0 && (len(s.attracts) > 0 || !pl.matchesAll(c.Pod.RequiredAffinity, c.Pod)) {
			return noAffinity
		}
	}
	for i := range c.Pod.RequiredAntiAffinity {
		key := c.Pod.RequiredAntiAffinity[i].TopologyKey
		if v, ok := node[key]; ok && s.repels[domain{key, v}] > 0 {
			return repelled
		}
	}
	for d := range s.refusing {
		if v, ok := node[d.key]; ok && v == d.value {
			return refused
		}
	}
	return nil
}

type scoreKey struct{}

// scoreState weighs domains.
type scoreState map[domain]int64

func (m scoreState) add(n *snapshot.Node, key string, weight int64) {
	if v, ok := n.Object.Labels[key]; ok {
		m[domain{key, v}] += weight
	}
}

// PreScore weighs, in both directions, what pods prefer of each other.
func (pl *Plugin) PreScore(c *framework.Cycle, _ []*snapshot.Node) *framework.Status {
	p, s := c.Pod, scoreState{}
	ns := pl.namespaceLabels(p.Namespace)
	theirs := func(n *snapshot.Node) {
		for _, q := range n.Affine {
			for i := range q.RequiredAffinity {
				if t := &q.RequiredAffinity[i]; t.Matches(p, ns) {
					s.add(n, t.TopologyKey, hardWeight)
				}
			}
			for i := range q.PreferredAffinity {
				if t := &q.PreferredAffinity[i]; t.Matches(p, ns) {
					s.add(n, t.TopologyKey, t.Weight)
				}
			}
			for i := range q.PreferredAntiAffinity {
				if t := &q.PreferredAntiAffinity[i]; t.Matches(p, ns) {
					s.add(n, t.TopologyKey, -t.Weight)
				}
			}
		}
	}
	c.Snap.Affine(theirs)
	if len(p.PreferredAffinity)+len(p.PreferredAntiAffinity) > 0 {
		for _, n := range c.Snap.Nodes {
			for _, q := range n.Pods {
				for i := range p.PreferredAffinity {
					if t := &p.PreferredAffinity[i]; pl.matches(t, q) {
						s.add(n, t.TopologyKey, t.Weight)
					}
				}
				for i := range p.PreferredAntiAffinity {
					if t := &p.PreferredAntiAffinity[i]; pl.matches(t, q) {
						s.add(n, t.TopologyKey, -t.Weight)
					}
				}
			}
		}
	}
	if len(s) == 0 {
		return framework.Skipped
	}
	c.Set(scoreKey{}, s)
	return nil
}

// Score sums the weights of the node's domains.
func (*Plugin) Score(c *framework.Cycle, n *snapshot.Node) int64 {
	s, _ := c.Get(scoreKey{}).(scoreState)
	var sum int64
	for d, w := range s {
		if v, ok := n.Object.Labels[d.key]; ok && v == d.value {
			sum += w
		}
	}
	return sum
}

// Normalize spreads the scores over the whole range.
func (*Plugin) Normalize(_ *framework.Cycle, _ []*snapshot.Node, scores []int64) {
	low, high := scores[0], scores[0]
	for _, s := range scores {
		low, high = min(low, s), max(high, s)
	}
	for i, s := range scores {
		scores[i] = 0
		if high > low {
			scores[i] = framework.MaxScore * (s - low) / (high - low)
		}
	}
}

// Hints: pods that attract come or change; pods that repel go or change, or the last that a
// group had to be near; whatever moves nodes between domains.
func (pl *Plugin) Hints() []framework.Hint {
	attracts := func(p, q *snapshot.Pod) bool {
		return q != nil && len(p.RequiredAffinity) > 0 && pl.matchesAll(p.RequiredAffinity, q)
	}
	// Without q, a pod that wants to be near its own kind may be the first of it.
	binds := func(p, q *snapshot.Pod) bool { return attracts(p, q) && pl.matchesAll(p.RequiredAffinity, p) }
	return []framework.Hint{
		{Kinds: framework.PodAdd, Worth: func(p *snapshot.Pod, e framework.Event) bool { return attracts(p, e.Pod) }},
		{Kinds: framework.PodUpdate, Worth: func(p *snapshot.Pod, e framework.Event) bool {
			return attracts(p, e.Pod) || binds(p, e.OldPod) || pl.against(p, e.OldPod)
		}},
		{Kinds: framework.PodDelete, Worth: func(p *snapshot.Pod, e framework.Event) bool {
			return binds(p, e.Pod) || pl.against(p, e.Pod)
		}},
		{Kinds: framework.NodeAdd | framework.NodeLabel | framework.NodeDelete | framework.SelfUpdate | framework.NamespaceChange},
	}
}

// against reports whether q's presence may have kept p away.
func (pl *Plugin) against(p, q *snapshot.Pod) bool {
	if q == nil {
		return false
	}
	for i := range p.RequiredAntiAffinity {
		if pl.matches(&p.RequiredAntiAffinity[i], q) {
			return true
		}
	}
	ns := pl.namespaceLabels(p.Namespace)
	for i := range q.RequiredAntiAffinity {
		if q.RequiredAntiAffinity[i].Matches(p, ns) {
			return true
		}
	}
	return false
}
