package deployment

import (
	"cmp"
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func size(rs *appsv1.ReplicaSet) int32 {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

func rolling(d *appsv1.Deployment) bool {
	return d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType
}

// fences resolves maxSurge (rounded up) and maxUnavailable (rounded down) for the
// Deployment's size. Both may come out 0 by rounding; then one pod may be unavailable.
func fences(d *appsv1.Deployment) (surge, unavailable int32) {
	if !rolling(d) {
		return 0, 0
	}
	ru := d.Spec.Strategy.RollingUpdate
	if ru == nil {
		ru = &appsv1.RollingUpdateDeployment{}
	}
	scaled := func(v *intstr.IntOrString, up bool) int32 {
		n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, intstr.FromInt32(0)), int(replicas(d)), up)
		if err != nil { // validation admits no such value
			return 0
		}
		return int32(n)
	}
	surge, unavailable = scaled(ru.MaxSurge, true), scaled(ru.MaxUnavailable, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func maxSurge(d *appsv1.Deployment) int32 {
	surge, _ := fences(d)
	return surge
}

func maxUnavailable(d *appsv1.Deployment) int32 {
	_, unavailable := fences(d)
	return min(unavailable, replicas(d))
}

// grownSize is what the current set may grow to now, given the sizes of all.
func grownSize(d *appsv1.Deployment, current, total int32) int32 {
	if !rolling(d) {
		return replicas(d)
	}
	room := replicas(d) + maxSurge(d) - total
	return current + max(0, min(room, replicas(d)-current))
}

// sizes is the wanted size of each set.
type sizes map[*appsv1.ReplicaSet]int32

// rollOld shrinks old sets as far as availability allows: first their unavailable pods,
// which nobody misses, then available ones, oldest set first.
func rollOld(d *appsv1.Deployment, current *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) sizes {
	byAge(old)
	want := sizes{}
	var total, available int32
	for _, rs := range append(slices.Clone(old), current) {
		total += size(rs)
		available += rs.Status.AvailableReplicas
	}
	least := replicas(d) - maxUnavailable(d)
	budget := total - least - (size(current) - current.Status.AvailableReplicas)
	if budget <= 0 {
		return want
	}
	left := budget
	for _, rs := range old {
		want[rs] = size(rs)
		if n := min(left, size(rs)-rs.Status.AvailableReplicas); n > 0 {
			want[rs] -= n
			left -= n
		}
	}
	spare := available - least
	for _, rs := range old {
		if n := min(spare, want[rs]); n > 0 {
			want[rs] -= n
			spare -= n
		}
	}
	return want
}

// scale follows a change of spec.replicas without hastening the rollout: one active set
// takes it all; several grow or shrink in proportion.
func scale(d *appsv1.Deployment, current *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) sizes {
	want := sizes{}
	all := slices.Clone(old)
	if current != nil {
		all = append(all, current)
	}
	active := slices.DeleteFunc(slices.Clone(all), func(rs *appsv1.ReplicaSet) bool { return size(rs) == 0 })
	switch {
	case len(all) == 0:
		return want
	case len(active) == 1:
		want[active[0]] = replicas(d)
		return want
	case len(active) == 0:
		latest := current
		if latest == nil {
			byAge(old)
			latest = old[len(old)-1]
		}
		want[latest] = replicas(d)
		return want
	case saturated(d, current):
		for _, rs := range old {
			if size(rs) > 0 {
				want[rs] = 0
			}
		}
		return want
	case !rolling(d):
		return want
	}

	var total, allowed int32
	for _, rs := range active {
		total += size(rs)
	}
	if replicas(d) > 0 {
		allowed = replicas(d) + maxSurge(d)
	}
	add := allowed - total
	// Larger sets first; of equals the newer when growing, the older when shrinking.
	slices.SortStableFunc(active, func(a, b *appsv1.ReplicaSet) int {
		age := compareAge(a, b)
		if add > 0 {
			age = -age
		}
		return cmp.Or(cmp.Compare(size(b), size(a)), age)
	})
	var added int32
	for _, rs := range active {
		share := int32(0)
		if add != 0 {
			share = proportion(d, rs, add, added)
		}
		want[rs] = size(rs) + share
		added += share
	}
	if add != 0 {
		first := active[0]
		want[first] = max(0, want[first]+add-added)
	}
	return want
}

// proportion is rs's share of add, of which added has been given out.
func proportion(d *appsv1.Deployment, rs *appsv1.ReplicaSet, add, added int32) int32 {
	if size(rs) == 0 {
		return 0
	}
	share := -size(rs)
	if replicas(d) != 0 {
		// The annotation says how large the whole was when rs got its size.
		whole, ok := sizeAnnotation(rs, MaxReplicasAnnotation)
		if !ok || whole == 0 {
			whole = d.Status.Replicas
		}
		if whole == 0 {
			return 0
		}
		grown := float64(size(rs)) * float64(replicas(d)+maxSurge(d)) / float64(whole)
		share = int32(math.Round(grown)) - size(rs)
	}
	if allowed := add - added; add > 0 {
		return min(share, allowed)
	} else {
		return max(share, allowed)
	}
}

// saturated: the current set has all the pods and they are available.
func saturated(d *appsv1.Deployment, rs *appsv1.ReplicaSet) bool {
	if rs == nil {
		return false
	}
	desired, ok := sizeAnnotation(rs, DesiredReplicasAnnotation)
	return ok && desired == replicas(d) && size(rs) == desired && rs.Status.AvailableReplicas == desired
}

func compareAge(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// byAge sorts the oldest first.
func byAge(sets []*appsv1.ReplicaSet) { slices.SortStableFunc(sets, compareAge) }
