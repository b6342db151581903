package framework

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Cycle is one attempt to schedule one pod.
type Cycle struct {
	Pod  *snapshot.Pod
	Snap *snapshot.Snapshot
	Now  time.Time
	// Only restricts the search to these nodes, when not nil (PreFilter may set it).
	Only map[string]struct{}
	// Nominated are pods of at least this one's priority that wait for room on a node.
	Nominated func(node string, yield func(*snapshot.Pod))

	state map[any]any
}

// Set keeps a plugin's state for the rest of the cycle, and for its binding.
func (c *Cycle) Set(key, value any) {
	if c.state == nil {
		c.state = make(map[any]any, 4)
	}
	c.state[key] = value
}

// Get returns what Set kept, or nil.
func (c *Cycle) Get(key any) any { return c.state[key] }

// Restrict narrows Only to the named nodes.
func (c *Cycle) Restrict(names map[string]struct{}) {
	if c.Only == nil {
		c.Only = names
		return
	}
	both := map[string]struct{}{}
	for n := range names {
		if _, ok := c.Only[n]; ok {
			both[n] = struct{}{}
		}
	}
	c.Only = both
}

// UID of the pod.
func (c *Cycle) UID() types.UID { return c.Pod.UID }

// NormalizeDefault scales scores so that the greatest becomes MaxScore; with reverse the
// least does.
func NormalizeDefault(scores []int64, reverse bool) {
	var top int64
	for _, s := range scores {
		top = max(top, s)
	}
	for i, s := range scores {
		switch {
		case top == 0 && reverse:
			scores[i] = MaxScore
		case top == 0:
			scores[i] = 0
		case reverse:
			scores[i] = MaxScore - MaxScore*s/top
		default:
			scores[i] = MaxScore * s / top
		}
	}
}
