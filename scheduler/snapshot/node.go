package snapshot

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
)

// Node is a node and the pods on it, assumed ones included.
type Node struct {
	Object      *corev1.Node // nil for a node that only pods speak of
	Allocatable Resources
	AllowedPods int

	Requested                 Resources
	NonzeroCPU, NonzeroMemory int64
	Pods                      []*Pod
	Ports                     []podfit.HostPort
	// Affine have any pod affinity or anti-affinity; Repelling required anti-affinity.
	Affine, Repelling []*Pod
	// Images are sizes by name, as the node reports them.
	Images map[string]int64
	// HardTaints forbid scheduling, SoftTaints prefer others.
	HardTaints, SoftTaints []corev1.Taint
	Zone                   string
	// Index is the node's place in Snapshot.Nodes; -1 when it is not there.
	Index int
}

// Name of the node; its object must be known.
func (n *Node) Name() string { return n.Object.Name }

func (n *Node) setObject(o *corev1.Node) {
	n.Object = o
	n.Allocatable = ResourcesOf(o.Status.Allocatable)
	n.AllowedPods = int(o.Status.Allocatable.Pods().Value())
	n.HardTaints, n.SoftTaints = nil, nil
	for _, t := range o.Spec.Taints {
		switch t.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute:
			n.HardTaints = append(n.HardTaints, t)
		case corev1.TaintEffectPreferNoSchedule:
			n.SoftTaints = append(n.SoftTaints, t)
		}
	}
	n.Zone = zone(o)
	n.Images = make(map[string]int64, len(o.Status.Images))
	for _, img := range o.Status.Images {
		for _, name := range img.Names {
			n.Images[name] = img.SizeBytes
		}
	}
}

func zone(o *corev1.Node) string {
	return o.Labels[corev1.LabelTopologyRegion] + "\x00" + o.Labels[corev1.LabelTopologyZone]
}

// ImageName is an image reference as nodes report them: with a tag.
func ImageName(ref string) string {
	if strings.LastIndexByte(ref, ':') <= strings.LastIndexByte(ref, '/') {
		return ref + ":latest"
	}
	return ref
}

// add puts a pod on the node.
func (n *Node) add(p *Pod) {
	n.Pods = append(n.Pods, p)
	n.account(p, 1)
	n.Ports = append(n.Ports, p.Ports...)
	if p.hasAffinity() {
		n.Affine = append(n.Affine, p)
	}
	if len(p.RequiredAntiAffinity) > 0 {
		n.Repelling = append(n.Repelling, p)
	}
}

// remove takes a pod away, found by its uid; false when it is not there.
func (n *Node) remove(p *Pod) bool {
	i := slices.IndexFunc(n.Pods, func(q *Pod) bool { return q.UID == p.UID })
	if i < 0 {
		return false
	}
	was := n.Pods[i]
	n.Pods = swapDelete(n.Pods, i)
	n.account(was, -1)
	for _, port := range was.Ports {
		if j := slices.Index(n.Ports, port); j >= 0 {
			n.Ports = slices.Delete(n.Ports, j, j+1)
		}
	}
	drop := func(list []*Pod) []*Pod {
		if j := slices.Index(list, was); j >= 0 {
			return swapDelete(list, j)
		}
		return list
	}
	n.Affine, n.Repelling = drop(n.Affine), drop(n.Repelling)
	return true
}

func swapDelete(list []*Pod, i int) []*Pod {
	last := len(list) - 1
	list[i] = list[last]
	list[last] = nil
	return list[:last]
}

func (n *Node) account(p *Pod, sign int64) {
	n.Requested.add(&p.Requests, sign)
	n.NonzeroCPU += sign * p.NonzeroCPU
	n.NonzeroMemory += sign * p.NonzeroMemory
}
