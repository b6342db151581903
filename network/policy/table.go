package policy

import (
	"errors"
	"log/slog"
	"net/netip"

	"github.com/skiff-k8s/skiff/host/nft"
)

// decision is who is isolated on this node, and how. Without anybody there is no table.
type decision [directions]map[netip.Addr]*profile

func newDecision() (d decision) {
	for dir := range d {
		d[dir] = map[netip.Addr]*profile{}
	}
	return d
}

// profiles by their keys, which differ between directions.
func (d decision) profiles() map[string]*profile {
	out := map[string]*profile{}
	for dir := range d {
		for _, p := range d[dir] {
			out[p.key] = p
		}
	}
	return out
}

// of a family.
func (d decision) of(v6 bool) decision {
	out := newDecision()
	for dir := range d {
		for a, p := range d[dir] {
			if a.Is6() == v6 {
				out[dir][a] = p
			}
		}
	}
	return out
}

// table is the kernel's of one family.
type table struct {
	v6   bool
	nft  *nft.Table
	name string
	log  *slog.Logger
	// held is what it has; nil: unknown.
	held *holdings
}

type holdings struct {
	none   bool // there is no table
	pods   [directions]map[netip.Addr]string
	selves map[netip.Addr]bool
	chains map[string]bool
	sets   map[string]bool
}

func newTable(v6 bool, name string, log *slog.Logger) *table {
	family := nft.IPv4
	if v6 {
		family = nft.IPv6
	}
	return &table{v6: v6, nft: nft.NewTable(family, name), name: name, log: log}
}

// apply makes the table be what was decided, in one transaction: no packet sees it half done. groups are
// those that the decision names, by their keys.
func (t *table) apply(want decision, groups map[string]*members) error {
	want = want.of(t.v6)
	if len(want[ingress])+len(want[egress]) == 0 {
		if t.held != nil && t.held.none {
			return nil
		}
		t.held = nil
		if err := nft.Remove(t.nft.Family(), t.name); err != nil {
			return err
		}
		t.held = &holdings{none: true}
		return nil
	}
	if t.held != nil && !t.held.none {
		err := t.commit(t.nft.Begin(), t.held, want, groups)
		if err == nil {
			return nil
		}
		t.log.Warn("change network policies in place; starting the table anew", "err", err)
	}
	b, h := t.nft.Reset(), &holdings{selves: map[netip.Addr]bool{}, chains: map[string]bool{}, sets: map[string]bool{}}
	for d := range directions {
		h.pods[d] = map[netip.Addr]string{}
	}
	for _, s := range baseSets() {
		b.AddSet(s)
	}
	b.AddChains(baseChains()...)
	return t.commit(b, h, want, groups)
}

// commit a batch that brings what is held to what is wanted. After an error nothing is known to be held.
func (t *table) commit(b *nft.Batch, h *holdings, want decision, groups map[string]*members) error {
	t.held = nil
	c := change{Batch: b, table: t, holdings: h, groups: groups, sets: map[string]bool{}, chains: map[string]bool{}}
	for d := range directions {
		for addr, p := range want[d] {
			if err := c.lead(d, addr, p); err != nil {
				return err
			}
		}
	}
	c.forget(want)
	if err := b.Commit(); err != nil {
		return err
	}
	h.chains, h.sets = c.chains, c.sets
	t.held = h
	return nil
}

// change is a batch in the making.
type change struct {
	*nft.Batch
	*table
	*holdings
	groups map[string]*members
	// sets and chains that are wanted.
	sets, chains map[string]bool
}

// lead a pod's traffic to the chain of its profile, and make that where it is missing.
func (c *change) lead(d direction, addr netip.Addr, p *profile) error {
	chain := p.chainName(d)
	if !c.chains[chain] {
		c.chains[chain] = true
		for _, l := range p.lines {
			if err := c.parts(l); err != nil {
				return err
			}
		}
		if !c.holdings.chains[chain] {
			c.AddChains(p.chain(d, c.v6))
		}
	}
	was, had := c.pods[d][addr]
	if was != chain {
		if had {
			c.DeleteElements(mapOf[d], []nft.Element{{Key: addr.AsSlice()}})
		}
		c.AddElements(mapOf[d], []nft.Element{{Key: addr.AsSlice(), Goto: chain}})
		c.pods[d][addr] = chain
	}
	if !c.selves[addr] {
		c.AddElements(setSelf, []nft.Element{self(addr)})
		c.selves[addr] = true
	}
	return nil
}

func self(a netip.Addr) nft.Element { return nft.Element{Key: nft.Key(nft.Addr(a), nft.Addr(a))} }

// parts of a line are made where they are missing; groups follow their pods.
func (c *change) parts(l line) error {
	if l.blocks != nil && len(l.blocks.of(c.v6)) > 0 && c.fresh(l.blocks.setName()) {
		c.AddSet(l.blocks.set())
		c.AddElements(l.blocks.setName(), l.blocks.elements(c.v6))
	}
	if l.ports != nil && c.fresh(l.ports.setName()) {
		c.AddSet(l.ports.set())
		c.AddElements(l.ports.setName(), l.ports.elements())
	}
	if l.peers == nil {
		return nil
	}
	set := l.peers.setName()
	m := c.groups[l.peers.key]
	if m == nil {
		return errors.New("a group is not followed: " + l.peers.key)
	}
	seen := c.sets[set]
	if c.fresh(set) {
		c.AddSet(l.peers.set())
		add := c.Adding(set)
		for e := range m.count {
			if e.addr.Is6() == c.v6 {
				add(e.element())
			}
		}
		return nil
	}
	if seen {
		return nil
	}
	for e, added := range m.changed {
		switch {
		case e.addr.Is6() != c.v6:
		case added:
			c.Adding(set)(e.element())
		default:
			c.Deleting(set)(e.element())
		}
	}
	return nil
}

// fresh tells whether a set that is wanted is neither held nor made.
func (c *change) fresh(set string) bool {
	made := c.sets[set] || c.holdings.sets[set]
	c.sets[set] = true
	return !made
}

// forget what is no longer wanted.
func (c *change) forget(want decision) {
	for d := range directions {
		for addr := range c.pods[d] {
			if want[d][addr] == nil {
				c.DeleteElements(mapOf[d], []nft.Element{{Key: addr.AsSlice()}})
				delete(c.pods[d], addr)
			}
		}
	}
	for addr := range c.selves {
		if want[ingress][addr] == nil && want[egress][addr] == nil {
			c.DeleteElements(setSelf, []nft.Element{self(addr)})
			delete(c.selves, addr)
		}
	}
	for chain := range c.holdings.chains {
		if !c.chains[chain] {
			c.DeleteChain(chain)
		}
	}
	for set := range c.holdings.sets {
		if !c.sets[set] {
			c.DeleteSet(set)
		}
	}
}
