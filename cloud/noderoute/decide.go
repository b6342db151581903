package noderoute

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// wanted is a route to be made.
type wanted struct {
	node  *corev1.Node
	route *cloudprovider.Route
}

// plan is what is to be done.
type plan struct {
	take []*cloudprovider.Route
	make []wanted
	// told are the nodes whose condition is ours: those with pod CIDRs, and those without that have a route.
	told []*corev1.Node
}

// decide compares the provider's routes with the nodes. Of routes outside of all cluster CIDRs
// others take care.
func decide(nodes []*corev1.Node, have []*cloudprovider.Route, clusterCIDRs []netip.Prefix) plan {
	var p plan
	byNode := map[types.NodeName][]*cloudprovider.Route{}
	for _, r := range have {
		if r.TargetNode != "" {
			byNode[r.TargetNode] = append(byNode[r.TargetNode], r)
		}
	}
	// stay are the routes that are as they should be.
	stay := map[*cloudprovider.Route]bool{}
	for _, n := range nodes {
		own := byNode[types.NodeName(n.Name)]
		if len(n.Spec.PodCIDRs) == 0 && len(own) == 0 {
			continue
		}
		p.told = append(p.told, n)
		for _, cidr := range n.Spec.PodCIDRs {
			// The first that leads to the CIDR counts.
			i := slices.IndexFunc(own, func(r *cloudprovider.Route) bool { return r.DestinationCIDR == cidr })
			if i >= 0 && (!own[i].EnableNodeAddresses || sameAddresses(own[i].TargetNodeAddresses, n.Status.Addresses)) {
				for _, r := range own {
					stay[r] = stay[r] || r.DestinationCIDR == cidr
				}
				continue
			}
			p.make = append(p.make, wanted{n, &cloudprovider.Route{TargetNode: types.NodeName(n.Name),
				TargetNodeAddresses: n.Status.Addresses, DestinationCIDR: cidr}})
		}
	}
	for _, r := range have {
		if (r.Blackhole || !stay[r]) && within(r.DestinationCIDR, clusterCIDRs) {
			p.take = append(p.take, r)
		}
	}
	return p
}

// within tells whether a route's first or last address is in one of the CIDRs.
func within(text string, cidrs []netip.Prefix) bool {
	dst, err := netip.ParsePrefix(text)
	if err != nil {
		return false
	}
	first, last := dst.Masked().Addr(), lastOf(dst)
	return slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(first) || c.Contains(last) })
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func sameAddresses(a, b []corev1.NodeAddress) bool {
	if len(a) != len(b) {
		return false
	}
	return !slices.ContainsFunc(a, func(x corev1.NodeAddress) bool { return !slices.Contains(b, x) })
}
