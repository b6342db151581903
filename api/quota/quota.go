// Package quota counts what objects use of a namespace's ResourceQuotas; admission
// checks with it, and the resource quota controller sums up with it.
//
// Owns: which resources an object of a kind uses, and which quotas are about it. Must
// not: read or write anything.
package quota

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind counts objects of one resource.
type Kind struct {
	// Resource is what is counted.
	Resource schema.GroupResource
	// Updates: an update may change what an object uses.
	Updates bool

	usage   func(obj runtime.Object, now time.Time) corev1.ResourceList
	counts  func(name corev1.ResourceName) bool
	inScope func(s *corev1.ScopedResourceSelectorRequirement, obj runtime.Object) bool
	missing func(names []corev1.ResourceName, obj runtime.Object) error
}

// For returns how objects of a resource are counted. Every resource can be counted by the number of its objects.
func For(gr schema.GroupResource) *Kind {
	k := &Kind{Resource: gr}
	switch gr {
	case schema.GroupResource{Resource: "pods"}:
		k.usage, k.counts, k.inScope, k.missing = podUsage, countsPods, podInScope, podMissing
	case schema.GroupResource{Resource: "services"}:
		k.usage, k.counts, k.Updates = serviceUsage, countsServices, true
	case schema.GroupResource{Resource: "persistentvolumeclaims"}:
		k.usage, k.counts, k.inScope, k.Updates = claimUsage, countsClaims, claimInScope, true
	default:
		names := []corev1.ResourceName{countName(gr)}
		if gr.Group == "" {
			switch gr.Resource {
			case "configmaps", "resourcequotas", "replicationcontrollers", "secrets":
				names = append(names, corev1.ResourceName(gr.Resource))
			}
		}
		k.usage = func(runtime.Object, time.Time) corev1.ResourceList {
			l := corev1.ResourceList{}
			for _, n := range names {
				l[n] = number(1)
			}
			return l
		}
		k.counts = func(name corev1.ResourceName) bool { return slices.Contains(names, name) }
	}
	return k
}

// countName is the name under which a quota limits the number of objects.
func countName(gr schema.GroupResource) corev1.ResourceName {
	return corev1.ResourceName(strings.TrimSuffix("count/"+gr.Resource+"."+gr.Group, "."))
}

func number(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

// Usage is what an object uses.
func (k *Kind) Usage(obj runtime.Object, now time.Time) corev1.ResourceList { return k.usage(obj, now) }

// Counts are those of the names that objects of the kind use.
func (k *Kind) Counts(names []corev1.ResourceName) []corev1.ResourceName {
	return slices.DeleteFunc(slices.Clone(names), func(n corev1.ResourceName) bool { return !k.counts(n) })
}

// Matches says whether a quota is about an object.
func (k *Kind) Matches(q *corev1.ResourceQuota, obj runtime.Object) bool {
	return len(k.Counts(Names(q.Status.Hard))) > 0 && k.InScopes(&q.Spec, obj)
}

// InScopes says whether an object is within all scopes of a quota. A quota with scopes that
// the kind knows nothing of is not about it.
func (k *Kind) InScopes(spec *corev1.ResourceQuotaSpec, obj runtime.Object) bool {
	for _, s := range Scopes(spec) {
		if k.inScope == nil || !k.inScope(&s, obj) {
			return false
		}
	}
	return true
}

// Missing says what an object must specify to be counted under these names.
func (k *Kind) Missing(names []corev1.ResourceName, obj runtime.Object) error {
	if k.missing == nil {
		return nil
	}
	return k.missing(names, obj)
}

// Scopes are both forms of a quota's scopes in one.
func Scopes(spec *corev1.ResourceQuotaSpec) []corev1.ScopedResourceSelectorRequirement {
	var out []corev1.ScopedResourceSelectorRequirement
	for _, s := range spec.Scopes {
		out = append(out, corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists})
	}
	if spec.ScopeSelector != nil {
		out = append(out, spec.ScopeSelector.MatchExpressions...)
	}
	return out
}

// Names are the names in a list, sorted.
func Names(l corev1.ResourceList) []corev1.ResourceName { return slices.Sorted(maps.Keys(l)) }

// Only keeps of a list what is named.
func Only(l corev1.ResourceList, names []corev1.ResourceName) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, n := range names {
		if v, ok := l[n]; ok {
			out[n] = v
		}
	}
	return out
}

// Add sums two lists.
func Add(a, b corev1.ResourceList) corev1.ResourceList {
	out := maps.Clone(a)
	if out == nil {
		out = corev1.ResourceList{}
	}
	for k, v := range b {
		sum := v.DeepCopy()
		if have, ok := out[k]; ok {
			sum = have.DeepCopy()
			sum.Add(v)
		}
		out[k] = sum
	}
	return out
}

// Growth is by how much b exceeds a, without what does not.
func Growth(a, b corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for k, v := range b {
		diff := v.DeepCopy()
		if have, ok := a[k]; ok {
			diff.Sub(have)
		}
		if diff.Sign() > 0 {
			out[k] = diff
		}
	}
	return out
}

// Exceeded are the names under which used is above hard.
func Exceeded(used, hard corev1.ResourceList) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, k := range Names(used) {
		u := used[k]
		if h, ok := hard[k]; ok && u.Cmp(h) > 0 {
			out = append(out, k)
		}
	}
	return out
}

// matches says whether a value is what a scope's selector wants; ok is whether there is a value.
func matches(s *corev1.ScopedResourceSelectorRequirement, value string, ok bool) bool {
	switch s.Operator {
	case corev1.ScopeSelectorOpExists:
		return ok
	case corev1.ScopeSelectorOpDoesNotExist:
		return !ok
	case corev1.ScopeSelectorOpIn:
		return ok && slices.Contains(s.Values, value)
	case corev1.ScopeSelectorOpNotIn:
		return !ok || !slices.Contains(s.Values, value)
	}
	return false
}
