package snapshot

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Snapshot is the cluster as the scheduler knows it. Not safe for concurrent writes;
// reads may be concurrent while nobody writes.
type Snapshot struct {
	// Nodes are the known nodes, zones taking turns so that a search that stops early
	// has seen all of them.
	Nodes  []*Node
	byName map[string]*Node
	pods   map[types.UID]*placed
	// ImageNodes counts on how many nodes an image is.
	ImageNodes map[string]int
	// Affine and Repelling count the nodes that have such pods (see Node): with none, pod
	// affinity of others need not be looked at.
	affine, repelling map[*Node]struct{}
	stale             bool // Nodes is to be ordered anew
}

type placed struct {
	pod     *Pod
	node    string
	assumed bool // bound by us, not yet confirmed by an informer
}

// New makes an empty snapshot.
func New() *Snapshot {
	return &Snapshot{
		byName:     map[string]*Node{},
		pods:       map[types.UID]*placed{},
		ImageNodes: map[string]int{},
		affine:     map[*Node]struct{}{},
		repelling:  map[*Node]struct{}{},
	}
}

// Node returns a known node or nil.
func (s *Snapshot) Node(name string) *Node {
	n := s.byName[name]
	if n == nil || n.Object == nil {
		return nil
	}
	return n
}

// SetNode adds or updates a node.
func (s *Snapshot) SetNode(o *corev1.Node) {
	n := s.node(o.Name)
	if n.Object == nil || n.Zone != zone(o) {
		s.stale = true
	}
	s.countImages(n, -1)
	n.setObject(o)
	s.countImages(n, 1)
}

// RemoveNode forgets a node; its pods stay until they are removed themselves.
func (s *Snapshot) RemoveNode(name string) {
	n := s.byName[name]
	if n == nil {
		return
	}
	s.countImages(n, -1)
	n.Object, n.Images = nil, nil
	s.stale = true
	s.tidy(name, n)
}

func (s *Snapshot) node(name string) *Node {
	n := s.byName[name]
	if n == nil {
		n = &Node{Index: -1}
		s.byName[name] = n
	}
	return n
}

// tidy drops a node that is neither known nor has pods.
func (s *Snapshot) tidy(name string, n *Node) {
	if n.Object == nil && len(n.Pods) == 0 {
		delete(s.byName, name)
	}
}

func (s *Snapshot) countImages(n *Node, by int) {
	for name := range n.Images {
		if s.ImageNodes[name] += by; s.ImageNodes[name] <= 0 {
			delete(s.ImageNodes, name)
		}
	}
}

// Order makes Nodes current; to be called before a cycle.
func (s *Snapshot) Order() {
	if !s.stale {
		return
	}
	s.stale = false
	zones := map[string][]*Node{}
	for _, n := range s.byName {
		n.Index = -1
		if n.Object != nil {
			zones[n.Zone] = append(zones[n.Zone], n)
		}
	}
	names := slices.Sorted(maps.Keys(zones))
	for _, z := range names {
		slices.SortFunc(zones[z], func(a, b *Node) int { return cmp.Compare(a.Name(), b.Name()) })
	}
	s.Nodes = s.Nodes[:0]
	for i := 0; ; i++ {
		any := false
		for _, z := range names {
			if i < len(zones[z]) {
				n := zones[z][i]
				n.Index = len(s.Nodes)
				s.Nodes = append(s.Nodes, n)
				any = true
			}
		}
		if !any {
			break
		}
	}
}

// Assume places a pod that we are about to bind.
func (s *Snapshot) Assume(p *Pod, node string) {
	s.pods[p.UID] = &placed{pod: p, node: node, assumed: true}
	s.Place(p, s.node(node))
}

// Assumed reports whether a pod waits for confirmation.
func (s *Snapshot) Assumed(uid types.UID) bool {
	p := s.pods[uid]
	return p != nil && p.assumed
}

// Forget undoes Assume when binding has failed.
func (s *Snapshot) Forget(uid types.UID) {
	if p := s.pods[uid]; p != nil && p.assumed {
		s.RemovePod(uid)
	}
}

// SetPod adds or updates a pod that has a node, confirming an assumption.
func (s *Snapshot) SetPod(o *corev1.Pod) {
	was := s.pods[o.UID]
	if was != nil {
		s.RemovePod(o.UID)
	}
	p := NewPod(o)
	s.pods[o.UID] = &placed{pod: p, node: o.Spec.NodeName}
	s.Place(p, s.node(o.Spec.NodeName))
}

// RemovePod takes a pod off its node and returns it, or nil.
func (s *Snapshot) RemovePod(uid types.UID) *Pod {
	p := s.pods[uid]
	if p == nil {
		return nil
	}
	delete(s.pods, uid)
	if n := s.byName[p.node]; n != nil {
		s.Displace(p.pod, n)
		s.tidy(p.node, n)
	}
	return p.pod
}

// Pod returns a placed pod or nil.
func (s *Snapshot) Pod(uid types.UID) *Pod {
	if p := s.pods[uid]; p != nil {
		return p.pod
	}
	return nil
}

// Place and Displace change a node's pods alone, also for a while: to see what would be
// with other pods there. They do not touch what the snapshot knows of the pod.
func (s *Snapshot) Place(p *Pod, n *Node) {
	n.add(p)
	s.mark(n)
}

// Displace undoes Place.
func (s *Snapshot) Displace(p *Pod, n *Node) {
	n.remove(p)
	s.mark(n)
}

func (s *Snapshot) mark(n *Node) {
	if len(n.Affine) > 0 {
		s.affine[n] = struct{}{}
	} else {
		delete(s.affine, n)
	}
	if len(n.Repelling) > 0 {
		s.repelling[n] = struct{}{}
	} else {
		delete(s.repelling, n)
	}
}

// Affine calls f for each known node that has pods with pod (anti-)affinity.
func (s *Snapshot) Affine(f func(*Node)) { each(s.affine, f) }

// Repelling calls f for each known node that has pods with required anti-affinity.
func (s *Snapshot) Repelling(f func(*Node)) { each(s.repelling, f) }

func each(set map[*Node]struct{}, f func(*Node)) {
	for n := range set {
		if n.Object != nil {
			f(n)
		}
	}
}
