package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// Sizes of ranges: a node gets a /24 or a /64 of the pods', as the node-ipam controller gives
// them, and of Services the API server takes the first address and DNS the tenth.
const (
	podMaskV4, podMaskV6         = 24, 64
	maxPodRanges                 = 16 // as bits: 65,536 nodes
	serviceMaskV4, serviceMaskV6 = 28, 124
	minServiceMaskV6             = 64 // as upstream (KEP-1880)
)

// CheckRanges refuses ranges that no cluster can have; where is what the user wrote them
// with, such as --pod-cidr and --service-cidr.
func CheckRanges(podsAt string, pods []netip.Prefix, servicesAt string, services []netip.Prefix) error {
	for _, x := range []struct {
		at   string
		list []netip.Prefix
		size func(netip.Prefix) string
	}{{podsAt, pods, podRangeSize}, {servicesAt, services, serviceRangeSize}} {
		value := x.at + "=" + cidrList(x.list)
		if len(x.list) > 2 || len(x.list) == 2 && x.list[0].Addr().Is6() == x.list[1].Addr().Is6() {
			return fmt.Errorf("%s: give one range, or one of IPv4 and one of IPv6", value)
		}
		for _, p := range x.list {
			if p.Masked() != p {
				return fmt.Errorf("%s: %s has bits beyond its prefix; write %s", value, p, p.Masked())
			}
			if why := x.size(p); why != "" {
				return fmt.Errorf("%s: %s %s", value, p, why)
			}
			if p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() || p.Addr().Is4In6() {
				return fmt.Errorf("%s: %s has no addresses that hosts can have; choose from 10.0.0.0/8 or fd00::/8", value, p)
			}
		}
	}
	for _, p := range pods {
		for _, s := range services {
			if p.Overlaps(s) {
				return fmt.Errorf("%s=%s: %s overlaps %s of %s; choose another", servicesAt, cidrList(services), s, p, podsAt)
			}
		}
	}
	if len(pods) > 0 && len(services) > 0 && !slices.Equal(familiesOf(pods), familiesOf(services)) {
		return fmt.Errorf("%s=%s: families must be those of %s=%s, in the same order", servicesAt, cidrList(services), podsAt, cidrList(pods))
	}
	return nil
}

func podRangeSize(p netip.Prefix) string {
	mask := podMaskV4
	if p.Addr().Is6() {
		mask = podMaskV6
	}
	switch {
	case p.Bits() > mask:
		return fmt.Sprintf("is too small: each node gets a /%d of it; give a /%d or a wider one", mask, mask)
	case mask-p.Bits() > maxPodRanges:
		return fmt.Sprintf("is too large: it has more than %d parts of /%d for nodes; give at most a /%d", 1<<maxPodRanges, mask, mask-maxPodRanges)
	}
	return ""
}

func serviceRangeSize(p netip.Prefix) string {
	most := serviceMaskV4
	if p.Addr().Is6() {
		most = serviceMaskV6
	}
	switch {
	case p.Bits() > most:
		return fmt.Sprintf("is too small for Services: cluster DNS has the tenth address; give a /%d or a wider one", most)
	case p.Addr().Is6() && p.Bits() < minServiceMaskV6:
		return fmt.Sprintf("is too large for Services; give at most a /%d, a /112 will do", minServiceMaskV6)
	}
	return ""
}

// familiesOf tells of each range whether it is of IPv6.
func familiesOf(list []netip.Prefix) []bool {
	var out []bool
	for _, p := range list {
		out = append(out, p.Addr().Is6())
	}
	return out
}

func cidrList(list []netip.Prefix) string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}

// chooseRanges decides the ranges of a new cluster, and which addresses of this host are its
// first node's: one for each family of the ranges. It returns what is taken then.
func (c *Config) chooseRanges(w Wanted, nodeIPs []netip.Addr, taken []claim) ([]claim, error) {
	const pods, services = "--pod-cidr", "--service-cidr"
	if err := CheckRanges(pods, w.PodCIDRs, services, w.ServiceCIDRs); err != nil {
		return nil, err
	}
	families := familiesOf(w.PodCIDRs)
	if len(families) == 0 {
		families = familiesOf(w.ServiceCIDRs)
	}
	if len(families) == 0 {
		families = []bool{c.NodeIPs[0].Is6()}
	}
	for _, x := range []struct {
		flag, what string
		want       []netip.Prefix
		from       []netip.Prefix
		unique     func() netip.Prefix
		out        *[]netip.Prefix
	}{
		{pods, "pod addresses", w.PodCIDRs, podCandidates, func() netip.Prefix { return c.uniqueRange(1, 56) }, &c.PodCIDRs},
		{services, "Service addresses", w.ServiceCIDRs, serviceCandidates, func() netip.Prefix { return c.uniqueRange(2, 112) }, &c.ServiceCIDRs},
	} {
		list := slices.Clone(x.want)
		for i, v6 := range families {
			switch {
			case len(x.want) > 0:
				if t, clash := overlapping(list[i], taken); clash {
					return nil, fmt.Errorf("%s=%s overlaps %s of %s; choose another, or leave it out", x.flag, cidrList(list), t.CIDR, t.Who)
				}
			case v6:
				list = append(list, x.unique())
			default:
				p, err := freeRange(x.what, "choose one with "+x.flag, x.from, taken)
				if err != nil {
					return nil, err
				}
				list = append(list, p)
			}
			taken = append(taken, claim{CIDR: list[i], Who: "this cluster's " + x.what})
		}
		*x.out = list
	}
	return taken, c.chooseNodeIPs(families, nodeIPs)
}

// chooseNodeIPs finds an address of this host for each family, given ones first.
func (c *Config) chooseNodeIPs(families []bool, given []netip.Addr) error {
	c.NodeIPs = nil
	for _, v6 := range families {
		if i := slices.IndexFunc(given, func(a netip.Addr) bool { return a.Is6() == v6 }); i >= 0 {
			c.NodeIPs = append(c.NodeIPs, given[i])
			continue
		}
		a, err := netlink.DefaultAddressOf(v6)
		if err != nil {
			return fmt.Errorf("find this host's address for a cluster with %s: %w, or leave that family out", cidrList(c.PodCIDRs), err)
		}
		c.NodeIPs = append(c.NodeIPs, a)
	}
	for _, a := range c.NodeIPs {
		for _, p := range slices.Concat(c.PodCIDRs, c.ServiceCIDRs) {
			if p.Contains(a) {
				return fmt.Errorf("range %s contains %s, an address of this host; choose another with --pod-cidr or --service-cidr", p, a)
			}
		}
	}
	return nil
}

// setNodeIPs takes addresses that the user gave, in the order of the cluster's families.
func (c *Config) setNodeIPs(given []netip.Addr) error {
	families := familiesOf(c.PodCIDRs)
	for i, a := range given {
		if !slices.Contains(families, a.Is6()) {
			return fmt.Errorf("--node-ip=%s: %s is of a family that the cluster's pods (%s) have not; leave it out", strings.Join(addressStrings(given), ","), a, cidrList(c.PodCIDRs))
		}
		if slices.ContainsFunc(given[:i], func(o netip.Addr) bool { return o.Is6() == a.Is6() }) {
			return fmt.Errorf("--node-ip=%s: give one address of each family", strings.Join(addressStrings(given), ","))
		}
	}
	return c.chooseNodeIPs(families, given)
}

// uniqueRange is a range of the cluster's own of IPv6 (RFC 4193), told from its others by n.
func (c *Config) uniqueRange(n byte, bits int) netip.Prefix {
	a := c.uniqueLocal().Addr().As16()
	a[6] = n
	return netip.PrefixFrom(netip.AddrFrom16(a), bits)
}
