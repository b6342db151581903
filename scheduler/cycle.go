package scheduler

import (
	"math/rand/v2"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Bounds of the adaptive search, as upstream's.
const (
	minFeasible        = 100
	minFeasiblePercent = 5
)

// feasibleToFind is how many fitting nodes are enough: scoring more gains little.
func feasibleToFind(percent int32, nodes int) int {
	if nodes < minFeasible {
		return nodes
	}
	p := int(percent)
	if p == 0 {
		p = max(50-nodes/125, minFeasiblePercent)
	}
	return max(nodes*p/100, minFeasible)
}

// searcher finds the best node for a pod. Its buffers are reused: a cycle allocates
// nothing per node.
type searcher struct {
	profile *profile
	cycle   *framework.Cycle
	active  []filter // those that have a say for this pod
	skips   []bool   // by filter: it has none
	rnd     *rand.Rand
	next    int // where the search begins, so that all nodes take turns

	statuses []*framework.Status // by Node.Index; nil: fits or was not reached
	feasible []*snapshot.Node
	scores   []int64
	totals   []int64
	// tried counts the nodes looked at.
	tried int
}

var notChosen = framework.NewStatus(framework.Unresolvable, "NodeAffinity", "node(s) didn't satisfy plugin(s) [NodeAffinity]")

// preFilter prepares the plugins; a rejection is for all nodes.
func (s *searcher) preFilter() *framework.Status {
	s.active = s.active[:0]
	s.skips = append(s.skips[:0], make([]bool, len(s.profile.filters))...)
	for i := range s.profile.preFilters {
		p := &s.profile.preFilters[i]
		switch st := p.plugin.PreFilter(s.cycle); {
		case st == nil:
		case st.Code != framework.Skip:
			return st
		case p.filter >= 0:
			s.skips[p.filter] = true
		}
	}
	for i, f := range s.profile.filters {
		if !s.skips[i] {
			s.active = append(s.active, f)
		}
	}
	return nil
}

// find fills feasible and statuses.
func (s *searcher) find(percent int32) *framework.Status {
	nodes := s.cycle.Snap.Nodes
	s.feasible = s.feasible[:0]
	if cap(s.statuses) < len(nodes) {
		s.statuses = make([]*framework.Status, len(nodes), len(nodes)+len(nodes)/4)
	}
	s.statuses = s.statuses[:len(nodes)]
	clear(s.statuses)
	s.tried = 0

	// A node nominated by preemption is tried before all others.
	if name := s.cycle.Pod.Status.NominatedNodeName; name != "" {
		if n := s.cycle.Snap.Node(name); n != nil && s.allowed(n) {
			st := s.filter(n)
			if st == nil {
				s.feasible = append(s.feasible, n)
				s.tried = 1
				return nil
			}
			if st.Code == framework.Error {
				return st
			}
		}
	}
	if only := s.cycle.Only; only != nil {
		for i := range s.statuses {
			s.statuses[i] = notChosen
		}
		for name := range only {
			n := s.cycle.Snap.Node(name)
			if n == nil {
				continue
			}
			s.statuses[n.Index] = nil
			if st := s.check(n); st != nil {
				return st
			}
		}
		return nil
	}

	want := feasibleToFind(percent, len(nodes))
	if s.next >= len(nodes) {
		s.next = 0
	}
	at := s.next
	for range nodes {
		n := nodes[at]
		if at++; at == len(nodes) {
			at = 0
		}
		if st := s.check(n); st != nil {
			return st
		}
		if len(s.feasible) >= want {
			break
		}
	}
	s.next = at
	return nil
}

func (s *searcher) allowed(n *snapshot.Node) bool {
	if s.cycle.Only == nil {
		return true
	}
	_, ok := s.cycle.Only[n.Name()]
	return ok
}

// check filters one node into feasible or statuses; only errors are returned.
func (s *searcher) check(n *snapshot.Node) *framework.Status {
	s.tried++
	st := s.filter(n)
	if st == nil {
		s.feasible = append(s.feasible, n)
		return nil
	}
	if st.Code == framework.Error {
		return st
	}
	s.statuses[n.Index] = st
	return nil
}

// filter asks the plugins about a node: with the pods that are nominated to it, for they
// come first, and then without, for they may never come.
func (s *searcher) filter(n *snapshot.Node) *framework.Status {
	if s.cycle.Nominated != nil {
		if st := s.filterWithGuests(n); st != nil {
			return st
		}
	}
	return s.filterNow(n)
}

// filterWithGuests filters a node as if the pods nominated to it were there.
func (s *searcher) filterWithGuests(n *snapshot.Node) *framework.Status {
	var guests []*snapshot.Pod
	s.cycle.Nominated(n.Name(), func(p *snapshot.Pod) { guests = append(guests, p) })
	if len(guests) == 0 {
		return nil
	}
	for _, p := range guests {
		s.place(p, n)
	}
	st := s.filterNow(n)
	for _, p := range guests {
		s.displace(p, n)
	}
	return st
}

func (s *searcher) filterNow(n *snapshot.Node) *framework.Status {
	for i := range s.active {
		if st := s.active[i].filter.Filter(s.cycle, n); st != nil {
			return st
		}
	}
	return nil
}

// place puts a pod on a node for a while.
func (s *searcher) place(p *snapshot.Pod, n *snapshot.Node) {
	s.cycle.Snap.Place(p, n)
	for i := range s.active {
		if inc := s.active[i].incremental; inc != nil {
			inc.AddPod(s.cycle, p, n)
		}
	}
}

// displace takes a pod off a node for a while.
func (s *searcher) displace(p *snapshot.Pod, n *snapshot.Node) {
	s.cycle.Snap.Displace(p, n)
	for i := range s.active {
		if inc := s.active[i].incremental; inc != nil {
			inc.RemovePod(s.cycle, p, n)
		}
	}
}

// best scores the feasible nodes and returns the best, a random one of equals.
func (s *searcher) best() *snapshot.Node {
	nodes := s.feasible
	if len(nodes) == 1 {
		return nodes[0]
	}
	s.totals = resized(s.totals, len(nodes))
	clear(s.totals)
	for i := range s.profile.scorers {
		sc := &s.profile.scorers[i]
		if sc.weight == 0 || sc.pre != nil && sc.pre.PreScore(s.cycle, nodes) != nil {
			continue // a plugin that cannot score does not
		}
		if sc.normalize == nil {
			for j, n := range nodes {
				s.totals[j] += sc.weight * sc.score.Score(s.cycle, n)
			}
			continue
		}
		s.scores = resized(s.scores, len(nodes))
		for j, n := range nodes {
			s.scores[j] = sc.score.Score(s.cycle, n)
		}
		sc.normalize.Normalize(s.cycle, nodes, s.scores)
		for j := range nodes {
			s.totals[j] += sc.weight * s.scores[j]
		}
	}
	at, ties := 0, 1
	for j := 1; j < len(nodes); j++ {
		switch {
		case s.totals[j] > s.totals[at]:
			at, ties = j, 1
		case s.totals[j] == s.totals[at]:
			ties++
			if s.rnd.IntN(ties) == 0 {
				at = j
			}
		}
	}
	return nodes[at]
}

func resized(b []int64, n int) []int64 {
	if cap(b) < n {
		return make([]int64, n, n+n/4)
	}
	return b[:n]
}
