package policy

import "net/netip"

// member of a group. Without a port: all of the address.
type member struct {
	addr     netip.Addr
	protocol uint8
	port     uint16
}

// members are who is in a group, and what has changed since the kernel was told.
type members struct {
	*group
	// count is how many pods have what is in the group: an address may be two pods' for a moment.
	count map[member]int
	// changed has those that were added (true) or removed since.
	changed map[member]bool
}

// each calls f with what a pod contributes if it is chosen.
func (g *group) each(p *pod, f func(member)) {
	if g.port.name == "" {
		for _, a := range p.addrs {
			f(member{addr: a})
		}
		return
	}
	for _, port := range p.named(g.port.name, g.port.protocol) {
		for _, a := range p.addrs {
			f(member{a, g.port.protocol, port})
		}
	}
}

func (m *members) add(p *pod) {
	m.each(p, func(e member) {
		m.count[e]++
		if m.count[e] == 1 {
			m.change(e, true)
		}
	})
}

func (m *members) remove(p *pod) {
	m.each(p, func(e member) {
		if m.count[e]--; m.count[e] == 0 {
			delete(m.count, e)
			m.change(e, false)
		}
	})
}

// change enters what the kernel does not know; twice is never.
func (m *members) change(e member, added bool) {
	if was, ok := m.changed[e]; ok && was != added {
		delete(m.changed, e)
		return
	}
	m.changed[e] = added
}

// directory is all pods, namespaces and policies, and the groups that somebody follows. Pure.
type directory struct {
	pods       map[string]map[string]*pod // by namespace and name
	namespaces map[string]labelSet
	policies   map[string]map[string]*rules // by namespace and name
	groups     map[string]*members
}

func newDirectory() *directory {
	return &directory{
		pods: map[string]map[string]*pod{}, namespaces: map[string]labelSet{},
		policies: map[string]map[string]*rules{}, groups: map[string]*members{},
	}
}

// setPod takes up a pod; nil: it is gone.
func (d *directory) setPod(n name, p *pod) {
	was, labels := d.pods[n.namespace][n.name], d.namespaces[n.namespace]
	for _, g := range d.groups {
		before, after := was != nil && g.matches(was, labels), p != nil && g.matches(p, labels)
		if after {
			g.add(p) // first, so that what stays is no change
		}
		if before {
			g.remove(was)
		}
	}
	put(d.pods, n, p)
}

// setPolicy takes up a policy; nil: it is gone.
func (d *directory) setPolicy(n name, r *rules) { put(d.policies, n, r) }

func put[T any](in map[string]map[string]*T, n name, v *T) {
	if v == nil {
		delete(in[n.namespace], n.name)
		if len(in[n.namespace]) == 0 {
			delete(in, n.namespace)
		}
		return
	}
	if in[n.namespace] == nil {
		in[n.namespace] = map[string]*T{}
	}
	in[n.namespace][n.name] = v
}

// setNamespace takes up a namespace's labels; nil: it is gone.
func (d *directory) setNamespace(ns string, l labelSet) {
	was := d.namespaces[ns]
	for _, g := range d.groups {
		if g.namespace != "" {
			continue
		}
		before, after := g.matchesNamespace(ns, was), g.matchesNamespace(ns, l)
		if before == after {
			continue
		}
		for _, p := range d.pods[ns] {
			if !g.selection.pods.Matches(p.labels) {
				continue
			}
			if after {
				g.add(p)
			} else {
				g.remove(p)
			}
		}
	}
	if l == nil {
		delete(d.namespaces, ns)
		return
	}
	d.namespaces[ns] = l
}

// follow makes the groups that profiles name be followed, and no others.
func (d *directory) follow(profiles map[string]*profile) {
	wanted := map[string]bool{}
	for _, p := range profiles {
		for _, l := range p.lines {
			if l.peers == nil {
				continue
			}
			wanted[l.peers.key] = true
			if d.groups[l.peers.key] == nil {
				d.groups[l.peers.key] = d.fill(l.peers)
			}
		}
	}
	for key := range d.groups {
		if !wanted[key] {
			delete(d.groups, key)
		}
	}
}

func (d *directory) fill(g *group) *members {
	m := &members{group: g, count: map[member]int{}, changed: map[member]bool{}}
	for ns, pods := range d.pods {
		if !g.matchesNamespace(ns, d.namespaces[ns]) {
			continue
		}
		for _, p := range pods {
			if g.selection.pods.Matches(p.labels) {
				m.add(p)
			}
		}
	}
	clear(m.changed) // who makes the set reads all of it
	return m
}

// policiesOf a namespace.
func (d *directory) policiesOf(ns string) []*rules {
	out := make([]*rules, 0, len(d.policies[ns]))
	for _, r := range d.policies[ns] {
		out = append(out, r)
	}
	return out
}
