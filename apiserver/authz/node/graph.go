package node

import (
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
)

type kind uint8

const (
	pod kind = iota
	secret
	configMap
	account
	claim
	volume
	resourceClaim
	attachment
	slice
	podCertificate
)

// ref names an object that nodes may be related to.
type ref struct {
	kind            kind
	namespace, name string
}

// Graph knows which nodes each object is related to: pods and what they refer to by the
// node they are bound to, volumes by the claims bound to them, the rest by the node
// that they name.
type Graph struct {
	mu sync.RWMutex
	// owners are the objects that make relations: pods, attachments, slices …
	owners map[ref]relation
	// nodes counts, for each object, the relations to each node.
	nodes map[ref]map[string]int
	// volumes are bound claims by volume; volumesOf are the volumes that use a Secret.
	volumes   map[string]boundVolume
	volumesOf map[ref][]string
}

type relation struct {
	node string
	uid  types.UID
	// version tells whether references may have changed: they are immutable but for
	// ephemeral containers and claim statuses.
	version int
	refs    []ref
}

type boundVolume struct {
	claim   ref
	secrets []ref
}

// NewGraph returns an empty graph.
func NewGraph() *Graph {
	return &Graph{
		owners:    map[ref]relation{},
		nodes:     map[ref]map[string]int{},
		volumes:   map[string]boundVolume{},
		volumesOf: map[ref][]string{},
	}
}

// Related says whether a node has to do with an object.
func (g *Graph) Related(node string, r ref) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.nodes[r][node] > 0 {
		return true
	}
	switch r.kind {
	case volume:
		return g.hasVolume(node, r.name)
	case secret:
		return slices.ContainsFunc(g.volumesOf[r], func(v string) bool { return g.hasVolume(node, v) })
	}
	return false
}

func (g *Graph) hasVolume(node, name string) bool {
	v, ok := g.volumes[name]
	return ok && g.nodes[v.claim][node] > 0
}

// Part receives the objects of one kind (lookup.Index).
type Part struct {
	g    *Graph
	kind kind
}

// Pods, Volumes … feed the graph.
func (g *Graph) Pods() Part            { return Part{g, pod} }
func (g *Graph) Volumes() Part         { return Part{g, volume} }
func (g *Graph) Attachments() Part     { return Part{g, attachment} }
func (g *Graph) ResourceSlices() Part  { return Part{g, slice} }
func (g *Graph) PodCertificates() Part { return Part{g, podCertificate} }

// Replace implements lookup.Index.
func (p Part) Replace(objs []cacher.Object) {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	if p.kind == volume {
		for name := range p.g.volumes {
			p.g.removeVolume(name)
		}
	} else {
		for r := range p.g.owners {
			if r.kind == p.kind {
				p.g.remove(r)
			}
		}
	}
	for _, o := range objs {
		p.g.put(o.Runtime())
	}
}

// Set implements lookup.Index.
func (p Part) Set(o cacher.Object) {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	p.g.put(o.Runtime())
}

// Delete implements lookup.Index.
func (p Part) Delete(o cacher.Object) {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	if p.kind == volume {
		p.g.removeVolume(o.Meta().GetName())
		return
	}
	p.g.remove(ref{p.kind, o.Meta().GetNamespace(), o.Meta().GetName()})
}

func (g *Graph) put(o runtime.Object) {
	switch obj := o.(type) {
	case *corev1.Pod:
		r := ref{pod, obj.Namespace, obj.Name}
		rel := relation{
			node: obj.Spec.NodeName, uid: obj.UID,
			version: len(obj.Spec.EphemeralContainers) + len(obj.Status.ResourceClaimStatuses),
		}
		if x := obj.Status.ExtendedResourceClaimStatus; x != nil {
			rel.version++
		}
		if was, ok := g.owners[r]; ok && was.node == rel.node && was.uid == rel.uid && was.version == rel.version {
			return
		}
		g.remove(r)
		if rel.node == "" {
			return
		}
		rel.refs = append(podRefs(obj), r)
		g.add(r, rel)
	case *corev1.PersistentVolume:
		g.putVolume(obj)
	case *storagev1.VolumeAttachment:
		g.direct(ref{attachment, "", obj.Name}, obj.UID, obj.Spec.NodeName)
	case *resourcev1.ResourceSlice:
		node := ""
		if obj.Spec.NodeName != nil {
			node = *obj.Spec.NodeName
		}
		g.direct(ref{slice, "", obj.Name}, obj.UID, node)
	case *certificatesv1.PodCertificateRequest:
		g.direct(ref{podCertificate, obj.Namespace, obj.Name}, obj.UID, string(obj.Spec.NodeName))
	}
}

func (g *Graph) direct(r ref, uid types.UID, node string) {
	g.remove(r)
	if node != "" {
		g.add(r, relation{node: node, uid: uid, refs: []ref{r}})
	}
}

func (g *Graph) add(owner ref, rel relation) {
	g.owners[owner] = rel
	for _, r := range rel.refs {
		m := g.nodes[r]
		if m == nil {
			m = make(map[string]int, 1)
			g.nodes[r] = m
		}
		m[rel.node]++
	}
}

func (g *Graph) remove(owner ref) {
	rel, ok := g.owners[owner]
	if !ok {
		return
	}
	delete(g.owners, owner)
	for _, r := range rel.refs {
		m := g.nodes[r]
		if m[rel.node]--; m[rel.node] > 0 {
			continue
		}
		delete(m, rel.node)
		if len(m) == 0 {
			delete(g.nodes, r)
		}
	}
}

func (g *Graph) putVolume(pv *corev1.PersistentVolume) {
	g.removeVolume(pv.Name)
	c := pv.Spec.ClaimRef
	if c == nil {
		return
	}
	v := boundVolume{claim: ref{claim, c.Namespace, c.Name}, secrets: volumeSecrets(pv)}
	g.volumes[pv.Name] = v
	for _, s := range v.secrets {
		g.volumesOf[s] = append(g.volumesOf[s], pv.Name)
	}
}

func (g *Graph) removeVolume(name string) {
	for _, s := range g.volumes[name].secrets {
		rest := slices.DeleteFunc(g.volumesOf[s], func(v string) bool { return v == name })
		if len(rest) == 0 {
			delete(g.volumesOf, s)
		} else {
			g.volumesOf[s] = rest
		}
	}
	delete(g.volumes, name)
}
