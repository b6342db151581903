package noderoute

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

func TestDecide(t *testing.T) {
	node := func(name, ip string, cidrs ...string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}}}
	}
	route := func(node, cidr string, change ...func(*cloudprovider.Route)) *cloudprovider.Route {
		r := &cloudprovider.Route{Name: node + cidr, TargetNode: types.NodeName(node), DestinationCIDR: cidr}
		for _, f := range change {
			f(r)
		}
		return r
	}
	at := func(ip string) func(*cloudprovider.Route) {
		return func(r *cloudprovider.Route) {
			r.EnableNodeAddresses, r.TargetNodeAddresses = true, []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
		}
	}
	for _, tt := range []struct {
		name             string
		nodes            []*corev1.Node
		have             []*cloudprovider.Route
		take, make, told []string
	}{
		{name: "one is made", nodes: []*corev1.Node{node("a", "1", "10.0.1.0/24")}, make: []string{"a 10.0.1.0/24"}, told: []string{"a"}},
		{name: "one for each family", nodes: []*corev1.Node{node("a", "1", "10.0.1.0/24", "fd00::/64")}, have: []*cloudprovider.Route{route("a", "fd00::/64")}, make: []string{"a 10.0.1.0/24"}, told: []string{"a"}},
		{name: "one stays", nodes: []*corev1.Node{node("a", "1", "10.0.1.0/24")}, have: []*cloudprovider.Route{route("a", "10.0.1.0/24")}, told: []string{"a"}},
		{name: "one of a node that is gone goes", have: []*cloudprovider.Route{route("a", "10.0.1.0/24")}, take: []string{"10.0.1.0/24"}},
		{name: "others' stay", have: []*cloudprovider.Route{route("a", "192.0.2.0/24"), route("a", "what")}},
		{name: "a black hole goes", nodes: []*corev1.Node{node("a", "1", "10.0.1.0/24")}, have: []*cloudprovider.Route{route("a", "10.0.1.0/24"), {DestinationCIDR: "10.0.9.0/24", Blackhole: true}}, take: []string{"10.0.9.0/24"}, told: []string{"a"}},
		{name: "one moves with its node's address", nodes: []*corev1.Node{node("a", "2", "10.0.1.0/24")}, have: []*cloudprovider.Route{route("a", "10.0.1.0/24", at("1"))}, take: []string{"10.0.1.0/24"}, make: []string{"a 10.0.1.0/24"}, told: []string{"a"}},
		{name: "and stays with the same", nodes: []*corev1.Node{node("a", "1", "10.0.1.0/24")}, have: []*cloudprovider.Route{route("a", "10.0.1.0/24", at("1"))}, told: []string{"a"}},
		{name: "a node without CIDR is nobody's concern", nodes: []*corev1.Node{node("a", "1")}},
		{name: "unless it has a route", nodes: []*corev1.Node{node("a", "1")}, have: []*cloudprovider.Route{route("a", "10.0.1.0/24")}, take: []string{"10.0.1.0/24"}, told: []string{"a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := decide(tt.nodes, tt.have, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/56")})
			var take, made, told []string
			for _, r := range p.take {
				take = append(take, r.DestinationCIDR)
			}
			for _, w := range p.make {
				made = append(made, fmt.Sprintf("%s %s", w.node.Name, w.route.DestinationCIDR))
			}
			for _, n := range p.told {
				told = append(told, n.Name)
			}
			if !slices.Equal(take, tt.take) || !slices.Equal(made, tt.make) || !slices.Equal(told, tt.told) {
				t.Errorf("takes %v, makes %v, tells %v", take, made, told)
			}
		})
	}
}
