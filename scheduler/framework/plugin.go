package framework

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// MaxScore is the best score of one plugin for one node; the least is 0.
const MaxScore int64 = 100

// Plugin has at least a name, as in upstream's configuration.
type Plugin interface {
	Name() string
}

// PreEnqueue keeps a pod out of the queue until its update or an event changes that.
type PreEnqueue interface {
	PreEnqueue(p *corev1.Pod) *Status
}

// PreFilter looks once at the pod and the cluster. Skip disables the plugin's Filter;
// a rejection ends the cycle for all nodes.
type PreFilter interface {
	PreFilter(c *Cycle) *Status
}

// Filter decides about one node. It is called for very many and must not allocate, write
// to the cycle, nor be slow; calls may be concurrent.
type Filter interface {
	Filter(c *Cycle, n *snapshot.Node) *Status
}

// Incremental plugins follow pods put on or taken off a node after PreFilter, so that
// preemption can try without them. Called in pairs that undo each other.
type Incremental interface {
	AddPod(c *Cycle, p *snapshot.Pod, n *snapshot.Node)
	RemovePod(c *Cycle, p *snapshot.Pod, n *snapshot.Node)
}

// PostFilter runs when no node fits. A nominated node may come of it; nil leaves a former
// nomination as it is.
type PostFilter interface {
	PostFilter(c *Cycle, statuses []*Status) (*Nomination, *Status)
}

// Nomination is what PostFilter found: a node that fits once the victims are gone. Without a
// Node it withdraws the pod's former nomination.
type Nomination struct {
	Node    string
	Victims []*snapshot.Pod
}

// PreScore looks once at the feasible nodes. Skip: the plugin scores all nodes alike.
type PreScore interface {
	PreScore(c *Cycle, nodes []*snapshot.Node) *Status
}

// Score rates one node; raw values may have any range if the plugin is a Normalizer.
type Score interface {
	Score(c *Cycle, n *snapshot.Node) int64
}

// Normalizer brings raw scores into 0 … MaxScore, in place.
type Normalizer interface {
	Normalize(c *Cycle, nodes []*snapshot.Node, scores []int64)
}

// Reserve claims something for the pod on the node, which Unreserve gives back.
type Reserve interface {
	Reserve(c *Cycle, n *snapshot.Node) *Status
	Unreserve(c *Cycle, node string)
}

// Permit allows, refuses or (Wait) holds a binding for at most the duration.
type Permit interface {
	Permit(c *Cycle, node string) (time.Duration, *Status)
}

// PreBind does what must be done before the pod is bound. It runs in a goroutine of the
// binding and must not touch the snapshot.
type PreBind interface {
	PreBind(ctx context.Context, c *Cycle, node string) error
}

// Bind binds the pod; the first that does not skip ends it.
type Bind interface {
	Bind(ctx context.Context, p *corev1.Pod, node string) error
}

// EventKind is a set of kinds of changes.
type EventKind uint32

// Changes in the cluster that may make a pod schedulable.
const (
	NodeAdd EventKind = 1 << iota
	NodeAllocatable
	NodeLabel
	NodeTaint // also spec.unschedulable
	NodeDelete
	PodAdd        // to a node
	PodUpdate     // labels or smaller requests of one on a node
	PodTerminates // one on a node is being deleted, and still there
	PodDelete     // off a node
	SelfUpdate
	VolumeChange // claims, volumes, classes, CSI nodes and capacities
	NamespaceChange
)

// Event is one change.
type Event struct {
	Kind          EventKind
	OldNode, Node *corev1.Node
	OldPod, Pod   *snapshot.Pod
}

// Requeuer tells which events may help a pod that the plugin rejected. Plugins without it
// are asked again on any event.
type Requeuer interface {
	Hints() []Hint
}

// Hint names events; Worth, when not nil, tells whether one may help this pod.
type Hint struct {
	Kinds EventKind
	Worth func(p *snapshot.Pod, e Event) bool
}
