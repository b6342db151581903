package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/skiff-k8s/skiff/cluster/process"
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

// NodeDir is the data directory of a further node.
func (p Paths) NodeDir(name string) Paths { return Paths{filepath.Join(p.Dir, "nodes", name)} }

// NetNS is where a further node's network namespace is mounted.
func (p Paths) NetNS(name string) string { return filepath.Join(p.Run(), "netns", name) }

// furtherNode is what a further node needs to know.
func (c *Config) furtherNode(s NodeSpec) *NodeConfig {
	n := c.node()
	n.NodeName, n.NodeIPs, n.Labels, n.Taints = s.Name, s.Addresses, ownLabels(s.Labels), s.Taints
	n.Server = "https://" + netip.AddrPortFrom(c.NodeIPs[0], c.APIPort).String()
	n.CgroupRoot += "/nodes/" + s.Name
	n.PartOf, n.RuntimeEndpoint = c.ID, "" // a runtime of others knows no namespace of ours
	return n
}

// spec finds a further node; nil: there is none of that name.
func (c *Config) spec(name string) *NodeSpec {
	for i := range c.Nodes {
		if c.Nodes[i].Name == name {
			return &c.Nodes[i]
		}
	}
	return nil
}

// staying are the further nodes that are not being taken away.
func (c *Config) staying() []NodeSpec {
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(s NodeSpec) bool { return s.Leaving })
}

// RuntimeSockets are the CRI sockets of the cluster's nodes on this host, by node.
func (c *Config) RuntimeSockets(p Paths) map[string]string {
	out := map[string]string{c.NodeName: strings.TrimPrefix(c.node().runtimeEndpoint(p), "unix://")}
	for _, s := range c.staying() {
		out[s.Name] = strings.TrimPrefix(c.furtherNode(s).runtimeEndpoint(p.NodeDir(s.Name)), "unix://")
	}
	return out
}

// maxNodes is how many host addresses the smallest subnet of nodes (a /24) has, the
// host's own left out.
const maxNodes = 253

// growNodes makes it a cluster of n nodes in all, further ones named after the first.
func (c *Config) growNodes(n int) error {
	if have := 1 + len(c.staying()); n < have {
		return fmt.Errorf("--nodes %d: the cluster has %d; take some away with skiff node rm (skiff node ls shows them)", n, have)
	}
	for 1+len(c.staying()) < n {
		c.Nodes = append(c.Nodes, NodeSpec{Name: c.freeNodeName()})
	}
	return nil
}

func (c *Config) freeNodeName() string {
	for i := 2; ; i++ {
		if name := fmt.Sprintf("%s-%d", c.NodeName, i); c.spec(name) == nil {
			return name
		}
	}
}

// placeNodes checks the further nodes and gives those a place on the link that have none.
// The link's subnets are none that others have.
func (c *Config) placeNodes(p Paths, taken []claim) error {
	if len(c.Nodes) == 0 {
		return nil
	}
	if len(c.Nodes) > maxNodes {
		return fmt.Errorf("%d further nodes: their link has addresses for %d", len(c.Nodes), maxNodes)
	}
	if len(c.NodeSubnets) == 0 {
		var err error
		if c.NodeSubnets, err = c.nodeSubnets(taken); err != nil {
			return err
		}
	}
	for i := range c.Nodes {
		s := &c.Nodes[i]
		if errs := validation.IsDNS1123Subdomain(s.Name); len(errs) > 0 {
			return fmt.Errorf("node name %q: %s", s.Name, strings.Join(errs, "; "))
		}
		if s.Name == c.NodeName || c.spec(s.Name) != s {
			return fmt.Errorf("node name %s: taken by a node of this cluster; skiff node ls shows them", s.Name)
		}
		if n := len(p.NodeDir(s.Name).CRISocket()); n > maxSocketPath {
			return fmt.Errorf("node name %q: too long by %d bytes for a unix socket below %s; choose a shorter one", s.Name, n-maxSocketPath, p.Dir)
		}
		if err := validateNode(s.Labels, s.Taints); err != nil {
			return fmt.Errorf("node %s: %w", s.Name, err)
		}
		if len(s.Addresses) == len(c.NodeSubnets) {
			continue
		}
		s.Addresses = nil
		for f, subnet := range c.NodeSubnets {
			a := hostOf(subnet).Next()
			for slices.ContainsFunc(c.Nodes, func(o NodeSpec) bool { return f < len(o.Addresses) && o.Addresses[f] == a }) {
				a = a.Next()
			}
			s.Addresses = append(s.Addresses, a)
		}
	}
	return nil
}

// validateNode refuses labels and taints that the API server would not take.
func validateNode(labels map[string]string, taints []corev1.Taint) error {
	for k, v := range labels {
		if errs := validation.IsQualifiedName(k); len(errs) > 0 {
			return fmt.Errorf("label %q: %s", k, strings.Join(errs, "; "))
		}
		if errs := validation.IsValidLabelValue(v); len(errs) > 0 {
			return fmt.Errorf("label %s=%q: %s", k, v, strings.Join(errs, "; "))
		}
	}
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	for i, t := range taints {
		if errs := validation.IsQualifiedName(t.Key); len(errs) > 0 {
			return fmt.Errorf("taint %q: %s", t.Key, strings.Join(errs, "; "))
		}
		if errs := validation.IsValidLabelValue(t.Value); len(errs) > 0 {
			return fmt.Errorf("taint %s=%q: %s", t.Key, t.Value, strings.Join(errs, "; "))
		}
		if !slices.Contains(effects, t.Effect) {
			return fmt.Errorf("taint %s: effect %q is none of %q", t.Key, t.Effect, effects)
		}
		if slices.ContainsFunc(taints[:i], func(o corev1.Taint) bool { return o.MatchTaint(&t) }) {
			return fmt.Errorf("taint %s: given twice with effect %s", t.Key, t.Effect)
		}
	}
	return nil
}

// changing holds the cluster's configuration and set of nodes for this process. What else
// would change them is told who is at work.
func changing(p Paths) (release func(), err error) {
	if err := os.MkdirAll(p.Run(), 0o755); err != nil {
		return nil, fmt.Errorf("--data-dir: %w", err)
	}
	path := filepath.Join(p.Run(), "change.lock")
	lock, err := process.Lock(path)
	if errors.Is(err, process.ErrRunning) {
		return nil, fmt.Errorf("another skiff changes the cluster in %s just now: %w; try again when it is done", p.Dir, err)
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Close() }, nil // the kernel lets go of it in any case
}
