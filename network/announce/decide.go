package announce

import (
	"errors"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// wanted are the addresses of Services that name the node. A Service that names none (somebody has
// replaced the object) stays where it is until it does.
func wanted(services []*corev1.Service, node, annotation string, own map[netip.Addr]int) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, s := range services {
		who, named := s.Annotations[annotation]
		for _, in := range s.Status.LoadBalancer.Ingress {
			a, err := netip.ParseAddr(in.IP)
			if err != nil || in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
				continue
			}
			a = a.Unmap()
			_, here := own[a]
			if who == node || !named && here {
				out[a] = true
			}
		}
	}
	return out
}

// place is the link that an address goes to: the one with the longest prefix that it is in, else the
// one that has the node's own address of its family. Loopback and links of pods never.
func place(links []netlink.Link, a netip.Addr, nodeIPs []netip.Addr, podLink string) (string, error) {
	best, bits, carrier := "", -1, ""
	for _, l := range links {
		if !l.Up || !l.Neighbours || l.Name == podLink {
			continue
		}
		for _, p := range l.Addresses {
			if !p.IsSingleIP() && p.Contains(a) && p.Bits() > bits {
				best, bits = l.Name, p.Bits()
			}
			if p.Addr().Is6() == a.Is6() && slices.Contains(nodeIPs, p.Addr()) {
				carrier = l.Name
			}
		}
	}
	if best == "" {
		best = carrier
	}
	if best == "" {
		return "", errors.New("no link of this node is up that has it in its prefix or has the node's address of its family")
	}
	return best, nil
}

func has(links []netlink.Link, a netip.Addr) bool {
	return slices.ContainsFunc(links, func(l netlink.Link) bool {
		return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}
