package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// span is a range of addresses of one family, both ends included.
type span struct{ from, to netip.Addr }

func spanOf(p netip.Prefix) span {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	to, _ := netip.AddrFromSlice(last) // as long as an address is
	return span{p.Addr(), to}
}

// without cuts prefixes out of a block.
func without(block netip.Prefix, except []netip.Prefix) []span {
	left := []span{spanOf(block)}
	for _, e := range except {
		if e.Addr().Is6() != block.Addr().Is6() {
			continue
		}
		cut := spanOf(e)
		var next []span
		for _, s := range left {
			if cut.to.Less(s.from) || s.to.Less(cut.from) {
				next = append(next, s)
				continue
			}
			if s.from.Less(cut.from) {
				next = append(next, span{s.from, cut.from.Prev()})
			}
			if cut.to.Less(s.to) {
				next = append(next, span{cut.to.Next(), s.to})
			}
		}
		left = next
	}
	return left
}

// union sorts spans, IPv4 first, and joins those that touch.
func union(all []span) []span {
	slices.SortFunc(all, func(a, b span) int { return a.from.Compare(b.from) })
	var out []span
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].from.Is6() == s.from.Is6() {
			if end := out[n-1].to.Next(); !end.IsValid() || !end.Less(s.from) {
				if out[n-1].to.Less(s.to) {
					out[n-1].to = s.to
				}
				continue
			}
		}
		out = append(out, s)
	}
	return out
}

// blocks are addresses that a rule allows as such. key says which, canonically.
type blocks struct {
	key   string
	spans []span
}

func blocksOf(all []span) *blocks {
	b := &blocks{spans: union(all)}
	var key strings.Builder
	for _, s := range b.spans {
		key.WriteString(s.from.String() + "-" + s.to.String() + ",")
	}
	b.key = key.String()
	return b
}

// of one family.
func (b *blocks) of(v6 bool) (out []span) {
	for _, s := range b.spans {
		if s.from.Is6() == v6 {
			out = append(out, s)
		}
	}
	return out
}

func (b *blocks) contains(a netip.Addr) bool {
	return slices.ContainsFunc(b.spans, func(s span) bool {
		return s.from.Is6() == a.Is6() && !a.Less(s.from) && !s.to.Less(a)
	})
}

// portSpan is a range of ports of a protocol, both ends included.
type portSpan struct {
	protocol uint8
	from, to uint16
}

// ports are those that a rule allows. key says which, canonically.
type ports struct {
	key   string
	spans []portSpan
}

func portsOf(all []portSpan) *ports {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b portSpan) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.from, b.from))
	})
	p := &ports{}
	for _, s := range all {
		if n := len(p.spans); n > 0 && p.spans[n-1].protocol == s.protocol && int(s.from) <= int(p.spans[n-1].to)+1 {
			p.spans[n-1].to = max(p.spans[n-1].to, s.to)
			continue
		}
		p.spans = append(p.spans, s)
	}
	var key strings.Builder
	for _, s := range p.spans {
		key.WriteString(strconv.Itoa(int(s.protocol)) + ":" + strconv.Itoa(int(s.from)) + "-" + strconv.Itoa(int(s.to)) + ",")
	}
	p.key = key.String()
	return p
}

func (p *ports) contains(protocol uint8, port uint16) bool {
	return slices.ContainsFunc(p.spans, func(s portSpan) bool {
		return s.protocol == protocol && s.from <= port && port <= s.to
	})
}
