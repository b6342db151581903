// Package nodeipam gives each node its pod CIDR out of the cluster's.
//
// Owns: spec.podCIDR(s) of nodes. Must not: know how nodes route to each other. What is
// taken is read from the nodes themselves, so a restart loses nothing: the informer tells of
// every node once, and of changes from then on. Index decides; the controller only watches
// and writes, and a node that merely sends its heartbeat costs it a comparison.
package nodeipam

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	netutils "k8s.io/utils/net"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// remind is how often the event of a node that waits for a CIDR is repeated: events are kept
// for an hour. What becomes free wakes it at once.
const remind = 30 * time.Minute

// Config says what there is to give.
type Config struct {
	controller.Config
	// ClusterCIDRs are one range per IP family (--cluster-cidr).
	ClusterCIDRs []netip.Prefix
	// NodeMasks are the prefix lengths of a node's part, one per range; 24 and 64 if empty.
	NodeMasks []int
}

// getter reads one node. A lister can also walk over all of them, which nothing here may.
type getter interface {
	Get(name string) (*corev1.Node, error)
}

// Controller hands out CIDRs.
type Controller struct {
	cfg   Config
	loop  *controller.Loop[controller.Key]
	nodes getter

	mu    sync.Mutex
	index *Index
}

// New makes the controller.
func New(cfg Config) (*Controller, error) {
	if len(cfg.ClusterCIDRs) == 0 {
		return nil, fmt.Errorf("node-ipam-controller: ClusterCIDRs is empty; name the pod network, for example 10.244.0.0/16")
	}
	masks := slices.Clone(cfg.NodeMasks)
	for i, p := range cfg.ClusterCIDRs {
		if len(masks) <= i {
			mask := 24
			if p.Addr().Is6() {
				mask = 64
			}
			masks = append(masks, mask)
		}
		if m := masks[i]; m < p.Bits() || m > p.Addr().BitLen() {
			return nil, fmt.Errorf("node-ipam-controller: node mask /%d does not fit cluster CIDR %s", m, p)
		}
	}
	nodes := cfg.Informers.Core().V1().Nodes()
	c := &Controller{cfg: cfg, nodes: nodes.Lister(), index: NewIndex(cfg.ClusterCIDRs, masks)}
	// One worker: two at a time would only wait for the index.
	c.loop = controller.NewLoop("node-ipam-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, controller.Watch(c.loop, nodes.Informer(), controller.Handlers[*corev1.Node]{
		Added: c.added, Updated: c.updated, Deleted: c.deleted,
	})
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) added(n *corev1.Node) {
	has := podCIDRs(n)
	parsed := make([]netip.Prefix, 0, len(has))
	for _, s := range has {
		p, err := parse(s)
		if err != nil {
			c.cfg.Logger.Warn("node has a pod CIDR that is none, it is not kept free of others", "controller", c.loop.Name, "node", n.Name, "err", err)
			continue
		}
		parsed = append(parsed, p)
	}
	var conflicts []Conflict
	c.decide(func() { conflicts = c.index.Observe(idOf(n), parsed) })
	for _, d := range conflicts {
		c.cfg.Logger.Warn("two nodes have the same pod CIDR, their pods' addresses may clash: recreate one of the nodes",
			"controller", c.loop.Name, "node", n.Name, "other", d.Other, "cidr", d.CIDR.String())
	}
	if len(has) == 0 {
		c.loop.Add(controller.KeyOf(n))
	}
}

func (c *Controller) updated(old, n *corev1.Node) {
	switch {
	case old.UID != n.UID: // the informer has missed that it was deleted
		c.deleted(old)
	case slices.Equal(podCIDRs(old), podCIDRs(n)): // nearly always: it was a heartbeat
		return
	}
	c.added(n)
}

func (c *Controller) deleted(n *corev1.Node) {
	c.decide(func() { c.index.Remove(idOf(n)) })
}

// decide asks the index, and wakes the node that waits for what has become free by that.
func (c *Controller) decide(ask func()) {
	c.mu.Lock()
	ask()
	next, ok := c.index.Next()
	c.mu.Unlock()
	if ok {
		c.loop.Add(controller.Key{Name: next.Name})
	}
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	node, err := c.nodes.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading node: %w", err)
	}
	if len(podCIDRs(node)) > 0 {
		return 0, nil
	}
	id := idOf(node)
	if node.DeletionTimestamp != nil {
		c.decide(func() { c.index.GiveUp(id) })
		return 0, nil
	}
	var (
		cidrs  []netip.Prefix
		waited bool
	)
	c.decide(func() {
		waited = c.index.Waits(id)
		cidrs, err = c.index.Grant(id)
	})
	if err != nil {
		c.cfg.Events.Eventf(node, corev1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: CIDRNotAvailable", node.Name)
		if !waited {
			c.cfg.Logger.Warn("node gets no pod CIDR", "controller", c.loop.Name, "node", node.Name, "err", err)
		}
		return remind, nil
	}
	if len(cidrs) == 0 {
		return 0, nil
	}
	return 0, c.write(ctx, node, cidrs)
}

func (c *Controller) write(ctx context.Context, node *corev1.Node, cidrs []netip.Prefix) error {
	// Only an empty podCIDR may be set: with two allocators at a time the second write fails.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"podCIDR": cidrs[0], "podCIDRs": cidrs},
	})
	if err != nil {
		return fmt.Errorf("encoding patch: %w", err)
	}
	_, err = c.cfg.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("setting pod CIDR of node %s: %w", node.Name, err)
	}
	return nil
}

func idOf(n *corev1.Node) Node { return Node{Name: n.Name, UID: n.UID} }

// podCIDRs are those of a node; the older field is the first of the newer.
func podCIDRs(n *corev1.Node) []string {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return n.Spec.PodCIDRs
}

// parse reads a CIDR as the API does, which takes leading zeros for decimals.
func parse(s string) (netip.Prefix, error) {
	_, n, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("reading pod CIDR: %w", err)
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr, ones), nil
}
