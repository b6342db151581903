package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/skiff-k8s/skiff/host/nft"
	"github.com/skiff-k8s/skiff/proxy"
)

// The sets and maps of the table. A Service is elements of them, never rules of its own:
//
//	services   daddr . proto . dport           → lb-N | lb-N-T    who answers a cluster, external or LB address
//	nodeports  proto . dport                   → np-N | np-N-T
//	lb-N       random N . daddr . proto . dport → address . port  the endpoints of all ports that have N
//	np-N       random N . proto . dport         → address . port
//	affine     saddr . daddr . proto . dport    → address . port  clients that stay with their endpoint
//	np-affine  saddr . proto . dport            → address . port
//	external, np-masq                           traffic whose source must become this node's
//	refused, np-refused                         ports without endpoints
//	hairpin    saddr . daddr                    an endpoint that reaches itself through a Service
const (
	setServices  = "services"
	setNodePorts = "nodeports"
	setAffine    = "affine"
	setNPAffine  = "np-affine"
	setExternal  = "external"
	setNPMasq    = "np-masq"
	setRefused   = "refused"
	setNPRefused = "np-refused"
	setHairpin   = "hairpin"
)

// masqueradeMark is the bit that kube-proxy uses too (--iptables-masquerade-bit 14).
const masqueradeMark = 1 << 14

var (
	addressKey = []nft.Field{nft.Daddr, nft.Proto, nft.Dport}
	portKey    = []nft.Field{nft.Proto, nft.Dport}
	affineKey  = []nft.Field{nft.Saddr, nft.Daddr, nft.Proto, nft.Dport}
	npAffKey   = []nft.Field{nft.Saddr, nft.Proto, nft.Dport}
	endpoint   = []nft.Field{nft.Daddr, nft.Dport}
)

func baseSets() []nft.Set {
	return []nft.Set{
		{Name: setServices, Key: addressKey, Verdicts: true},
		{Name: setNodePorts, Key: portKey, Verdicts: true},
		{Name: setAffine, Key: affineKey, Value: endpoint, Timeout: true},
		{Name: setNPAffine, Key: npAffKey, Value: endpoint, Timeout: true},
		{Name: setExternal, Key: addressKey},
		{Name: setNPMasq, Key: portKey},
		{Name: setRefused, Key: addressKey},
		{Name: setNPRefused, Key: portKey},
		{Name: setHairpin, Key: []nft.Field{nft.Saddr, nft.Daddr}},
	}
}

// Priorities as the kernel names them: dstnat -100, filter 0, srcnat 100.
func baseChains(serviceCIDR, podCIDR netip.Prefix, loopback netip.Prefix) []nft.Chain {
	local := nft.Equal{Field: nft.DaddrType, Value: nft.AddrTypeLocal}
	notLoopback := nft.InPrefix{Field: nft.Daddr, Prefix: loopback, Not: true}
	hook := func(kind, point string, prio int32) *nft.Hook {
		return &nft.Hook{Type: kind, Point: point, Priority: prio}
	}
	refuse := []nft.Rule{
		{nft.InSet{Key: addressKey, Set: setRefused}, nft.Reject{}},
	}
	unknown := refuse
	if serviceCIDR.IsValid() {
		// An address of the service range that no Service has leads nowhere: say so at once.
		unknown = append(unknown[:1:1], nft.Rule{
			nft.InPrefix{Field: nft.Daddr, Prefix: serviceCIDR},
			nft.Equal{Field: nft.CtStatus, Mask: nft.CtDNAT, Value: 0}, nft.Reject{}})
	}
	post := []nft.Rule{
		{nft.Equal{Field: nft.Mark, Mask: masqueradeMark, Value: masqueradeMark}, nft.ClearMark{Bits: masqueradeMark}, nft.Masquerade{}},
		{nft.Equal{Field: nft.CtStatus, Mask: nft.CtDNAT, Value: nft.CtDNAT}, nft.InSet{Key: []nft.Field{nft.Saddr, nft.Daddr}, Set: setHairpin}, nft.Masquerade{}},
	}
	if serviceCIDR.IsValid() && podCIDR.IsValid() {
		post = append(post, nft.Rule{
			nft.Equal{Field: nft.CtStatus, Mask: nft.CtDNAT, Value: nft.CtDNAT},
			nft.InPrefix{Field: nft.OrigDaddr, Prefix: serviceCIDR},
			nft.InPrefix{Field: nft.Saddr, Prefix: podCIDR, Not: true}, nft.Masquerade{}})
	}
	return []nft.Chain{
		{Name: "translate", Rules: []nft.Rule{
			{nft.InSet{Key: addressKey, Set: setExternal}, nft.OrMark{Bits: masqueradeMark}},
			{nft.VerdictMap{Key: addressKey, Map: setServices}},
			{local, notLoopback, nft.InSet{Key: portKey, Set: setNPMasq}, nft.OrMark{Bits: masqueradeMark}},
			{local, notLoopback, nft.VerdictMap{Key: portKey, Map: setNodePorts}},
		}},
		{Name: "prerouting", Hook: hook("nat", "prerouting", -100), Rules: []nft.Rule{{nft.Jump{Chain: "translate"}}}},
		{Name: "output", Hook: hook("nat", "output", -100), Rules: []nft.Rule{{nft.Jump{Chain: "translate"}}}},
		{Name: "postrouting", Hook: hook("nat", "postrouting", 100), Rules: post},
		{Name: "refuse-input", Hook: hook("filter", "input", 0), Rules: append(refuse[:1:1],
			nft.Rule{local, nft.InSet{Key: portKey, Set: setNPRefused}, nft.Reject{}})},
		{Name: "refuse-forward", Hook: hook("filter", "forward", 0), Rules: unknown},
		{Name: "refuse-output", Hook: hook("filter", "output", 0), Rules: unknown},
	}
}

// balancer is the map and chain that spread traffic over n endpoints.
type balancer struct {
	nodePort bool
	n        int
	affinity time.Duration
}

func (b balancer) mapName() string {
	if b.nodePort {
		return fmt.Sprintf("np-%d", b.n)
	}
	return fmt.Sprintf("lb-%d", b.n)
}

func (b balancer) chainName() string {
	if b.affinity == 0 {
		return b.mapName()
	}
	return fmt.Sprintf("%s-%ds", b.mapName(), int(b.affinity/time.Second))
}

func (b balancer) key() []nft.Field {
	k := addressKey
	if b.nodePort {
		k = portKey
	}
	return append([]nft.Field{nft.Random(uint32(b.n))}, k...)
}

func (b balancer) set() nft.Set { return nft.Set{Name: b.mapName(), Key: b.key(), Value: endpoint} }

func (b balancer) chain() nft.Chain {
	choose := nft.DNATMap{Key: b.key(), Map: b.mapName()}
	if b.affinity == 0 {
		return nft.Chain{Name: b.chainName(), Rules: []nft.Rule{{choose}}}
	}
	memory, key := setAffine, affineKey
	if b.nodePort {
		memory, key = setNPAffine, npAffKey
	}
	stay := nft.DNATMap{Key: key, Map: memory}
	for _, d := range []*nft.DNATMap{&stay, &choose} {
		d.Remember, d.RememberKey, d.RememberFor = memory, key, b.affinity
	}
	return nft.Chain{Name: b.chainName(), Rules: []nft.Rule{{stay}, {choose}}}
}

// item is one element that a port wants in a set.
type item struct {
	set string
	el  nft.Element
}

// items are all elements of a port in one family, and the balancers they need. Pure.
func items(p *proxy.Port, v6 bool) (out []item, need []balancer) {
	mine := func(a netip.Addr) bool { return a.Is6() == v6 }
	pick := func(all []netip.AddrPort) []netip.AddrPort {
		var eps []netip.AddrPort
		for _, e := range all {
			if mine(e.Addr()) {
				eps = append(eps, e)
			}
		}
		return eps
	}
	add := func(set, chain string, key []byte, value []byte) {
		out = append(out, item{set, nft.Element{Key: key, Value: value, Goto: chain}})
	}
	spread := func(b balancer, key []byte, eps []netip.AddrPort) {
		need = append(need, b)
		for i, e := range eps {
			add(b.mapName(), "", nft.Key(nft.Number(uint32(i)), key), nft.Key(nft.Addr(e.Addr()), nft.Port(e.Port())))
			add(setHairpin, "", nft.Key(nft.Addr(e.Addr()), nft.Addr(e.Addr())), nil)
		}
	}
	protoPort := func(port uint16) []byte { return nft.Key(nft.Protocol(p.Protocol), nft.Port(port)) }
	address := func(a netip.Addr, eps []netip.AddrPort, local bool) {
		key := nft.Key(nft.Addr(a), protoPort(p.Port))
		switch {
		case len(eps) > 0:
			b := balancer{n: len(eps), affinity: p.Affinity}
			add(setServices, b.chainName(), key, nil)
			spread(b, key, eps)
		case local:
			add(setServices, "drop", key, nil)
		default:
			add(setRefused, "", key, nil)
		}
	}
	internal, external := pick(p.Internal), pick(p.External)
	for _, a := range p.ClusterIPs {
		if mine(a) {
			address(a, internal, false)
		}
	}
	for _, a := range p.Externals {
		if mine(a) {
			address(a, external, p.KeepSource)
			if !p.KeepSource {
				add(setExternal, "", nft.Key(nft.Addr(a), protoPort(p.Port)), nil)
			}
		}
	}
	if p.NodePort == 0 {
		return out, need
	}
	key := protoPort(p.NodePort)
	switch {
	case len(external) > 0:
		b := balancer{nodePort: true, n: len(external), affinity: p.Affinity}
		add(setNodePorts, b.chainName(), key, nil)
		spread(b, key, external)
		if !p.KeepSource {
			add(setNPMasq, "", key, nil)
		}
	case p.KeepSource:
		add(setNodePorts, "drop", key, nil)
	default:
		add(setNPRefused, "", key, nil)
	}
	return out, need
}

// endpointOf reads the value of an affinity element.
func endpointOf(value []byte, v6 bool) (netip.AddrPort, bool) {
	n := 4
	if v6 {
		n = 16
	}
	if len(value) < n+2 {
		return netip.AddrPort{}, false
	}
	a, ok := netip.AddrFromSlice(value[:n])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(value[n:])), ok
}
