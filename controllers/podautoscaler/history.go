package podautoscaler

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// history is what is remembered of one autoscaler. It is not stored: a new leader starts
// with what the target has.
type history struct {
	recommendations []recommendation // before stabilization
	grown, shrunk   []resizing
	selector        labels.Selector // of the target, as of the last pass
}

type recommendation struct {
	replicas int32
	at       time.Time
}

// resizing is by how many replicas a target was changed.
type resizing struct {
	by  int32
	at  time.Time
	old bool // no policy asks for it any more: its place is free
}

// begin notes what there is, as if it had been recommended: a controller that has just
// started does not shrink a target at once.
func (h *history) begin(replicas int32, now time.Time) {
	if h.recommendations == nil {
		h.recommendations = []recommendation{{replicas, now}}
	}
}

// recommend notes a recommendation in the place of one that is out of date.
func (h *history) recommend(replicas int32, now time.Time, outdated func(at time.Time) bool) {
	next := recommendation{replicas, now}
	for i := range slices.Backward(h.recommendations) {
		if outdated(h.recommendations[i].at) {
			h.recommendations[i] = next
			return
		}
	}
	h.recommendations = append(h.recommendations, next)
}

// resized notes a change, for as long as policies look back.
func (h *history) resized(b *autoscalingv2.HorizontalPodAutoscalerBehavior, from, to int32, now time.Time) {
	if b == nil {
		return // upstream's defaults do not look back
	}
	list, r := &h.shrunk, scaleDown(b)
	if to > from {
		list, r = &h.grown, scaleUp(b)
	}
	var longest int32
	for _, p := range r.Policies {
		longest = max(longest, p.PeriodSeconds)
	}
	cutoff := now.Add(-seconds(longest))
	free := -1
	for i := range *list {
		e := &(*list)[i]
		e.old = e.old || e.at.Before(cutoff)
		if e.old {
			free = i
		}
	}
	next := resizing{by: max(to-from, from-to), at: now}
	if free < 0 {
		*list = append(*list, next)
		return
	}
	(*list)[free] = next
}

func changed(list []resizing, since time.Time) int32 {
	var n int32
	for _, e := range list {
		if e.at.After(since) {
			n += e.by
		}
	}
	return n
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// The API completes behaviors; what an older server stored may lack parts.

func scaleUp(b *autoscalingv2.HorizontalPodAutoscalerBehavior) autoscalingv2.HPAScalingRules {
	r := ptr.Deref(b.ScaleUp, autoscalingv2.HPAScalingRules{})
	if r.Policies == nil {
		r.Policies = []autoscalingv2.HPAScalingPolicy{
			{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
			{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
		}
	}
	return r
}

func scaleDown(b *autoscalingv2.HorizontalPodAutoscalerBehavior) autoscalingv2.HPAScalingRules {
	r := ptr.Deref(b.ScaleDown, autoscalingv2.HPAScalingRules{})
	if r.Policies == nil {
		r.Policies = []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}}
	}
	return r
}

// limit is how far rules let a target go from current, where sign is 1 for growing and -1
// for shrinking.
func (h *history) limit(r autoscalingv2.HPAScalingRules, current int32, sign int32, now time.Time) int32 {
	choice := ptr.Deref(r.SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if choice == autoscalingv2.DisabledPolicySelect {
		return current
	}
	// The most change is the highest number for growing and the lowest for shrinking.
	highest := (choice == autoscalingv2.MaxChangePolicySelect) == (sign > 0)
	result, pick := int32(math.MaxInt32), func(a, b int32) int32 { return min(a, b) }
	if highest {
		result, pick = math.MinInt32, func(a, b int32) int32 { return max(a, b) }
	}
	for _, p := range r.Policies {
		since := now.Add(-seconds(p.PeriodSeconds))
		start := current - changed(h.grown, since) + changed(h.shrunk, since)
		n := current
		switch p.Type {
		case autoscalingv2.PodsScalingPolicy:
			n = int32(min(int64(start)+int64(sign)*int64(p.Value), math.MaxInt32))
		case autoscalingv2.PercentScalingPolicy:
			if part := float64(start) * (1 + float64(sign)*float64(p.Value)/100); sign > 0 {
				n = ceil(part) // else a small target would never grow
			} else {
				n = int32(part)
			}
		}
		result = pick(result, n)
	}
	if sign > 0 {
		return max(result, current)
	}
	return min(result, current)
}

// verdict is a number of replicas, and why it is not what was asked for.
type verdict struct {
	replicas        int32
	reason, message string
}

const (
	within   = "the desired count is within the acceptable range"
	tooFew   = "the desired replica count is less than the minimum replica count"
	tooMany  = "the desired replica count is more than the maximum replica count"
	tooFast  = "the desired replica count is increasing faster than the maximum scale rate"
	tooFast2 = "the desired replica count is decreasing faster than the maximum scale rate"
	wereMore = "recent recommendations were higher than current one, applying the highest recent recommendation"
	wereLess = "recent recommendations were lower than current one, applying the lowest recent recommendation"
)

// stabilize holds on to the highest recommendation of the window, for targets without a behavior.
func (h *history) stabilize(wanted int32, window time.Duration, now time.Time) verdict {
	cutoff := now.Add(-window)
	v := verdict{replicas: wanted, reason: "ScaleDownStabilized", message: wereMore}
	for _, r := range h.recommendations {
		if !r.at.Before(cutoff) {
			v.replicas = max(v.replicas, r.replicas)
		}
	}
	h.recommend(wanted, now, func(at time.Time) bool { return at.Before(cutoff) })
	return v
}

// stabilizeBy holds on to the lowest recommendation of one window before it grows, and to
// the highest of another before it shrinks.
func (h *history) stabilizeBy(b *autoscalingv2.HorizontalPodAutoscalerBehavior, current, wanted int32, otherwise time.Duration, now time.Time) verdict {
	window := int32(otherwise.Seconds())
	up := now.Add(-seconds(ptr.Deref(scaleUp(b).StabilizationWindowSeconds, 0)))
	down := now.Add(-seconds(ptr.Deref(scaleDown(b).StabilizationWindowSeconds, window)))
	least, most := wanted, wanted
	for _, r := range h.recommendations {
		if r.at.After(up) {
			least = min(least, r.replicas)
		}
		if r.at.After(down) {
			most = max(most, r.replicas)
		}
	}
	h.recommend(wanted, now, func(at time.Time) bool { return at.Before(up) && at.Before(down) })
	v := verdict{replicas: min(max(current, least), most), reason: "ScaleUpStabilized", message: wereLess}
	if wanted < current {
		v.reason, v.message = "ScaleDownStabilized", wereMore
	}
	return v
}

// bounds are the sizes between which an autoscaler keeps its target.
type bounds struct{ least, most int32 }

// clamp limits a size for targets without a behavior: at most twice as many, or four.
func (b bounds) clamp(current, wanted int32) verdict {
	fastest := ceil(max(2*float64(current), 4))
	switch {
	case wanted < b.least:
		return verdict{b.least, "TooFewReplicas", tooFew}
	case wanted > fastest && b.most > fastest:
		return verdict{fastest, "ScaleUpLimit", tooFast}
	case wanted > b.most:
		return verdict{b.most, "TooManyReplicas", tooMany}
	}
	return verdict{wanted, "DesiredWithinRange", within}
}

// clampBy limits a size by the rates of a behavior.
func (h *history) clampBy(behavior *autoscalingv2.HorizontalPodAutoscalerBehavior, b bounds, current, wanted int32, now time.Time) verdict {
	switch {
	case wanted > current:
		limit := h.limit(scaleUp(behavior), current, 1, now)
		if wanted > limit && b.most > limit {
			return verdict{limit, "ScaleUpLimit", tooFast}
		}
		if wanted > b.most {
			return verdict{b.most, "TooManyReplicas", tooMany}
		}
	case wanted < current:
		limit := h.limit(scaleDown(behavior), current, -1, now)
		if wanted < limit && b.least < limit {
			return verdict{limit, "ScaleDownLimit", tooFast2}
		}
		if wanted < b.least {
			return verdict{b.least, "TooFewReplicas", tooFew}
		}
	}
	return verdict{wanted, "DesiredWithinRange", within}
}
