package baremetal

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
)

// ProviderName begins the provider IDs of nodes: baremetal://NAME.
const ProviderName = "baremetal"

// instances are the machines of a configuration, else what Nodes say of themselves.
type instances struct{ cfg *Config }

// machine of a node; false: the configuration does not name it.
func (i instances) machine(n *corev1.Node) (Machine, bool) {
	name := n.Name
	if id, ok := strings.CutPrefix(n.Spec.ProviderID, ProviderName+"://"); ok {
		name = id
	}
	at := slices.IndexFunc(i.cfg.Machines, func(m Machine) bool { return m.Name == name })
	if at < 0 {
		return Machine{Name: name}, false
	}
	return i.cfg.Machines[at], true
}

// InstanceExists implements cloudprovider.InstancesV2. Nodes of other providers are no concern.
func (i instances) InstanceExists(_ context.Context, n *corev1.Node) (bool, error) {
	if foreign(n) || len(i.cfg.Machines) == 0 {
		return true, nil
	}
	_, ok := i.machine(n)
	return ok, nil
}

// InstanceShutdown implements cloudprovider.InstancesV2.
func (i instances) InstanceShutdown(_ context.Context, n *corev1.Node) (bool, error) {
	m, _ := i.machine(n)
	return m.Shutdown && !foreign(n), nil
}

// InstanceMetadata implements cloudprovider.InstancesV2. A node that machines are given and do not
// name stays uninitialized.
func (i instances) InstanceMetadata(_ context.Context, n *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	m, ok := i.machine(n)
	if foreign(n) || !ok && len(i.cfg.Machines) > 0 {
		return nil, nil
	}
	meta := &cloudprovider.InstanceMetadata{
		ProviderID: n.Spec.ProviderID, InstanceType: m.Type, Zone: m.Zone, Region: m.Region, AdditionalLabels: m.Labels,
		NodeAddresses: n.Status.Addresses,
	}
	if meta.ProviderID == "" {
		meta.ProviderID = ProviderName + "://" + m.Name
	}
	if meta.Region == "" {
		meta.Region = i.cfg.Region
	}
	if len(m.Addresses) > 0 {
		meta.NodeAddresses = nil
		for _, a := range m.Addresses {
			meta.NodeAddresses = append(meta.NodeAddresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: netip.MustParseAddr(a).String()})
		}
	}
	return meta, nil
}

// foreign tells whether a node is another provider's.
func foreign(n *corev1.Node) bool {
	return n.Spec.ProviderID != "" && !strings.HasPrefix(n.Spec.ProviderID, ProviderName+"://")
}
