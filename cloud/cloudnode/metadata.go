package cloudnode

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// metadata is what the provider knows of a node's machine; nil: nothing, which is no error. With
// InstancesV2 a machine needs a provider ID: others find it by that, and it is never set later
// (kubernetes/kubernetes#123024).
func (c *Controller) metadata(ctx context.Context, n *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	v2, ok := c.cfg.Provider.InstancesV2()
	if !ok || v2 == nil {
		return c.olderMetadata(ctx, n)
	}
	meta, err := v2.InstanceMetadata(ctx, n)
	if err != nil || meta == nil || meta.ProviderID != "" {
		return meta, err
	}
	if n.Spec.ProviderID == "" {
		return nil, fmt.Errorf("cloud provider does not set node provider ID for node %s", n.Name)
	}
	own := *meta // the provider's may be shared
	own.ProviderID = n.Spec.ProviderID
	return &own, nil
}

// olderMetadata asks a provider of before InstancesV2, by provider ID and, if that fails, by name.
func (c *Controller) olderMetadata(ctx context.Context, n *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	instances, ok := c.cfg.Provider.Instances()
	if !ok {
		return nil, errNoInstances
	}
	id, name := n.Spec.ProviderID, types.NodeName(n.Name)
	if id == "" {
		var err error
		id, err = cloudprovider.GetInstanceProviderID(ctx, c.cfg.Provider, name)
		// Without provider IDs the name will have to do. Any other failure must be tried again, for
		// a node without the taint is not looked at any more.
		if err != nil && !errors.Is(err, cloudprovider.NotImplemented) {
			return nil, err
		}
	}
	addrs, err := either("addresses", func() ([]corev1.NodeAddress, error) { return instances.NodeAddressesByProviderID(ctx, id) },
		func() ([]corev1.NodeAddress, error) { return instances.NodeAddresses(ctx, name) })
	if err != nil {
		return nil, err
	}
	kind, err := either("instance type", func() (string, error) { return instances.InstanceTypeByProviderID(ctx, id) },
		func() (string, error) { return instances.InstanceType(ctx, name) })
	if err != nil {
		return nil, err
	}
	meta := &cloudprovider.InstanceMetadata{ProviderID: id, InstanceType: kind, NodeAddresses: addrs}
	zones, ok := c.cfg.Provider.Zones()
	if !ok {
		return meta, nil
	}
	zone, err := either("zone", func() (cloudprovider.Zone, error) { return zones.GetZoneByProviderID(ctx, id) },
		func() (cloudprovider.Zone, error) { return zones.GetZoneByNodeName(ctx, name) })
	if err != nil {
		return nil, err
	}
	meta.Zone, meta.Region = zone.FailureDomain, zone.Region
	return meta, nil
}

// addresses asks for no more than a node's addresses where the provider can be asked so.
func (c *Controller) addresses(ctx context.Context, n *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	if v2, ok := c.cfg.Provider.InstancesV2(); ok && v2 != nil {
		return v2.InstanceMetadata(ctx, n)
	}
	instances, ok := c.cfg.Provider.Instances()
	if !ok {
		return nil, errNoInstances
	}
	addrs, err := either("addresses", func() ([]corev1.NodeAddress, error) {
		return instances.NodeAddressesByProviderID(ctx, n.Spec.ProviderID)
	}, func() ([]corev1.NodeAddress, error) { return instances.NodeAddresses(ctx, types.NodeName(n.Name)) })
	return &cloudprovider.InstanceMetadata{NodeAddresses: addrs}, err
}

// either asks by provider ID, then by name.
func either[T any](what string, byID, byName func() (T, error)) (T, error) {
	v, err := byID()
	if err == nil {
		return v, nil
	}
	v, byNameErr := byName()
	if byNameErr != nil {
		return v, fmt.Errorf("get %s by provider ID: %w, by name: %w", what, err, byNameErr)
	}
	return v, nil
}
