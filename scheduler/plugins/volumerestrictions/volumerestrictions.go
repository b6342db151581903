// Package volumerestrictions has the plugin VolumeRestrictions: a claim with access mode
// ReadWriteOncePod is for one pod in the whole cluster (KEP-2485).
package volumerestrictions

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/plugins/volumebinding"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "VolumeRestrictions"

var inUse = framework.NewStatus(framework.Unschedulable, Name, "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")

// Plugin is VolumeRestrictions.
type Plugin struct {
	claims corelisters.PersistentVolumeClaimLister
}

// New makes the plugin.
func New(claims corelisters.PersistentVolumeClaimLister) *Plugin { return &Plugin{claims} }

// Name of the plugin.
func (*Plugin) Name() string { return Name }

type stateKey struct{}

// users counts the pods that use the pod's exclusive claims.
type users struct {
	claims []string
	count  int
}

func (u *users) conflicts(p, q *snapshot.Pod) bool {
	if p.Namespace != q.Namespace || p.UID == q.UID {
		return false
	}
	names, _ := volumebinding.ClaimNames(q.Pod)
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(u.claims, n) })
}

// PreFilter skips pods without exclusive claims.
func (pl *Plugin) PreFilter(c *framework.Cycle) *framework.Status {
	names, _ := volumebinding.ClaimNames(c.Pod.Pod)
	u := &users{}
	for _, n := range names {
		claim, err := pl.claims.PersistentVolumeClaims(c.Pod.Namespace).Get(n)
		if err == nil && slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			u.claims = append(u.claims, n)
		}
	}
	if len(u.claims) == 0 {
		return framework.Skipped
	}
	for _, n := range c.Snap.Nodes {
		for _, q := range n.Pods {
			if u.conflicts(c.Pod, q) {
				u.count++
			}
		}
	}
	c.Set(stateKey{}, u)
	return nil
}

// AddPod and RemovePod keep the count while preemption tries.
func (*Plugin) AddPod(c *framework.Cycle, q *snapshot.Pod, _ *snapshot.Node) {
	if u, ok := c.Get(stateKey{}).(*users); ok && u.conflicts(c.Pod, q) {
		u.count++
	}
}

// RemovePod undoes AddPod.
func (*Plugin) RemovePod(c *framework.Cycle, q *snapshot.Pod, _ *snapshot.Node) {
	if u, ok := c.Get(stateKey{}).(*users); ok && u.conflicts(c.Pod, q) {
		u.count--
	}
}

// Filter refuses while somebody uses a claim.
func (*Plugin) Filter(c *framework.Cycle, _ *snapshot.Node) *framework.Status {
	if u, ok := c.Get(stateKey{}).(*users); ok && u.count > 0 {
		return inUse
	}
	return nil
}

// Hints: the user goes.
func (*Plugin) Hints() []framework.Hint {
	return []framework.Hint{{Kinds: framework.PodDelete | framework.VolumeChange | framework.NodeAdd | framework.SelfUpdate}}
}
