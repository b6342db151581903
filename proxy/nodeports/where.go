// Package nodeports says at which of the node's addresses node ports are open.
//
// Owns: what --nodeport-addresses means. Must not: know how a backend has it.
package nodeports

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Where says at which of the node's addresses node ports are open. The zero Where is at all.
type Where struct {
	// Primary are the addresses of the Node object, which Backend.SetPrimary tells.
	Primary bool
	// CIDRs of others.
	CIDRs []netip.Prefix
}

// Parse reads a list of CIDRs and of the keywords all, primary and localhost, as
// upstream's --nodeport-addresses has them.
func Parse(list []string) (Where, error) {
	var w Where
	for _, s := range list {
		switch s {
		case "all":
			w.CIDRs = append(w.CIDRs, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		case "primary":
			w.Primary = true
		case "localhost":
			w.CIDRs = append(w.CIDRs, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
		default:
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return Where{}, fmt.Errorf("%q is neither a CIDR nor one of all, primary and localhost", s)
			}
			w.CIDRs = append(w.CIDRs, p.Masked())
		}
	}
	return w, nil
}

// Prefixes are the CIDRs of a family.
func (w Where) Prefixes(v6 bool) (out []netip.Prefix) {
	for _, p := range w.CIDRs {
		if p.Addr().Is6() == v6 {
			out = append(out, p)
		}
	}
	return out
}

// Everywhere: nothing is said for the family, or all of it.
func (w Where) Everywhere(v6 bool) bool {
	mine := w.Prefixes(v6)
	return !w.Primary && len(mine) == 0 || slices.ContainsFunc(mine, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// Addresses are those of this host's that are meant.
func (w Where) Addresses(v6 bool, primary []netip.Addr) (out []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue // not of the kinds that there are on Linux
		}
		ip := p.Addr().Unmap()
		in := w.Primary && slices.Contains(primary, ip) ||
			slices.ContainsFunc(w.Prefixes(v6), func(p netip.Prefix) bool { return p.Contains(ip) })
		if in && ip.Is6() == v6 {
			out = append(out, ip)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no address of this host is among those of --nodeport-addresses")
	}
	return out, nil
}
