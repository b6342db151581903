package job

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// manage decides how many pods there should be.
func (p *pass) manage() {
	j := p.job
	switch {
	case p.ending != nil || suspended(j) && p.met && j.DeletionTimestamp == nil:
		p.remove = p.active
		p.managed = p.ending == nil
		return
	case !p.met || j.DeletionTimestamp != nil:
		return
	}
	p.managed = true
	active := int32(len(p.active))
	parallelism := ptr.Deref(j.Spec.Parallelism, 1)
	want := parallelism
	if j.Spec.Completions != nil {
		want = max(0, min(parallelism, *j.Spec.Completions-p.succeeded))
	} else if p.succeeded > 0 {
		want = active // one success is enough: let the others finish
	}
	if p.remove = p.surplus(int(max(0, active-want))); len(p.remove) > 0 {
		p.remove = p.remove[:min(len(p.remove), maxPerPass)]
		return
	}
	n := want - active
	if replaceFailedOnly(j) {
		n -= int32(len(p.terminating))
	}
	if n = min(n, maxPerPass); n <= 0 {
		return
	}
	if j.Spec.BackoffLimitPerIndex == nil {
		if wait := p.record.wait(p.now); wait > 0 {
			p.lookAgain(wait)
			return
		}
	}
	if !indexed(j) {
		p.create = slices.Repeat([]int{noIndex}, int(n))
		return
	}
	taken := p.done.with(p.busyIndexes(p.active)).with(p.failedIndexes)
	if replaceFailedOnly(j) {
		taken = taken.with(p.busyIndexes(p.terminating))
	}
	p.create = taken.missing(int(n), p.completions)
	if j.Spec.BackoffLimitPerIndex != nil {
		p.delayIndexes()
	}
}

// delayIndexes leaves out indexes that still back off; when all do, it says for how long.
func (p *pass) delayIndexes() {
	var least time.Duration
	ready := p.create[:0]
	for _, ix := range p.create {
		var wait time.Duration
		if last := p.delayed[ix]; last != nil {
			wait = record{failures: attempts(last) + 1, last: endedAt(last)}.wait(p.now)
		}
		if wait == 0 {
			ready = append(ready, ix)
		} else if least == 0 || wait < least {
			least = wait
		}
	}
	p.create = ready
	if least > 0 {
		p.lookAgain(least)
	}
}

func (p *pass) lookAgain(d time.Duration) {
	if p.again == 0 || d < p.again {
		p.again = d
	}
}

// surplus are at least n active pods to delete: duplicates of an index first.
func (p *pass) surplus(n int) []*corev1.Pod {
	left := slices.Clone(p.active)
	ownership.SortForDeletion(left, nil, p.now)
	var out []*corev1.Pod
	if indexed(p.job) {
		last := map[int]*corev1.Pod{} // the best pod of each index stays
		for _, pod := range left {
			if p.inRange(pod) {
				last[indexOf(pod)] = pod
			}
		}
		keep := left[:0]
		for _, pod := range left {
			if last[indexOf(pod)] == pod {
				keep = append(keep, pod)
			} else {
				out = append(out, pod)
			}
		}
		left = keep
	}
	if more := n - len(out); more > 0 {
		out = append(out, left[:min(more, len(left))]...)
	}
	return out
}
