package cluster

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/network/bridge"
	"github.com/skiff-k8s/skiff/network/policy"
)

// policiesTable is the name of the nftables tables that enforce NetworkPolicies.
func (n *NodeConfig) policiesTable() string { return n.Bridge + "-policies" }

// newPolicies composes what enforces NetworkPolicies; nil where others do.
func newPolicies(n *NodeConfig, client kubernetes.Interface, log *slog.Logger) (*policy.Enforcer, error) {
	if n.PodNetwork.NoPolicy {
		return nil, nil
	}
	return policy.New(policy.Config{NodeName: n.NodeName, Client: client, Table: n.policiesTable(), PodCIDRs: n.PodCIDRs, Ports: bridge.PortPrefix(n.Bridge), Logger: log})
}

// policyMember runs e, or without one takes away what a run with one has left.
func (n *NodeConfig) policyMember(e *policy.Enforcer) component.Member {
	m := component.Member{Name: "network policy", Component: e}
	if e == nil {
		m.Component = component.Func(func(ctx context.Context) error {
			if err := policy.Remove(n.policiesTable()); err != nil {
				return fmt.Errorf("take network policies out of force: %w", err)
			}
			<-ctx.Done()
			return nil
		})
	}
	return m
}
