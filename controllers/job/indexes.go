package job

import (
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// noIndex is the completion index of a pod that has none.
const noIndex = -1

// indexOf reads a pod's completion index.
func indexOf(p *corev1.Pod) int {
	v, ok := p.Annotations[batchv1.JobCompletionIndexAnnotation]
	if !ok {
		return noIndex
	}
	i, err := strconv.Atoi(v)
	if err != nil || i < 0 {
		return noIndex
	}
	return i
}

// span is an inclusive range of indexes.
type span struct{ first, last int }

// indexes is a set of completion indexes, as ordered spans that do not touch.
type indexes []span

// parseIndexes reads status.completedIndexes ("1,3-5"), dropping what is not below limit.
func parseIndexes(s string, limit int) indexes {
	var out indexes
	if s == "" {
		return nil
	}
	for _, part := range strings.Split(s, ",") {
		a, b, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(a)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(b); err != nil {
				continue
			}
		}
		if first >= limit {
			continue
		}
		out = append(out, span{first, min(last, limit-1)})
	}
	return out.joined()
}

// joined sorts spans and merges those that touch.
func (x indexes) joined() indexes {
	slices.SortFunc(x, func(a, b span) int { return a.first - b.first })
	var out indexes
	for _, s := range x {
		if n := len(out); n > 0 && s.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, s.last)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// with returns the union.
func (x indexes) with(y indexes) indexes { return append(slices.Clone(x), y...).joined() }

// plus returns the set with single indexes added.
func (x indexes) plus(ix ...int) indexes {
	out := slices.Clone(x)
	for _, i := range ix {
		out = append(out, span{i, i})
	}
	return out.joined()
}

func (x indexes) has(i int) bool {
	return slices.ContainsFunc(x, func(s span) bool { return s.first <= i && i <= s.last })
}

func (x indexes) total() int {
	n := 0
	for _, s := range x {
		n += s.last - s.first + 1
	}
	return n
}

// overlap counts the indexes in both.
func (x indexes) overlap(y indexes) int {
	n := 0
	for _, a := range x {
		for _, b := range y {
			n += max(0, min(a.last, b.last)-max(a.first, b.first)+1)
		}
	}
	return n
}

// missing returns the first n indexes below limit that are not in the set.
func (x indexes) missing(n, limit int) []int {
	var out []int
	next := 0
	add := func(until int) {
		for ; next < min(until, limit) && len(out) < n; next++ {
			out = append(out, next)
		}
	}
	for _, s := range x {
		add(s.first)
		next = max(next, s.last+1)
	}
	add(limit)
	return out
}

// String is the form of status.completedIndexes.
func (x indexes) String() string {
	parts := make([]string, 0, len(x))
	for _, s := range x {
		switch {
		case s.first == s.last:
			parts = append(parts, strconv.Itoa(s.first))
		case s.first+1 == s.last:
			parts = append(parts, strconv.Itoa(s.first), strconv.Itoa(s.last))
		default:
			parts = append(parts, strconv.Itoa(s.first)+"-"+strconv.Itoa(s.last))
		}
	}
	return strings.Join(parts, ",")
}
