package node

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// What a kubelet and a cloud-controller-manager tell each other, as in k8s.io/cloud-provider/api.
const (
	// uninitialized keeps pods off a node until the controller has said what its machine is.
	uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	// providedIP are the addresses that the kubelet was told to have.
	providedIP = "alpha.kubernetes.io/provided-node-ip"
)

// awaitCloud marks a new node for the controller.
func (n *Node) awaitCloud(o *corev1.Node) {
	if !n.cfg.ExternalCloud {
		return
	}
	o.Spec.Taints = append(append([]corev1.Taint{}, o.Spec.Taints...), corev1.Taint{Key: uninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	if len(n.cfg.Provided) > 0 {
		o.Annotations[providedIP] = strings.Join(n.cfg.Provided, ",")
	}
}

// providedChange is what is to change of the annotations of a node that was registered before; a nil
// value takes one away.
func (n *Node) providedChange(o *corev1.Node) map[string]any {
	have, had := o.Annotations[providedIP]
	want := ""
	if n.cfg.ExternalCloud {
		want = strings.Join(n.cfg.Provided, ",")
	}
	switch {
	case want != "" && have != want:
		return map[string]any{providedIP: want}
	case want == "" && had:
		return map[string]any{providedIP: nil}
	}
	return nil
}

// addresses of the node. With a cloud's controller they are the kubelet's only until that has said
// them, and without a node IP there are none before but the host name.
func (n *Node) addresses(old []corev1.NodeAddress) []corev1.NodeAddress {
	ips := n.cfg.IPs
	if n.cfg.ExternalCloud {
		if len(old) > 0 {
			return old
		}
		ips = n.cfg.Provided
	}
	var out []corev1.NodeAddress
	for _, ip := range ips {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.cfg.Hostname})
}
