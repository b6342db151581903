package garbagecollector

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// resource is one kind of objects as discovery tells it.
type resource struct {
	gvr        schema.GroupVersionResource
	namespaced bool
}

// node is what the graph knows of an object: as little as decides its deletion.
type node struct {
	uid             types.UID
	res             resource
	namespace, name string
	owners          []metav1.OwnerReference
	dependents      map[types.UID]struct{}

	deleting   bool // deletionTimestamp is set
	foreground bool // … with the finalizer foregroundDeletion: waits for dependents
	orphan     bool // … with the finalizer orphan: dependents are to be let go
	// virtual nodes were named as owners and not seen yet. They may not exist.
	virtual bool
	claimed ownerClaim // how dependents name a virtual one
}

// ownerClaim is an owner as a dependent names it.
type ownerClaim struct {
	apiVersion, kind, name, namespace string
}

// graph is all objects and who owns whom. Pure: events go in, uids to look at come out.
type graph struct {
	nodes map[types.UID]*node
}

func newGraph() *graph { return &graph{nodes: map[types.UID]*node{}} }

// work is what an event calls for.
type work struct {
	look   []types.UID // maybe delete these, or let them finish
	orphan []types.UID // let the dependents of these go
}

// set applies an object's addition or change.
func (g *graph) set(res resource, o *metav1.PartialObjectMetadata) (w work) {
	n := g.nodes[o.UID]
	fresh := n == nil
	wasForeground, wasOrphan := false, false
	if fresh {
		n = &node{uid: o.UID}
		g.nodes[o.UID] = n
	} else {
		wasForeground, wasOrphan = n.foreground && n.deleting, n.orphan && n.deleting
	}
	old, wasVirtual := n.owners, n.virtual
	n.virtual = false
	n.res, n.namespace, n.name = res, o.Namespace, o.Name
	n.owners = slices.Clone(o.OwnerReferences)
	n.deleting = o.DeletionTimestamp != nil
	n.foreground = slices.Contains(o.Finalizers, metav1.FinalizerDeleteDependents)
	n.orphan = slices.Contains(o.Finalizers, metav1.FinalizerOrphanDependents)

	for i := range n.owners {
		w.add(g.link(n, &n.owners[i]))
	}
	for i := range old {
		r := &old[i]
		now := ownerRef(n.owners, r.UID)
		if now == nil {
			g.unlink(n, r.UID)
		}
		// An owner that waits for us need wait no longer.
		if (now == nil || blocks(r) && !blocks(now)) && g.waiting(r.UID) {
			w.look = append(w.look, r.UID)
		}
	}
	if wasVirtual {
		for d := range n.dependents {
			if dep := g.nodes[d]; dep != nil && !fits(n, dep) {
				w.look = append(w.look, d)
			}
		}
	}
	if n.deleting && n.foreground && !wasForeground {
		w.look = append(w.look, n.uid)
		for d := range n.dependents {
			w.look = append(w.look, d)
		}
	}
	if n.deleting && n.orphan && !wasOrphan {
		w.orphan = append(w.orphan, n.uid)
	}
	if n.deleting && !fresh || len(n.owners) < len(old) {
		for i := range n.owners {
			if g.waiting(n.owners[i].UID) {
				w.look = append(w.look, n.owners[i].UID)
			}
		}
	}
	return w
}

func blocks(r *metav1.OwnerReference) bool {
	return r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion
}

func ownerRef(refs []metav1.OwnerReference, uid types.UID) *metav1.OwnerReference {
	for i := range refs {
		if refs[i].UID == uid {
			return &refs[i]
		}
	}
	return nil
}

func (w *work) add(v work) {
	w.look = append(w.look, v.look...)
	w.orphan = append(w.orphan, v.orphan...)
}

// link makes n a dependent of the owner that r names.
func (g *graph) link(n *node, r *metav1.OwnerReference) (w work) {
	owner := g.nodes[r.UID]
	if owner == nil {
		owner = &node{uid: r.UID, name: r.Name, namespace: n.namespace, virtual: true,
			claimed: ownerClaim{r.APIVersion, r.Kind, r.Name, n.namespace}}
		g.nodes[r.UID] = owner
		w.look = append(w.look, r.UID) // does it exist?
	}
	if owner.dependents == nil {
		owner.dependents = map[types.UID]struct{}{}
	}
	if _, ok := owner.dependents[n.uid]; ok {
		return w
	}
	owner.dependents[n.uid] = struct{}{}
	switch {
	case !owner.virtual && !fits(owner, n):
		w.look = append(w.look, n.uid) // names an owner in another namespace
	case owner.deleting && owner.foreground:
		w.look = append(w.look, n.uid)
	}
	return w
}

// fits reports whether an owner may own n: it is of the cluster, or of n's namespace.
func fits(owner, n *node) bool { return owner.namespace == "" || owner.namespace == n.namespace }

func (g *graph) unlink(n *node, owner types.UID) {
	o := g.nodes[owner]
	if o == nil {
		return
	}
	delete(o.dependents, n.uid)
	if o.virtual && len(o.dependents) == 0 {
		delete(g.nodes, owner)
	}
}

// waiting reports whether an object is being deleted and waits for its dependents.
func (g *graph) waiting(uid types.UID) bool {
	n := g.nodes[uid]
	return n != nil && n.deleting && n.foreground
}

// remove applies an object's end. Its dependents and those that waited for it are to be
// looked at.
func (g *graph) remove(uid types.UID) (w work) {
	n := g.nodes[uid]
	if n == nil {
		return w
	}
	delete(g.nodes, uid)
	for i := range n.owners {
		g.unlink(n, n.owners[i].UID)
		if g.waiting(n.owners[i].UID) {
			w.look = append(w.look, n.owners[i].UID)
		}
	}
	for d := range n.dependents {
		w.look = append(w.look, d)
	}
	return w
}

// standing of an owner.
type standing int

const (
	solid    standing = iota // exists
	dangling                 // does not
	waits                    // is being deleted in the foreground
	unknown                  // is to be asked about
)

// owner tells how an owner of n stands by what the graph knows.
func (g *graph) owner(n *node, r *metav1.OwnerReference) standing {
	o := g.nodes[r.UID]
	switch {
	case o == nil || o.virtual:
		return unknown
	case !fits(o, n):
		return dangling
	case o.deleting && o.foreground:
		return waits
	}
	return solid
}

// misfit reports whether r names an existing object that cannot own n.
func (g *graph) misfit(n *node, r *metav1.OwnerReference) bool {
	o := g.nodes[r.UID]
	return o != nil && !o.virtual && !fits(o, n)
}

// blockers are the dependents that hold a foreground deletion.
func (g *graph) blockers(n *node) []*node {
	var out []*node
	for uid := range n.dependents {
		d := g.nodes[uid]
		if d == nil {
			continue
		}
		if r := ownerRef(d.owners, n.uid); r != nil && blocks(r) {
			out = append(out, d)
		}
	}
	return out
}

// subtree reports whether n has dependents, and whether any of them is itself waiting for
// its own dependents.
func (g *graph) subtree(n *node) (dependents, deleting bool) {
	for uid := range n.dependents {
		dependents = true
		if g.waiting(uid) {
			return true, true
		}
	}
	return dependents, false
}
