package routes

import (
	"net/netip"
	"slices"
)

// nodes is what is known of all nodes, and what leads to each. Every change of one node costs the
// same, however many there are. Pure.
type nodes struct {
	host  host
	self  self
	peers map[string]peer
	// claims are the nodes that have a CIDR in their spec: one, unless something is wrong.
	claims   map[netip.Prefix][]string
	outcomes map[string]outcome
	// over counts the nodes that are reached by a VXLAN link.
	over map[underlay]int
}

func newNodes(s self) *nodes {
	return &nodes{self: s, peers: map[string]peer{}, claims: map[netip.Prefix][]string{}, outcomes: map[string]outcome{}, over: map[underlay]int{}}
}

// set takes up a peer, or with nil its end, and returns who has to be decided on anew.
func (n *nodes) set(name string, p *peer) []string {
	touched := map[netip.Prefix]bool{}
	if old, ok := n.peers[name]; ok {
		if p != nil && old.equal(*p) {
			return nil
		}
		for _, c := range old.podCIDRs {
			n.claims[c] = slices.DeleteFunc(n.claims[c], func(s string) bool { return s == name })
			if len(n.claims[c]) == 0 {
				delete(n.claims, c)
			}
			touched[c] = true
		}
		delete(n.peers, name)
	}
	if p != nil {
		n.peers[name] = *p
		for _, c := range p.podCIDRs {
			if !slices.Contains(n.claims[c], name) {
				n.claims[c] = append(n.claims[c], name)
			}
			touched[c] = true
		}
	}
	again := []string{name}
	for c := range touched {
		for _, other := range n.claims[c] {
			if !slices.Contains(again, other) {
				again = append(again, other)
			}
		}
	}
	return again
}

// winner of a CIDR.
func (n *nodes) winner(c netip.Prefix) string {
	var best *peer
	for _, name := range n.claims[c] {
		if p := n.peers[name]; best == nil || p.before(*best) < 0 {
			best = &p
		}
	}
	if best == nil {
		return ""
	}
	return best.name
}

// decide anew on some nodes; the tables are what led to them, and what should. The errors are those
// that were not there before.
func (n *nodes) decide(names []string) (was, want table, problems map[string][]error) {
	was, want, problems = newTable(), newTable(), map[string][]error{}
	for _, name := range names {
		old := n.outcomes[name]
		was.merge(old.table)
		if old.over != 0 {
			n.over[old.over]--
		}
		p, ok := n.peers[name]
		if !ok {
			delete(n.outcomes, name)
			continue
		}
		out := decide(n.host, n.self, p, func(c netip.Prefix) bool { return n.winner(c) == name })
		n.outcomes[name] = out
		if out.over != 0 {
			n.over[out.over]++
		}
		want.merge(out.table)
		if news := slices.DeleteFunc(slices.Clone(out.errs), func(err error) bool {
			return slices.ContainsFunc(old.errs, func(known error) bool { return known.Error() == err.Error() })
		}); len(news) > 0 {
			problems[name] = news
		}
	}
	return was, want, problems
}

// all nodes' names.
func (n *nodes) all() []string {
	out := make([]string, 0, len(n.peers))
	for name := range n.peers {
		out = append(out, name)
	}
	return out
}
