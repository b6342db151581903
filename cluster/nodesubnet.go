package cluster

import (
	"errors"
	"net/netip"
)

// nodeRange is where IPv4 subnets of nodes are chosen from, as /24s.
var nodeRange = netip.MustParsePrefix("172.28.0.0/14")

// nodeSubnets chooses subnets for the link of further nodes, one of each family that pods
// have, the first node's primary one first.
func (c *Config) nodeSubnets(taken []claim) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, ip := range c.node().NodeIPs {
		if ip.Is6() {
			out = append(out, c.uniqueLocal())
			continue
		}
		p, ok := freeSubnet(nodeRange, 24, taken)
		if !ok {
			return nil, errors.New("no subnet for further nodes is free in " + nodeRange.String() + ": routes or other clusters have them all")
		}
		out = append(out, p)
	}
	return out, nil
}

// uniqueLocal is a /64 of the cluster's own (RFC 4193: the 40 bits are random, as its id is).
func (c *Config) uniqueLocal() netip.Prefix {
	var a [16]byte
	a[0] = 0xfd
	for i := 0; i < 5 && 2*i+1 < len(c.ID); i++ {
		a[1+i] = unhex(c.ID[2*i])<<4 | unhex(c.ID[2*i+1])
	}
	return netip.PrefixFrom(netip.AddrFrom16(a), 64)
}

func unhex(b byte) byte {
	if b >= 'a' {
		return b - 'a' + 10
	}
	return b - '0'
}

// freeSubnet is the first IPv4 subnet of a size in a range that overlaps nothing taken.
func freeSubnet(within netip.Prefix, bits int, taken []claim) (netip.Prefix, bool) {
	for a := within.Masked().Addr(); within.Contains(a); {
		p := netip.PrefixFrom(a, bits)
		if _, clash := overlapping(p, taken); !clash {
			return p, true
		}
		next := a.As4()
		n := uint32(next[0])<<24 | uint32(next[1])<<16 | uint32(next[2])<<8 | uint32(next[3])
		n += 1 << (32 - bits)
		a = netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	return netip.Prefix{}, false
}
