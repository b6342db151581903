// Package nodeaffinity has the plugin NodeAffinity: nodeSelector and node affinity of
// pods, and the affinity that a profile adds to all its pods.
package nodeaffinity

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "NodeAffinity"

var (
	rejected = framework.NewStatus(framework.Unresolvable, Name, "node(s) didn't match Pod's node affinity/selector")
	enforced = framework.NewStatus(framework.Unresolvable, Name, "node(s) didn't match scheduler-enforced node affinity")
)

// Plugin is NodeAffinity.
type Plugin struct {
	added *corev1.NodeSelector // required of all pods of the profile
	liked []corev1.PreferredSchedulingTerm
}

// New makes the plugin; added may be nil.
func New(added *corev1.NodeAffinity) *Plugin {
	p := &Plugin{}
	if added != nil {
		p.added = added.RequiredDuringSchedulingIgnoredDuringExecution
		p.liked = added.PreferredDuringSchedulingIgnoredDuringExecution
	}
	return p
}

// Name of the plugin.
func (*Plugin) Name() string { return Name }

func required(p *snapshot.Pod) *corev1.NodeSelector {
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func preferred(p *snapshot.Pod) []corev1.PreferredSchedulingTerm {
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// PreFilter skips pods that do not choose, and narrows the search for those that name
// their nodes, as DaemonSets' do.
func (pl *Plugin) PreFilter(c *framework.Cycle) *framework.Status {
	req := required(c.Pod)
	if req == nil && len(c.Pod.Spec.NodeSelector) == 0 && pl.added == nil {
		return framework.Skipped
	}
	if req == nil || len(req.NodeSelectorTerms) == 0 {
		return nil
	}
	names := map[string]struct{}{}
	for i := range req.NodeSelectorTerms {
		t := &req.NodeSelectorTerms[i]
		var of map[string]struct{}
		for j := range t.MatchFields {
			f := &t.MatchFields[j]
			if f.Key != "metadata.name" || f.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			set := map[string]struct{}{}
			for _, v := range f.Values {
				if _, ok := of[v]; of == nil || ok {
					set[v] = struct{}{}
				}
			}
			of = set
		}
		if of == nil {
			return nil // terms are alternatives: this one names no node
		}
		for n := range of {
			names[n] = struct{}{}
		}
	}
	if len(names) == 0 {
		return framework.NewStatus(framework.Unresolvable, Name, "pod affinity terms conflict")
	}
	c.Restrict(names)
	return nil
}

// Filter matches the node's labels and name.
func (pl *Plugin) Filter(c *framework.Cycle, n *snapshot.Node) *framework.Status {
	if pl.added != nil && !podfit.MatchesSelector(pl.added, n.Object) {
		return enforced
	}
	if !podfit.MatchesNode(&c.Pod.Spec, n.Object) {
		return rejected
	}
	return nil
}

// PreScore skips when nothing is preferred.
func (pl *Plugin) PreScore(c *framework.Cycle, _ []*snapshot.Node) *framework.Status {
	if len(pl.liked) == 0 && len(preferred(c.Pod)) == 0 {
		return framework.Skipped
	}
	return nil
}

// Score sums the weights of preferred terms that match.
func (pl *Plugin) Score(c *framework.Cycle, n *snapshot.Node) int64 {
	return podfit.PreferredWeight(pl.liked, n.Object) + podfit.PreferredWeight(preferred(c.Pod), n.Object)
}

// Normalize scales to the best.
func (*Plugin) Normalize(_ *framework.Cycle, _ []*snapshot.Node, scores []int64) {
	framework.NormalizeDefault(scores, false)
}

// Hints: a node that matches now and did not before.
func (pl *Plugin) Hints() []framework.Hint {
	matches := func(p *snapshot.Pod, n *corev1.Node) bool {
		return (pl.added == nil || podfit.MatchesSelector(pl.added, n)) && podfit.MatchesNode(&p.Spec, n)
	}
	return []framework.Hint{
		{Kinds: framework.NodeAdd | framework.NodeLabel, Worth: func(p *snapshot.Pod, e framework.Event) bool {
			return matches(p, e.Node) && (e.OldNode == nil || !matches(p, e.OldNode))
		}},
		{Kinds: framework.SelfUpdate},
	}
}
