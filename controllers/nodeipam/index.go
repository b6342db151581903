package nodeipam

import (
	"container/list"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Node is one life of a node: a new one of the same name takes over nothing from the old.
type Node struct {
	Name string
	UID  types.UID
}

// Conflict is a part that two nodes say they have.
type Conflict struct {
	CIDR  netip.Prefix
	Other string // the other node
}

// Index knows which node holds which part of the cluster's ranges, and which nodes wait for
// one. No call costs more the more nodes there are. It decides only: not for concurrent use.
type Index struct {
	ranges  []*blocks
	nodes   map[Node]*holding
	waiting list.List // of Node, those that came first in front
}

// holding is what a node has.
type holding struct {
	name    string
	parts   []part
	own     bool           // the node says itself what it has
	granted []netip.Prefix // given by us; the node does not say so yet
	waits   *list.Element
}

type part struct {
	in *blocks
	netip.Prefix
}

// NewIndex makes an index of ranges of which nodes get parts of the sizes that masks say.
func NewIndex(ranges []netip.Prefix, masks []int) *Index {
	x := &Index{nodes: map[Node]*holding{}}
	for i, r := range ranges {
		x.ranges = append(x.ranges, newBlocks(r, masks[i]))
	}
	return x
}

// Observe notes that a node exists and what it says it has, and returns what of that others
// have. While it says nothing it keeps what it was granted: the word of it may be on its way.
func (x *Index) Observe(n Node, cidrs []netip.Prefix) []Conflict {
	h := x.nodes[n]
	if h == nil {
		h = &holding{name: n.Name}
		x.nodes[n] = h
	}
	if len(cidrs) == 0 && !h.own {
		return nil
	}
	x.release(h)
	x.GiveUp(n)
	h.own = len(cidrs) > 0
	var conflicts []Conflict
	for _, c := range cidrs {
		for _, r := range x.ranges {
			if p, ok := r.fit(c); ok {
				if other := h.take(r, p); other != nil {
					conflicts = append(conflicts, Conflict{CIDR: c, Other: other.name})
				}
			}
		}
	}
	return conflicts
}

// Remove forgets a node. What it held is free unless another holds it too.
func (x *Index) Remove(n Node) {
	h := x.nodes[n]
	if h == nil {
		return
	}
	x.release(h)
	x.GiveUp(n)
	delete(x.nodes, n)
}

// Grant gives a node a part of each range, the same again when it is asked again; none to a
// node that is not known (it has gone meanwhile, or is still to be observed) or that says
// itself what it has. With an error, which says what is exhausted, the node waits.
func (x *Index) Grant(n Node) ([]netip.Prefix, error) {
	h := x.nodes[n]
	if h == nil || h.own {
		return nil, nil
	}
	if h.granted != nil {
		return h.granted, nil
	}
	var free []netip.Prefix
	for _, r := range x.ranges {
		p, ok := r.free()
		if !ok {
			if h.waits == nil {
				h.waits = x.waiting.PushBack(n)
			}
			return nil, fmt.Errorf("pod network %s has no free /%d left", r.prefix, r.mask)
		}
		free = append(free, p)
	}
	for i, p := range free {
		h.take(x.ranges[i], p)
	}
	x.GiveUp(n)
	h.granted = free
	return free, nil
}

// GiveUp takes a node out of those that wait.
func (x *Index) GiveUp(n Node) {
	if h := x.nodes[n]; h != nil && h.waits != nil {
		x.waiting.Remove(h.waits)
		h.waits = nil
	}
}

// Waits says that a node has been denied a part and has none yet.
func (x *Index) Waits(n Node) bool {
	h := x.nodes[n]
	return h != nil && h.waits != nil
}

// Next is the node that waits for longest, if there is something for it. One is enough to
// wake: when it has its part, or has gone, Next tells of the one after it.
func (x *Index) Next() (Node, bool) {
	first := x.waiting.Front()
	if first == nil || slices.ContainsFunc(x.ranges, func(r *blocks) bool { return r.root.full }) {
		return Node{}, false
	}
	n, ok := first.Value.(Node)
	return n, ok
}

func (x *Index) release(h *holding) {
	for _, p := range h.parts {
		p.in.release(p.Prefix, h)
	}
	h.parts, h.granted = nil, nil
}

func (h *holding) take(r *blocks, p netip.Prefix) (other *holding) {
	if mine := (part{r, p}); !slices.Contains(h.parts, mine) {
		other = r.take(p, h)
		h.parts = append(h.parts, mine)
	}
	return other
}
