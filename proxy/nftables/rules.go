package nftables

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/skiff-k8s/skiff/host/nft"
)

// The sets and maps of the table. A Service is elements of them, never rules of its own. A
// front is an address, protocol and port that Services are reached at; a node port's front
// has no address, and maps of its own with names that begin with np-.
//
//	services    front            → lb-N… | split    who answers; node ports: nodeports
//	short, near front            → lb-N… | lo-N…    a Local external policy: endpoints for traffic that
//	                                                begins here, and for that of others
//	absent      front            → refuse | drop    fronts without endpoints
//	lb-N        random N . front → address . port   the endpoints of all fronts that have N
//	lo-N        random N . front → address . port   those of a Local policy
//	affine      saddr . front    → address . port   clients that stay with their endpoint
//	cluster-ips address                             of all Services
//	guarded     front                               reached by some sources only:
//	admitted    front . saddr                       these
//	hairpin     saddr . daddr                       an endpoint that reaches itself through a Service
//	primary     address                             node ports are open at, where only at the node's own
const (
	setServices   = "services"
	setShort      = "short"
	setNear       = "near"
	setAbsent     = "absent"
	setAffine     = "affine"
	setClusterIPs = "cluster-ips"
	setGuarded    = "guarded"
	setAdmitted   = "admitted"
	setHairpin    = "hairpin"
	setPrimary    = "primary"

	nodePorts = "np-" // prefix of what is of node ports

	chainRefuse = "refuse"
	chainSplit  = "split"
	drop        = "drop"
)

var (
	frontKey    = []nft.Field{nft.Daddr, nft.Proto, nft.Dport}
	nodePortKey = []nft.Field{nft.Proto, nft.Dport}
	endpoint    = []nft.Field{nft.Daddr, nft.Dport}
)

// plane is the maps of fronts with an address, or those of node ports.
type plane struct {
	prefix string
	key    []nft.Field
}

var planes = []plane{{"", frontKey}, {nodePorts, nodePortKey}}

func planeOf(nodePort bool) plane {
	if nodePort {
		return planes[1]
	}
	return planes[0]
}

func (p plane) sets() []nft.Set {
	return []nft.Set{
		{Name: p.prefix + setServices, Key: p.key, Verdicts: true},
		{Name: p.prefix + setShort, Key: p.key, Verdicts: true},
		{Name: p.prefix + setNear, Key: p.key, Verdicts: true},
		{Name: p.prefix + setAbsent, Key: p.key, Verdicts: true},
		{Name: p.prefix + setAffine, Key: p.affineKey(), Value: endpoint, Timeout: true},
	}
}

func (p plane) affineKey() []nft.Field { return append([]nft.Field{nft.Saddr}, p.key...) }

func (p plane) look(set string) nft.VerdictMap {
	return nft.VerdictMap{Key: p.key, Map: p.prefix + set}
}

func baseSets() []nft.Set {
	sets := []nft.Set{
		{Name: setClusterIPs, Key: []nft.Field{nft.Daddr}},
		{Name: setGuarded, Key: frontKey},
		{Name: setAdmitted, Key: append(frontKey[:3:3], nft.Saddr), Interval: true},
		{Name: setHairpin, Key: []nft.Field{nft.Saddr, nft.Daddr}},
		{Name: setPrimary, Key: []nft.Field{nft.Daddr}},
	}
	for _, p := range planes {
		sets = append(sets, p.sets()...)
	}
	return sets
}

// scene is what the rules, which do not depend on Services, depend on.
type scene struct {
	v6           bool
	services     []netip.Prefix // cluster IPs are of these
	pods         netip.Prefix   // not valid: traffic of pods is not told from others'
	nodePorts    Where
	masqueradeBy uint32 // bit of the mark
	masqueradeIn bool   // all traffic to cluster IPs
}

var (
	local = nft.Equal{Field: nft.DaddrType, Value: nft.AddrTypeLocal}
	// begun is what has been told apart already: only the first packet of a flow is judged.
	begun = nft.Equal{Field: nft.CtState, Mask: nft.CtNew, Value: nft.CtNew}
	dnat  = nft.Equal{Field: nft.CtStatus, Mask: nft.CtDNAT, Value: nft.CtDNAT}
)

func (s *scene) loopback() nft.InPrefix {
	if s.v6 {
		return nft.InPrefix{Field: nft.Daddr, Prefix: netip.MustParsePrefix("::1/128"), Not: true}
	}
	return nft.InPrefix{Field: nft.Daddr, Prefix: netip.MustParsePrefix("127.0.0.0/8"), Not: true}
}

// atNodePorts are rules that do something with traffic to addresses where node ports are open.
// Loopback is none of them: what is sent from there can not leave the node.
func (s *scene) atNodePorts(do nft.Statement) (rules []nft.Rule) {
	if s.nodePorts.Everywhere(s.v6) {
		return []nft.Rule{{local, s.loopback(), do}}
	}
	for _, p := range s.nodePorts.Prefixes(s.v6) {
		rules = append(rules, nft.Rule{nft.InPrefix{Field: nft.Daddr, Prefix: p}, local, s.loopback(), do})
	}
	if s.nodePorts.Primary {
		rules = append(rules, nft.Rule{nft.InSet{Key: []nft.Field{nft.Daddr}, Set: setPrimary}, do})
	}
	return rules
}

// Priorities as the kernel names them: dstnat -100, filter 0, srcnat 100.
func (s *scene) chains() []nft.Chain {
	hook := func(kind, point string, prio int32) *nft.Hook {
		return &nft.Hook{Type: kind, Point: point, Priority: prio}
	}
	mark := nft.OrMark{Bits: s.masqueradeBy}
	toClusterIP := nft.InSet{Key: []nft.Field{nft.Daddr}, Set: setClusterIPs}
	byName, byPort := planes[0], planes[1]

	var translate []nft.Rule
	switch {
	case s.masqueradeIn:
		translate = append(translate, nft.Rule{toClusterIP, mark})
	case s.pods.IsValid():
		// Whoever routes the service range to a node from outside gets his answers from there.
		translate = append(translate, nft.Rule{nft.InPrefix{Field: nft.Saddr, Prefix: s.pods, Not: true}, toClusterIP, mark})
	}
	translate = append(append(translate, nft.Rule{byName.look(setServices)}), s.atNodePorts(byPort.look(setServices))...)

	// A Service's port without endpoints, another port of its address, an address of no Service.
	absent := nft.Rule{begun, byName.look(setAbsent)}
	unknown := []nft.Rule{absent, {begun, toClusterIP, nft.Reject{}}}
	for _, p := range s.services {
		unknown = append(unknown, nft.Rule{begun, nft.InPrefix{Field: nft.Daddr, Prefix: p}, nft.Drop{}})
	}
	guard := []nft.Rule{{begun, nft.InSet{Key: frontKey, Set: setGuarded},
		nft.InSet{Key: append(frontKey[:3:3], nft.Saddr), Set: setAdmitted, Not: true}, nft.Drop{}}}
	input := []nft.Rule{absent}
	for _, r := range s.atNodePorts(byPort.look(setAbsent)) {
		input = append(input, append(nft.Rule{begun}, r...))
	}
	chains := []nft.Chain{
		{Name: chainRefuse, Rules: []nft.Rule{{nft.Reject{}}}},
		{Name: "translate", Rules: translate},
		{Name: "guard-prerouting", Hook: hook("filter", "prerouting", -110), Rules: guard},
		{Name: "guard-output", Hook: hook("filter", "output", -110), Rules: guard},
		{Name: "prerouting", Hook: hook("nat", "prerouting", -100), Rules: []nft.Rule{{nft.Jump{Chain: "translate"}}}},
		{Name: "output", Hook: hook("nat", "output", -100), Rules: []nft.Rule{{nft.Jump{Chain: "translate"}}}},
		{Name: "postrouting", Hook: hook("nat", "postrouting", 100), Rules: []nft.Rule{
			{nft.Equal{Field: nft.Mark, Mask: s.masqueradeBy, Value: s.masqueradeBy}, nft.ClearMark{Bits: s.masqueradeBy}, nft.Masquerade{}},
			{dnat, nft.InSet{Key: []nft.Field{nft.Saddr, nft.Daddr}, Set: setHairpin}, nft.Masquerade{}},
		}},
		{Name: "refuse-input", Hook: hook("filter", "input", 0), Rules: input},
		{Name: "refuse-forward", Hook: hook("filter", "forward", 0), Rules: unknown},
		{Name: "refuse-output", Hook: hook("filter", "output", 0), Rules: unknown},
	}
	for _, p := range planes {
		chains = append(chains, s.split(p, mark))
	}
	return chains
}

// split parts traffic to a front with a Local external policy. What begins on this node is
// not bound by the policy, as if it had gone out to a balancer and come back; the node's own
// has the front's address as its source, which answers would not find back to.
func (s *scene) split(p plane, mark nft.Statement) nft.Chain {
	var rules []nft.Rule
	if s.pods.IsValid() {
		rules = append(rules, nft.Rule{nft.InPrefix{Field: nft.Saddr, Prefix: s.pods}, p.look(setShort)})
	}
	own := nft.Equal{Field: nft.SaddrType, Value: nft.AddrTypeLocal}
	return nft.Chain{Name: p.prefix + chainSplit, Rules: append(rules,
		nft.Rule{own, mark}, nft.Rule{own, p.look(setShort)}, nft.Rule{p.look(setNear)})}
}

// balancer is the map and chain that spread traffic over n endpoints.
type balancer struct {
	nodePort, local, masquerade bool
	n                           int
	affinity                    time.Duration
}

// names of a balancer; made once, for they are many fronts'.
type names struct{ set, chain string }

func (b balancer) names() names {
	kind := "lb"
	if b.local {
		kind = "lo"
	}
	set := fmt.Sprintf("%s%s-%d", planeOf(b.nodePort).prefix, kind, b.n)
	chain := set
	if b.affinity > 0 {
		chain += fmt.Sprintf("-%ds", int(b.affinity/time.Second))
	}
	if b.masquerade {
		chain += "-masq"
	}
	return names{set, chain}
}

func (b balancer) key() []nft.Field {
	return append([]nft.Field{nft.Random(uint32(b.n))}, planeOf(b.nodePort).key...)
}

func (b balancer) set(name string) nft.Set {
	return nft.Set{Name: name, Key: b.key(), Value: endpoint}
}

func (b balancer) chain(n names, mark uint32) nft.Chain {
	var rules []nft.Rule
	if b.masquerade {
		rules = append(rules, nft.Rule{nft.OrMark{Bits: mark}})
	}
	choose := nft.DNATMap{Key: b.key(), Map: n.set}
	if b.affinity == 0 {
		return nft.Chain{Name: n.chain, Rules: append(rules, nft.Rule{choose})}
	}
	p := planeOf(b.nodePort)
	stay := nft.DNATMap{Key: p.affineKey(), Map: p.prefix + setAffine}
	for _, d := range []*nft.DNATMap{&stay, &choose} {
		d.Remember, d.RememberKey, d.RememberFor = p.prefix+setAffine, p.affineKey(), b.affinity
	}
	return nft.Chain{Name: n.chain, Rules: append(rules, nft.Rule{stay}, nft.Rule{choose})}
}
