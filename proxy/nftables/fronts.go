package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/skiff-k8s/skiff/host/nft"
	"github.com/skiff-k8s/skiff/proxy"
)

// front is where Services are reached: an address, or none for a node port.
type front struct {
	addr     [16]byte
	port     uint16
	proto    uint8
	nodePort bool
}

// kind is what a port has a front for; the lower wins where two ports claim one.
type kind uint8

const (
	clusterIP kind = iota
	loadBalancer
	externalIP
	nodePort
)

// claim is a port's on a front.
type claim struct {
	port *proxy.Port
	kind kind
}

// before orders claims: the same one wins in whatever order they come.
func (c claim) before(d claim) bool {
	if c.kind != d.kind {
		return c.kind < d.kind
	}
	return strings.Compare(c.port.Name, d.port.Name) < 0
}

// claims calls f with all that a port claims.
func claims(p *proxy.Port, f func(front, claim)) {
	at := func(a netip.Addr, k kind) {
		f(front{addr: a.As16(), port: p.Port, proto: p.Protocol}, claim{p, k})
	}
	at(p.ClusterIP, clusterIP)
	for _, a := range p.LoadBalancerIPs {
		at(a, loadBalancer)
	}
	for _, a := range p.ExternalIPs {
		at(a, externalIP)
	}
	if p.NodePort != 0 {
		f(front{port: p.NodePort, proto: p.Protocol, nodePort: true}, claim{p, nodePort})
	}
}

// key appends a front as it is in keys.
func (f *front) key(b []byte, v6 bool) []byte {
	switch {
	case f.nodePort:
	case v6:
		b = append(b, f.addr[:]...)
	default:
		b = append(b, f.addr[12:]...)
	}
	return append(b, f.proto, 0, 0, 0, byte(f.port>>8), byte(f.port), 0, 0)
}

func addr(b []byte, a netip.Addr, v6 bool) []byte {
	if v6 {
		n := a.As16()
		return append(b, n[:]...)
	}
	n := a.As4()
	return append(b, n[:]...)
}

func endpointValue(b []byte, e netip.AddrPort, v6 bool) []byte {
	return append(addr(b, e.Addr(), v6), byte(e.Port()>>8), byte(e.Port()), 0, 0)
}

// endpointOf reads such a value.
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

// emitter turns claims into elements. Its buffers are used again: what put gets must be
// copied by whoever keeps it.
type emitter struct {
	v6 bool
	// node is the node's addresses.
	node []netip.Addr
	// named returns the names of a balancer's map and chain, which are made if need be.
	named           func(balancer) names
	put             func(set string, el *nft.Element)
	front, key, end []byte
	value           []byte
}

func (e *emitter) goTo(set, chain string) {
	e.put(set, &nft.Element{Key: e.front, Goto: chain})
}

// emit puts all elements of a front that a claim has won, and of nothing else.
func (e *emitter) emit(f front, c claim) {
	p := c.port
	e.front = f.key(e.front[:0], e.v6)
	pl := planeOf(f.nodePort)
	if c.kind == clusterIP {
		if eps := p.Internal(); len(eps) > 0 {
			e.goTo(setServices, e.spread(balancer{local: p.InternalLocal, n: len(eps), affinity: p.Affinity}, eps))
			return
		}
		e.absent(pl, p.Endpoints)
		return
	}
	if c.kind == loadBalancer {
		e.guard(p)
	}
	if !p.Endpoints {
		e.absent(pl, false)
		return
	}
	b := balancer{nodePort: f.nodePort, affinity: p.Affinity}
	if !p.ExternalLocal {
		b.n, b.masquerade = len(p.Cluster), true
		e.goTo(pl.prefix+setServices, e.spread(b, p.Cluster))
		return
	}
	e.goTo(pl.prefix+setServices, pl.prefix+chainSplit)
	if b.n = len(p.Cluster); b.n > 0 {
		e.goTo(pl.prefix+setShort, e.spread(b, p.Cluster))
	}
	if b.n, b.local = len(p.Local), true; b.n > 0 {
		e.goTo(pl.prefix+setNear, e.spread(b, p.Local))
		return
	}
	e.absent(pl, true)
}

// absent: a policy that finds nothing on this node drops, for a balancer is to try another;
// what has no endpoints anywhere says so.
func (e *emitter) absent(pl plane, elsewhere bool) {
	if elsewhere {
		e.goTo(pl.prefix+setAbsent, drop)
		return
	}
	e.goTo(pl.prefix+setAbsent, chainRefuse)
}

func (e *emitter) spread(b balancer, eps []netip.AddrPort) (chain string) {
	n := e.named(b)
	for i, ep := range eps {
		e.key = append(binary.NativeEndian.AppendUint32(e.key[:0], uint32(i)), e.front...)
		e.value = endpointValue(e.value[:0], ep, e.v6)
		e.put(n.set, &nft.Element{Key: e.key, Value: e.value})
	}
	return n.chain
}

// guard admits a load balancer's sources alone.
func (e *emitter) guard(p *proxy.Port) {
	if len(p.Sources) == 0 {
		return
	}
	e.put(setGuarded, &nft.Element{Key: e.front})
	from := func(s netip.Prefix) {
		e.key = addr(append(e.key[:0], e.front...), s.Addr(), e.v6)
		e.end = addr(append(e.end[:0], e.front...), lastOf(s), e.v6)
		e.put(setAdmitted, &nft.Element{Key: e.key, KeyEnd: e.end})
	}
	admitted := func(a netip.Addr) bool {
		return slices.ContainsFunc(p.Sources, func(s netip.Prefix) bool { return s.Contains(a) })
	}
	for _, s := range p.Sources {
		from(s)
	}
	if !slices.ContainsFunc(e.node, admitted) {
		return
	}
	// A balancer's address that the node has is the source of what the node itself sends there.
	for _, a := range p.LoadBalancerIPs {
		if !admitted(a) {
			from(netip.PrefixFrom(a, a.BitLen()))
		}
	}
}

// lastOf is the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := range b {
		for bit := range 8 {
			if i*8+bit >= p.Bits() {
				b[i] |= 0x80 >> bit
			}
		}
	}
	a, _ := netip.AddrFromSlice(b) // its length is an address's
	return a
}
