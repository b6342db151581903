// Package imagelocality has the plugin ImageLocality: nodes that have the pod's images
// already are preferred, the more so the more bytes that saves and the more nodes have
// them (so that a node with an image does not attract all pods of it).
package imagelocality

import (
	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "ImageLocality"

const (
	mb           int64 = 1024 * 1024
	minThreshold       = 23 * mb   // less is not worth it
	maxThreshold       = 1000 * mb // per container
)

// Plugin is ImageLocality.
type Plugin struct{}

// Name of the plugin.
func (Plugin) Name() string { return Name }

// images are the pod's with the share of nodes that have each.
type images struct {
	names  []string
	spread []float64
	count  int64
}

type key struct{}

// PreScore looks up the pod's images once; it skips when no node has any.
func (Plugin) PreScore(c *framework.Cycle, _ []*snapshot.Node) *framework.Status {
	var im images
	total := float64(len(c.Snap.Nodes))
	note := func(ref string) {
		im.count++
		name := snapshot.ImageName(ref)
		if n := c.Snap.ImageNodes[name]; n > 0 {
			im.names = append(im.names, name)
			im.spread = append(im.spread, float64(n)/total)
		}
	}
	for i := range c.Pod.Spec.InitContainers {
		note(c.Pod.Spec.InitContainers[i].Image)
	}
	for i := range c.Pod.Spec.Containers {
		note(c.Pod.Spec.Containers[i].Image)
	}
	for i := range c.Pod.Spec.Volumes {
		if v := &c.Pod.Spec.Volumes[i]; v.Image != nil {
			note(v.Image.Reference)
		}
	}
	if len(im.names) == 0 {
		return framework.Skipped
	}
	c.Set(key{}, &im)
	return nil
}

// Score scales the bytes between the thresholds.
func (Plugin) Score(c *framework.Cycle, n *snapshot.Node) int64 {
	im, ok := c.Get(key{}).(*images)
	if !ok {
		return 0
	}
	var sum int64
	for i, name := range im.names {
		sum += int64(float64(n.Images[name]) * im.spread[i])
	}
	most := maxThreshold * im.count
	sum = min(max(sum, minThreshold), most)
	return framework.MaxScore * (sum - minThreshold) / (most - minThreshold)
}
