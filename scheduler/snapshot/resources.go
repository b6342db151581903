// Package snapshot is the scheduler's picture of the cluster: what nodes have, which
// pods they run, and which pods are on their way to them.
//
// Everything that filtering and scoring read per node is computed when an object
// changes, never per node and pod. A Snapshot belongs to one goroutine: the scheduling
// loop applies events to it between cycles, so cycles need no copy and no lock.
// Objects in it are shared with the informers and are never changed.
package snapshot

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Resources are amounts in the units scheduling counts in: thousandths of CPUs, bytes,
// and whole units of everything else.
type Resources struct {
	MilliCPU, Memory, EphemeralStorage int64
	Scalars                            []Scalar // by name; extended resources, huge pages …
}

// Scalar is an amount of a resource that only some nodes have.
type Scalar struct {
	Name  corev1.ResourceName
	Value int64
}

// ResourcesOf reads a resource list; pods are counted apart.
func ResourcesOf(list corev1.ResourceList) Resources {
	var r Resources
	for name, q := range list {
		r.set(name, q)
	}
	slices.SortFunc(r.Scalars, func(a, b Scalar) int { return cmp.Compare(a.Name, b.Name) })
	return r
}

func (r *Resources) set(name corev1.ResourceName, q resource.Quantity) {
	switch name {
	case corev1.ResourceCPU:
		r.MilliCPU = q.MilliValue()
	case corev1.ResourceMemory:
		r.Memory = q.Value()
	case corev1.ResourceEphemeralStorage:
		r.EphemeralStorage = q.Value()
	case corev1.ResourcePods:
	default:
		r.Scalars = append(r.Scalars, Scalar{name, q.Value()})
	}
}

// Get returns an amount by name.
func (r *Resources) Get(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.MilliCPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	}
	return r.Scalar(name)
}

// Scalar returns the amount of a scalar resource.
func (r *Resources) Scalar(name corev1.ResourceName) int64 {
	for i := range r.Scalars {
		if r.Scalars[i].Name == name {
			return r.Scalars[i].Value
		}
	}
	return 0
}

// Zero reports whether nothing is asked for.
func (r *Resources) Zero() bool {
	return r.MilliCPU == 0 && r.Memory == 0 && r.EphemeralStorage == 0 && len(r.Scalars) == 0
}

// add adds sign × o.
func (r *Resources) add(o *Resources, sign int64) {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.EphemeralStorage += sign * o.EphemeralStorage
next:
	for i := range o.Scalars {
		for j := range r.Scalars {
			if r.Scalars[j].Name == o.Scalars[i].Name {
				r.Scalars[j].Value += sign * o.Scalars[i].Value
				continue next
			}
		}
		r.Scalars = append(r.Scalars, Scalar{o.Scalars[i].Name, sign * o.Scalars[i].Value})
	}
}
