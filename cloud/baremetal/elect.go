package baremetal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeAnnotation of a Service names the node that answers for its addresses.
const NodeAnnotation = "skiff.dev/announced-by"

// lookEvery is how often nodes that answer are asked for their health.
const lookEvery = time.Second

// group are Services that have an address in common, most often one.
type group struct {
	services []*corev1.Service
	addrs    []netip.Addr
	// nodes may answer, the best first.
	nodes []*corev1.Node
	// current is the node that was chosen last.
	current string
}

func (g *group) key() string { return keyOf(g.services[0]).String() }

// urls of a node, all of which must be well.
func (g *group) urls(n *corev1.Node) []string {
	var out []string
	for _, s := range g.services {
		if u := healthURL(s, n); !slices.Contains(out, u) {
			out = append(out, u)
		}
	}
	return out
}

func (g *group) node(name string) *corev1.Node {
	i := slices.IndexFunc(g.nodes, func(n *corev1.Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return g.nodes[i]
}

// elect looks at all load balancers each second, and at once when something changes.
func (p *Provider) elect(ctx context.Context) error {
	for {
		groups := p.groups()
		p.mendDoubles(ctx, groups)
		p.choose(ctx, groups)
		var tick <-chan time.Time
		stop := func() {}
		if len(groups) > 0 { // else nothing needs to be asked
			t := p.opts.Clock.NewTicker(lookEvery)
			tick, stop = t.C(), t.Stop
		}
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-tick:
		case <-p.kick:
		}
		stop()
	}
}

// groups are the load balancers that have addresses.
func (p *Provider) groups() []*group {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*corev1.Service
	for key, b := range p.balancers {
		s, err := p.services.Services(key.Namespace).Get(key.Name)
		if err != nil || s.UID != b.uid || s.DeletionTimestamp != nil || len(s.Status.LoadBalancer.Ingress) == 0 {
			continue
		}
		all = append(all, s)
	}
	// The older one of two that claim an address has it.
	slices.SortFunc(all, func(a, b *corev1.Service) int {
		if claimOf(a).before(claimOf(b)) {
			return -1
		}
		return 1
	})
	var out []*group
	for _, s := range all {
		own := ingress(&s.Status.LoadBalancer)
		i := slices.IndexFunc(out, func(g *group) bool {
			return slices.ContainsFunc(own, func(a netip.Addr) bool { return slices.Contains(g.addrs, a) })
		})
		if i < 0 {
			i = len(out)
			out = append(out, &group{})
		}
		g := out[i]
		g.services = append(g.services, s)
		for _, a := range own {
			if !slices.Contains(g.addrs, a) {
				g.addrs = append(g.addrs, a)
			}
		}
	}
	for _, g := range out {
		p.fill(g)
	}
	return out
}

// fill finds the nodes that may answer for a group. The lock is held.
func (p *Provider) fill(g *group) {
	names := slices.Clone(p.balancers[keyOf(g.services[0])].nodes)
	for _, s := range g.services {
		b := p.balancers[keyOf(s)]
		names = slices.DeleteFunc(names, func(n string) bool { return !slices.Contains(b.nodes, n) })
		if g.current == "" {
			g.current = b.announcer
		}
		if g.current == "" {
			g.current = s.Annotations[NodeAnnotation]
		}
	}
	var near, far []*corev1.Node
	for _, name := range names {
		n, err := p.nodes.Get(name)
		if err != nil {
			continue // it has gone
		}
		if p.opts.OnLink != nil && !slices.ContainsFunc(g.addrs, func(a netip.Addr) bool { return !p.opts.OnLink(n, a) }) {
			near = append(near, n)
		} else {
			far = append(far, n)
		}
	}
	// Addresses on no node's link are routed to some node, whichever: that is the network's matter.
	g.nodes = near
	if len(near) == 0 {
		g.nodes = far
	}
	slices.SortFunc(g.nodes, func(a, b *corev1.Node) int { return rank(g.key(), a.Name, b.Name) })
}

// rank orders nodes differently for each load balancer, so that they are spread, and little moves
// when nodes come and go (rendezvous hashing).
func rank(key, a, b string) int {
	weight := func(node string) uint64 {
		h := fnv.New64a()
		fmt.Fprintf(h, "%s\x00%s", key, node)
		x := h.Sum64()
		// FNV alone mixes its last bytes badly (the finalizer of MurmurHash3).
		x = (x ^ x>>33) * 0xff51afd7ed558ccd
		x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
		return x ^ x>>33
	}
	switch wa, wb := weight(a), weight(b); {
	case wa > wb:
		return -1
	case wa < wb:
		return 1
	}
	return strings.Compare(a, b)
}

// choose a node for each group: the one that it has as long as that is well, else the first that is.
// Where none is well all stays as it is.
func (p *Provider) choose(ctx context.Context, groups []*group) {
	ask := map[string]bool{}
	used := map[string]bool{}
	for _, g := range groups {
		for _, n := range g.nodes {
			for _, u := range g.urls(n) {
				used[u] = true
				if n.Name == g.current {
					ask[u] = true
				}
			}
		}
	}
	p.health.forget(used)
	p.health.ask(ctx, ask)
	clear(ask)
	var open []*group
	for _, g := range groups {
		if n := g.node(g.current); n != nil && p.health.trusted(g.urls(n)) {
			p.name(ctx, g, g.current)
			continue
		}
		open = append(open, g)
		for _, n := range g.nodes {
			for _, u := range g.urls(n) {
				ask[u] = true
			}
		}
	}
	if len(open) == 0 {
		return
	}
	p.health.ask(ctx, ask)
	for _, g := range open {
		i := slices.IndexFunc(g.nodes, func(n *corev1.Node) bool {
			return !slices.ContainsFunc(g.urls(n), func(u string) bool { return !p.health.fresh(u) })
		})
		if i >= 0 {
			p.name(ctx, g, g.nodes[i].Name)
		}
	}
}

// name writes who answers into all Services of a group.
func (p *Provider) name(ctx context.Context, g *group, node string) {
	for _, s := range g.services {
		p.mu.Lock()
		if b := p.balancers[keyOf(s)]; b != nil && b.uid == s.UID {
			b.announcer = node
		}
		p.mu.Unlock()
		before, had := s.Annotations[NodeAnnotation]
		if had && before == node {
			continue
		}
		patch := map[string]any{"metadata": map[string]any{"uid": s.UID, "annotations": map[string]any{NodeAnnotation: node}}}
		if err := p.patch(ctx, s, patch); err != nil {
			if ctx.Err() == nil {
				p.opts.Logger.Warn("name the node of a load balancer", "service", keyOf(s).String(), "node", node, "err", err)
			}
			continue
		}
		p.opts.Logger.Info("load balancer is announced", "service", keyOf(s).String(), "node", node, "before", before)
		p.events.Eventf(s, corev1.EventTypeNormal, "Announced", "Node %s answers for %s", node, joined(ingress(&s.Status.LoadBalancer)))
	}
}

// patch a Service by its status, which is what the account may write.
func (p *Provider) patch(ctx context.Context, s *corev1.Service, change map[string]any) error {
	text, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = p.client.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, text, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil // it has gone
	}
	return err
}

// mendDoubles gives another address to Services that share one against their will. Two leaders may
// have given it at the same time: nothing fences a leader that is late.
func (p *Provider) mendDoubles(ctx context.Context, groups []*group) {
	for _, g := range groups {
		for i, s := range g.services {
			if !slices.ContainsFunc(g.services[:i], func(o *corev1.Service) bool { return clash(claimOf(o), claimOf(s)) }) {
				continue
			}
			if err := p.reassign(ctx, s); err != nil && ctx.Err() == nil {
				p.opts.Logger.Warn("give a service another address", "service", keyOf(s).String(), "err", err)
			}
		}
	}
}

func clash(a, b claim) bool {
	return !a.mayShare(b) && slices.ContainsFunc(a.addrs, func(x netip.Addr) bool { return slices.Contains(b.addrs, x) })
}

func (p *Provider) reassign(ctx context.Context, s *corev1.Service) error {
	r, err := requestOf(s)
	if err != nil {
		return err
	}
	p.mu.Lock()
	addrs, err := p.assign(r)
	p.mu.Unlock()
	if errors.Is(err, errNoAddress) {
		addrs = nil // better none than another's
	} else if err != nil {
		return err
	}
	if slices.Equal(addrs, ingress(&s.Status.LoadBalancer)) {
		return nil
	}
	p.events.Eventf(s, corev1.EventTypeWarning, "AddressTaken", "%s is another Service's", joined(ingress(&s.Status.LoadBalancer)))
	// With the version: the Service may have changed since. Without its annotation it is looked at anew.
	return p.patch(ctx, s, map[string]any{
		"metadata": map[string]any{"uid": s.UID, "resourceVersion": s.ResourceVersion, "annotations": map[string]any{NodeAnnotation: nil}},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": statusOf(addrs).Ingress}}})
}

func joined(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}
