package hostport

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/skiff-k8s/skiff/host/nft"
)

// The maps and the set of a table:
//
//	one      daddr . proto . dport → address . port  mappings of one address of the node
//	any      proto . dport         → address . port  mappings of all of them
//	hairpin  saddr . daddr                           a pod that reaches itself through the node
const (
	setOne     = "one"
	setAny     = "any"
	setHairpin = "hairpin"
)

var (
	oneKey   = []nft.Field{nft.Daddr, nft.Proto, nft.Dport}
	anyKey   = []nft.Field{nft.Proto, nft.Dport}
	endpoint = []nft.Field{nft.Daddr, nft.Dport}
	ends     = []nft.Field{nft.Saddr, nft.Daddr}
)

func sets() []nft.Set {
	return []nft.Set{
		{Name: setOne, Key: oneKey, Value: endpoint},
		{Name: setAny, Key: anyKey, Value: endpoint},
		{Name: setHairpin, Key: ends},
	}
}

const ctSeenReply = 1 << 1 // IPS_SEEN_REPLY

// chains are the rules. Priorities as the kernel names them: dstnat -100, filter 0,
// srcnat 100; Services, at -100, come before host ports.
func chains(family nft.Family) []nft.Chain {
	hook := func(kind, point string, prio int32) *nft.Hook {
		return &nft.Hook{Type: kind, Point: point, Priority: prio}
	}
	translated := nft.Equal{Field: nft.CtStatus, Mask: nft.CtDNAT, Value: nft.CtDNAT}
	translate := []nft.Rule{
		{nft.DNATMap{Key: oneKey, Map: setOne}},
		{nft.Equal{Field: nft.DaddrType, Value: nft.AddrTypeLocal}, nft.DNATMap{Key: anyKey, Map: setAny}},
	}
	post := []nft.Rule{{translated, nft.InSet{Key: ends, Set: setHairpin}, nft.Masquerade{}}}
	out := []nft.Chain{
		{Name: "prerouting", Hook: hook("nat", "prerouting", -99), Rules: translate},
		{Name: "output", Hook: hook("nat", "output", -99), Rules: translate},
	}
	if family == nft.IPv4 { // IPv6 can't leave the loopback link with source ::1
		loopback := netip.MustParsePrefix("127.0.0.0/8")
		post = append(post, nft.Rule{translated, nft.InPrefix{Field: nft.Saddr, Prefix: loopback}, nft.Masquerade{}})
		out = append(out, nft.Chain{Name: "guard", Hook: hook("filter", "input", 0), Rules: []nft.Rule{{
			nft.InPrefix{Field: nft.Saddr, Prefix: loopback, Not: true}, nft.InPrefix{Field: nft.Daddr, Prefix: loopback},
			nft.Equal{Field: nft.CtStatus, Mask: nft.CtDNAT | ctSeenReply, Value: 0},
			nft.Equal{Field: nft.SaddrType, Value: nft.AddrTypeLocal, Not: true}, nft.Drop{},
		}}})
	}
	return append(out, nft.Chain{Name: "postrouting", Hook: hook("nat", "postrouting", 100), Rules: post})
}

// entry is what one sandbox has.
type entry struct {
	// Order in which sandboxes came: the last has a port that several want.
	Order    uint64       `json:"order"`
	Addrs    []netip.Addr `json:"addresses"`
	Mappings []Mapping    `json:"mappings"`
}

func (e entry) equal(o entry) bool {
	return e.Order == o.Order && slices.Equal(e.Addrs, o.Addrs) && slices.Equal(e.Mappings, o.Mappings)
}

// book is what all sandboxes have, by sandbox.
type book map[string]entry

func (b book) next() uint64 {
	n := uint64(1)
	for _, e := range b {
		n = max(n, e.Order+1)
	}
	return n
}

// contents are the elements of a table's sets.
type contents map[string][]nft.Element

func (c contents) empty() bool { return len(c[setOne])+len(c[setAny]) == 0 }

// contents of one family's table. Pure.
func (b book) contents(v6 bool) contents {
	type place struct{ set, key string }
	els := map[place]nft.Element{}
	for _, e := range slices.SortedFunc(maps.Values(b), func(x, y entry) int { return cmp.Compare(x.Order, y.Order) }) {
		i := slices.IndexFunc(e.Addrs, func(a netip.Addr) bool { return a.Is6() == v6 })
		if i < 0 {
			continue
		}
		pod := nft.Addr(e.Addrs[i])
		for _, m := range e.Mappings {
			if m.HostIP.IsValid() && m.HostIP.Is6() != v6 {
				continue
			}
			set, key := setAny, nft.Key(nft.Protocol(m.Protocol), nft.Port(m.HostPort))
			if m.HostIP.IsValid() && !m.HostIP.IsUnspecified() {
				set, key = setOne, nft.Key(nft.Addr(m.HostIP), key)
			}
			els[place{set, string(key)}] = nft.Element{Key: key, Value: nft.Key(pod, nft.Port(m.PodPort))}
			self := nft.Key(pod, pod)
			els[place{setHairpin, string(self)}] = nft.Element{Key: self}
		}
	}
	c := contents{}
	for p, el := range els {
		c[p.set] = append(c[p.set], el)
	}
	return c
}
