package policy

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/skiff-k8s/skiff/host/nft"
)

// The table of a family:
//
//	out   saddr → chain    pods of this node that are isolated for egress
//	in    daddr → chain    pods of this node that are isolated for ingress
//	self  saddr . daddr    they reach themselves
//	pods-…                 groups: addresses, or address . protocol . port
//	blocks-…               ranges of address . protocol
//	ports-…                ranges of protocol . port
//	in-…, out-…            chains, one a profile: what is allowed, then drop
//
// Both directions of a packet between two of the node's pods are decided, each in a base chain of its own. They
// are in the forward hook: after DNAT, so that Services count as their endpoints, before the source is
// masqueraded, and without what the node itself sends to its pods or gets from them.
const setSelf = "self"

var (
	mapOf = [directions]string{ingress: "in", egress: "out"}
	ends  = []nft.Field{nft.Saddr, nft.Daddr}
	at    = []nft.Field{nft.Proto, nft.Dport}
	// own is the pod's address, far its peer's.
	own = [directions]nft.Field{ingress: nft.Daddr, egress: nft.Saddr}
	far = [directions]nft.Field{ingress: nft.Saddr, egress: nft.Daddr}
)

func baseSets() []nft.Set {
	return []nft.Set{
		{Name: mapOf[ingress], Key: []nft.Field{nft.Daddr}, Verdicts: true},
		{Name: mapOf[egress], Key: []nft.Field{nft.Saddr}, Verdicts: true},
		{Name: setSelf, Key: ends},
	}
}

// baseChains let pass what belongs to a flow that was allowed, or tells of an error in one.
func baseChains() (out []nft.Chain) {
	for d, prio := range map[direction]int32{egress: 0, ingress: 1} {
		out = append(out, nft.Chain{Name: [directions]string{"ingress", "egress"}[d], Hook: &nft.Hook{Type: "filter", Point: "forward", Priority: prio}, Rules: []nft.Rule{
			{nft.Equal{Field: nft.CtState, Mask: nft.CtEstablished | nft.CtRelated, Value: 0, Not: true}, nft.Accept{}},
			{nft.InSet{Key: ends, Set: setSelf}, nft.Accept{}},
			{nft.VerdictMap{Key: []nft.Field{own[d]}, Map: mapOf[d]}},
		}})
	}
	return out
}

// named begins with kind and is the same for the same content.
func named(kind, key string) string {
	sum := sha256.Sum256([]byte(key))
	return kind + "-" + hex.EncodeToString(sum[:8])
}

func (p *profile) chainName(d direction) string { return named(mapOf[d], p.key) }
func (g *group) setName() string                { return named("pods", g.key) }
func (b *blocks) setName() string               { return named("blocks", b.key) }
func (p *ports) setName() string                { return named("ports", p.key) }

// chain of a profile. Lines that no address of the family can meet are left out.
func (p *profile) chain(d direction, v6 bool) nft.Chain {
	c := nft.Chain{Name: p.chainName(d)}
	for _, l := range p.lines {
		var r nft.Rule
		if l.blocks != nil {
			if len(l.blocks.of(v6)) == 0 {
				continue
			}
			r = append(r, nft.InSet{Key: []nft.Field{far[d], nft.Proto}, Set: l.blocks.setName()})
		}
		if l.peers != nil {
			key := []nft.Field{far[d]}
			if l.peers.port.name != "" {
				key = append(key, at...)
			}
			r = append(r, nft.InSet{Key: key, Set: l.peers.setName()})
		}
		if l.ports != nil {
			r = append(r, nft.InSet{Key: at, Set: l.ports.setName()})
		}
		c.Rules = append(c.Rules, append(r, nft.Accept{}))
	}
	c.Rules = append(c.Rules, nft.Rule{nft.Drop{}})
	return c
}

// set of a group. Either end may look into it, so its type names one of both.
func (g *group) set() nft.Set {
	key := []nft.Field{nft.Saddr}
	if g.port.name != "" {
		key = append(key, at...)
	}
	return nft.Set{Name: g.setName(), Key: key}
}

func (m member) element() *nft.Element {
	if m.protocol == 0 {
		return &nft.Element{Key: m.addr.AsSlice()}
	}
	return &nft.Element{Key: nft.Key(nft.Addr(m.addr), nft.Protocol(m.protocol), nft.Port(m.port))}
}

func (b *blocks) set() nft.Set {
	return nft.Set{Name: b.setName(), Key: []nft.Field{nft.Saddr, nft.Proto}, Interval: true}
}

func (b *blocks) elements(v6 bool) (out []nft.Element) {
	const last = 255 // protocol: all of them; the kernel has such ranges in keys of several fields only
	for _, s := range b.of(v6) {
		out = append(out, nft.Element{Key: nft.Key(nft.Addr(s.from), nft.Protocol(0)), KeyEnd: nft.Key(nft.Addr(s.to), nft.Protocol(last))})
	}
	return out
}

func (p *ports) set() nft.Set { return nft.Set{Name: p.setName(), Key: at, Interval: true} }

func (p *ports) elements() (out []nft.Element) {
	for _, s := range p.spans {
		out = append(out, nft.Element{Key: nft.Key(nft.Protocol(s.protocol), nft.Port(s.from)), KeyEnd: nft.Key(nft.Protocol(s.protocol), nft.Port(s.to))})
	}
	return out
}
