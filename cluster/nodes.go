package cluster

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// NodeSpec is a further node on this host: an agent in a network namespace.
type NodeSpec struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
	// Addresses on the link that joins the nodes, one of each of NodeSubnets; skiff chooses them.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Leaving nodes have been drained and are being taken away; whoever comes next goes on with it.
	Leaving bool `json:"leaving,omitempty"`
}
