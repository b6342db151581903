// Package nodeipam gives each node its pod CIDR out of the cluster's.
//
// Owns: spec.podCIDR(s) of nodes. Must not: know how nodes route to each other. What is
// taken is read from the nodes themselves, so a restart loses nothing.
package nodeipam

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// exhausted is how soon to look again when all is given away. A node that goes wakes us
// up before.
const exhausted = 5 * time.Minute

// Config says what there is to give.
type Config struct {
	controller.Config
	// ClusterCIDRs are one range per IP family (--cluster-cidr).
	ClusterCIDRs []netip.Prefix
	// NodeMasks are the prefix lengths of a node's part, one per range; 24 and 64 if empty.
	NodeMasks []int
}

// Controller hands out CIDRs.
type Controller struct {
	cfg   Config
	loop  *controller.Loop[controller.Key]
	nodes corelisters.NodeLister

	mu    sync.Mutex // one allocation at a time: the lister may be behind
	given map[string][]string
}

// New makes the controller.
func New(cfg Config) (*Controller, error) {
	if len(cfg.ClusterCIDRs) == 0 {
		return nil, fmt.Errorf("node-ipam-controller: ClusterCIDRs is empty; name the pod network, for example 10.244.0.0/16")
	}
	for i, p := range cfg.ClusterCIDRs {
		if len(cfg.NodeMasks) <= i {
			mask := 24
			if p.Addr().Is6() {
				mask = 64
			}
			cfg.NodeMasks = append(cfg.NodeMasks, mask)
		}
		if m := cfg.NodeMasks[i]; m < p.Bits() || m > p.Addr().BitLen() {
			return nil, fmt.Errorf("node-ipam-controller: node mask /%d does not fit cluster CIDR %s", m, p)
		}
		cfg.ClusterCIDRs[i] = p.Masked()
	}
	nodes := cfg.Informers.Core().V1().Nodes()
	c := &Controller{cfg: cfg, nodes: nodes.Lister(), given: map[string][]string{}}
	c.loop = controller.NewLoop("node-ipam-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, controller.Watch(c.loop, nodes.Informer(), controller.Handlers[*corev1.Node]{
		Added:   c.check,
		Updated: func(_, n *corev1.Node) { c.check(n) },
		Deleted: func(n *corev1.Node) {
			c.forget(n)
			c.wake()
		},
	})
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) check(n *corev1.Node) {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR == "" {
		c.loop.Add(controller.KeyOf(n))
		return
	}
	c.forget(n) // the lister shows it now
}

// wake looks at the nodes that have none.
func (c *Controller) wake() {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	for _, n := range all {
		if n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) == 0 {
			c.loop.Add(controller.KeyOf(n))
		}
	}
}

func (c *Controller) forget(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.given, n.Name)
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	node, err := c.nodes.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading node: %w", err)
	}
	if node.Spec.PodCIDR != "" || len(node.Spec.PodCIDRs) > 0 {
		return 0, nil
	}
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("listing nodes: %w", err)
	}
	c.mu.Lock()
	cidrs, ok := c.given[node.Name]
	if !ok {
		used := map[string]bool{}
		for _, n := range all {
			for _, s := range append(n.Spec.PodCIDRs, n.Spec.PodCIDR) {
				used[s] = true
			}
		}
		for _, g := range c.given {
			for _, s := range g {
				used[s] = true
			}
		}
		cidrs, err = Allocate(c.cfg.ClusterCIDRs, c.cfg.NodeMasks, used)
		if err == nil {
			c.given[node.Name] = cidrs
		}
	}
	c.mu.Unlock()
	if err != nil {
		c.cfg.Events.Eventf(node, corev1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: CIDRNotAvailable", node.Name)
		c.cfg.Logger.Warn("node gets no pod CIDR", "controller", "node-ipam-controller", "node", node.Name, "err", err)
		return exhausted, nil
	}
	// Only an empty podCIDR may be set: with two allocators at a time the second write fails.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"podCIDR": cidrs[0], "podCIDRs": cidrs},
	})
	if err != nil {
		return 0, fmt.Errorf("encoding patch: %w", err)
	}
	_, err = c.cfg.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("setting pod CIDR of node %s: %w", node.Name, err)
	}
	return 0, nil
}

// Allocate returns the first free part of each range; used holds CIDRs in canonical form.
func Allocate(ranges []netip.Prefix, masks []int, used map[string]bool) ([]string, error) {
	var cidrs []string
	for i, r := range ranges {
		taken := make([]netip.Prefix, 0, len(used))
		for s := range used {
			if p, err := netip.ParsePrefix(s); err == nil && p.Overlaps(r) {
				taken = append(taken, p)
			}
		}
		cidr, ok := free(r, masks[i], taken)
		if !ok {
			return nil, fmt.Errorf("pod network %s has no free /%d left", r, masks[i])
		}
		cidrs = append(cidrs, cidr.String())
	}
	return cidrs, nil
}

// free finds the first part of r that overlaps none of the taken.
func free(r netip.Prefix, mask int, taken []netip.Prefix) (netip.Prefix, bool) {
	count := uint64(1) << min(mask-r.Bits(), 24)
	used := make(map[uint64]bool, len(taken))
	for _, t := range taken {
		if t.Bits() <= r.Bits() {
			return netip.Prefix{}, false
		}
		first := indexOf(r.Addr(), t.Addr(), mask)
		last := first
		if t.Bits() < mask {
			last = first + uint64(1)<<(mask-t.Bits()) - 1
		}
		for n := first; n <= last && n < count; n++ {
			used[n] = true
		}
	}
	for n := range count {
		if !used[n] {
			return netip.PrefixFrom(nth(r.Addr(), mask, n), mask), true
		}
	}
	return netip.Prefix{}, false
}

// indexOf is the number of the subnet of base that an address is in.
func indexOf(base, a netip.Addr, mask int) uint64 {
	if base.Is4() {
		x, y := base.As4(), a.As4()
		return uint64(binary.BigEndian.Uint32(y[:])-binary.BigEndian.Uint32(x[:])) >> (32 - mask)
	}
	x, y := base.As16(), a.As16()
	if mask <= 64 {
		return (binary.BigEndian.Uint64(y[:8]) - binary.BigEndian.Uint64(x[:8])) >> (64 - mask)
	}
	return (binary.BigEndian.Uint64(y[8:]) - binary.BigEndian.Uint64(x[8:])) >> (128 - mask)
}

// nth is base plus n subnets of the given prefix length.
func nth(base netip.Addr, mask int, n uint64) netip.Addr {
	if base.Is4() {
		b := base.As4()
		v := binary.BigEndian.Uint32(b[:]) + uint32(n<<(32-mask))
		binary.BigEndian.PutUint32(b[:], v)
		return netip.AddrFrom4(b)
	}
	b := base.As16()
	if mask <= 64 {
		v := binary.BigEndian.Uint64(b[:8]) + n<<(64-mask)
		binary.BigEndian.PutUint64(b[:8], v)
	} else {
		v := binary.BigEndian.Uint64(b[8:]) + n<<(128-mask)
		binary.BigEndian.PutUint64(b[8:], v)
	}
	return netip.AddrFrom16(b)
}
