package baremetal

import (
	"fmt"
	"iter"
	"net/netip"
	"strings"
)

// Span is a run of addresses, the last one included.
type Span struct{ First, Last netip.Addr }

func (s Span) String() string {
	if s.First == s.Last {
		return s.First.String()
	}
	return s.First.String() + "-" + s.Last.String()
}

// Contains tells whether an address is in the span.
func (s Span) Contains(a netip.Addr) bool {
	return a.Is6() == s.First.Is6() && s.First.Compare(a) <= 0 && a.Compare(s.Last) <= 0
}

// ParseSpan reads a CIDR, a range FIRST-LAST or an address. Of a CIDR what cannot be a host's is
// left out: the network's own address and, with IPv4, the broadcast address. A range is taken as
// it is.
func ParseSpan(text string) (Span, error) {
	if first, last, ok := strings.Cut(text, "-"); ok {
		a, err := hostAddress(first)
		if err != nil {
			return Span{}, err
		}
		b, err := hostAddress(last)
		if err != nil {
			return Span{}, err
		}
		if a.Is6() != b.Is6() {
			return Span{}, fmt.Errorf("%s: %s and %s are of different families", text, a, b)
		}
		if b.Less(a) {
			return Span{}, fmt.Errorf("%s: %s comes before %s", text, b, a)
		}
		return Span{a, b}, nil
	}
	if !strings.Contains(text, "/") {
		a, err := hostAddress(text)
		return Span{a, a}, err
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return Span{}, fmt.Errorf("%q is no CIDR such as 192.168.1.240/28, nor a range FIRST-LAST", text)
	}
	if p != p.Masked() {
		return Span{}, fmt.Errorf("%s has bits beyond its prefix; write %s, or a range FIRST-LAST", text, p.Masked())
	}
	s := Span{p.Addr(), lastOf(p)}
	hostBits := p.Addr().BitLen() - p.Bits()
	if hostBits >= 2 {
		s.First = s.First.Next()
		if p.Addr().Is4() {
			s.Last = s.Last.Prev()
		}
	}
	if _, err := hostAddress(s.First.String()); err != nil {
		return Span{}, err
	}
	return s, nil
}

func hostAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.TrimSpace(text))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is no address such as 192.168.1.240", text)
	}
	if a = a.Unmap(); a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%s can be no load balancer's address", a)
	}
	return a, nil
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// pool is a named set of spans.
type pool struct {
	name      string
	onRequest bool
	spans     []Span
}

func (p pool) contains(a netip.Addr) bool {
	for _, s := range p.spans {
		if s.Contains(a) {
			return true
		}
	}
	return false
}

func (p pool) overlaps(s Span) (Span, bool) {
	for _, o := range p.spans {
		if o.Contains(s.First) || s.Contains(o.First) {
			return o, true
		}
	}
	return Span{}, false
}

// all are the addresses of a family, in order.
func (p pool) all(v6 bool) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, s := range p.spans {
			if s.First.Is6() != v6 {
				continue
			}
			for a := s.First; s.Contains(a); a = a.Next() {
				if !yield(a) {
					return
				}
			}
		}
	}
}
