package servicelb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/skiff-k8s/skiff/cloud/metrics"
)

// toBeDeleted is the cluster autoscaler's taint of nodes that it is about to delete.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// included tells whether a node is to serve load balancers, by its label (KEP-1143).
func included(n *corev1.Node) bool {
	text, ok := n.Labels[corev1.LabelNodeExcludeBalancers]
	if !ok {
		return true
	}
	exclude, err := strconv.ParseBool(text)
	return err == nil && !exclude
}

// eligible are the nodes that load balancers lead to. Whether a node is ready is no matter: load
// balancers look after that by its health port (KEP-3458).
func eligible(all []*corev1.Node) []*corev1.Node {
	var out []*corev1.Node
	for _, n := range all {
		leaves := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeleted })
		if n.DeletionTimestamp.IsZero() && included(n) && !leaves {
			out = append(out, n)
		}
	}
	return out
}

// sameNodes compares what load balancers lead to: names and provider IDs.
func sameNodes(a, b []*corev1.Node) bool {
	distill := func(nodes []*corev1.Node) map[string]string {
		out := map[string]string{}
		for _, n := range nodes {
			out[n.Name] = n.Spec.ProviderID
		}
		return out
	}
	return len(a) == len(b) && maps.Equal(distill(a), distill(b))
}

// syncNodes tells all load balancers which nodes there are. A Service whose load balancer could not
// be told is looked at by its own loop, which tries again.
func (c *Controller) syncNodes(ctx context.Context, _ struct{}) (time.Duration, error) {
	start := c.cfg.Clock.Now()
	defer func() { c.cfg.Metrics.Observe(metrics.NodeSyncLatency, c.cfg.Clock.Since(start).Seconds()) }()
	nodes, err := c.backends()
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	all := maps.Clone(c.known)
	c.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(max(1, c.cfg.Workers))
	for key, svc := range all {
		if !wants(svc) {
			continue
		}
		group.Go(func() error {
			// Noted before it is done: who fails is tried again as a whole.
			if before := c.setSynced(key, nodes); sameNodes(eligible(before), nodes) {
				return nil
			}
			if err := c.update(ctx, svc, nodes); err != nil {
				c.cfg.Metrics.Count(metrics.NodeSyncErrors)
				c.cfg.Logger.Warn("update the nodes of a load balancer", "service", key.String(), "err", err)
				c.loop.Add(key)
			}
			return nil
		})
	}
	_ = group.Wait() // none fails
	return 0, nil
}

func (c *Controller) update(ctx context.Context, svc *corev1.Service, nodes []*corev1.Node) error {
	start := c.cfg.Clock.Now()
	c.cfg.Metrics.Count(metrics.LoadBalancerSyncs)
	defer func() { c.cfg.Metrics.Observe(metrics.HostsLatency, c.cfg.Clock.Since(start).Seconds()) }()
	err := c.balancer.UpdateLoadBalancer(ctx, c.cfg.ClusterName, svc.DeepCopy(), nodes)
	switch {
	case err == nil && len(nodes) == 0:
		c.cfg.Events.Event(svc, corev1.EventTypeWarning, "UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer")
		return nil
	case err == nil:
		c.cfg.Events.Event(svc, corev1.EventTypeNormal, "UpdatedLoadBalancer", "Updated load balancer with new hosts")
		return nil
	case errors.Is(err, cloudprovider.ImplementedElsewhere):
		return nil
	}
	// What does not exist needs no nodes.
	if _, exists, lookErr := c.balancer.GetLoadBalancer(ctx, c.cfg.ClusterName, svc); lookErr == nil && !exists {
		return nil
	}
	c.cfg.Events.Eventf(svc, corev1.EventTypeWarning, "UpdateLoadBalancerFailed", "Error updating load balancer with new hosts %v [node names limited, total number of nodes: %d], error: %v", namesOf(nodes), len(nodes), err)
	return err
}

// namesOf are at most twenty names of nodes.
func namesOf(nodes []*corev1.Node) []string {
	const most = 20
	var out []string
	for _, n := range nodes[:min(len(nodes), most)] {
		out = append(out, n.Name)
	}
	slices.Sort(out)
	if more := len(nodes) - most; more > 0 {
		out = append(out, fmt.Sprintf("<%d more>", more))
	}
	return out
}
