// Package queue holds the pods that wait to be scheduled: active ones in order of
// priority and age, those that back off after a failed attempt, and those that nothing
// but a change in the cluster can help.
//
// A Queue belongs to the scheduling loop's goroutine. Since cycles and events do not
// overlap there, no event can be missed by a pod whose cycle is under way.
package queue

import (
	"cmp"
	"container/heap"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Defaults as upstream's podInitialBackoffSeconds, podMaxBackoffSeconds and
// podMaxInUnschedulablePodsDuration.
const (
	InitialBackoff   = time.Second
	MaxBackoff       = 10 * time.Second
	MaxUnschedulable = 5 * time.Minute

	scanEvery = 30 * time.Second
)

// Item is a pod in the queue.
type Item struct {
	*snapshot.Pod
	// Attempts counts cycles; failures without a fault of the pod's (Error) count apart.
	Attempts, Errors int
	// Since is when the pod became active, which orders equals; First when it came.
	Since, First time.Time
	// RejectedBy are the plugins whose events may help; Hints are theirs.
	RejectedBy []string
	Hints      []framework.Hint
	// Gated: PreEnqueue refused it.
	Gated bool

	failed time.Time
	until  time.Time // end of back-off
	place  place
	index  int
}

type place int

const (
	nowhere place = iota // being scheduled or bound
	active
	backoff
	unschedulable
)

// Queue is the waiting pods.
type Queue struct {
	items         map[types.UID]*Item
	active        itemHeap
	backoff       itemHeap
	unschedulable map[types.UID]*Item
	scanned       time.Time // when the unschedulable were last looked at for their age
	// gate asks the PreEnqueue plugins of the pod's profile.
	gate func(p *corev1.Pod) *framework.Status
}

// New makes an empty queue.
func New(gate func(p *corev1.Pod) *framework.Status) *Queue {
	return &Queue{
		items:         map[types.UID]*Item{},
		active:        itemHeap{less: byPriority},
		backoff:       itemHeap{less: func(a, b *Item) bool { return a.until.Before(b.until) }},
		unschedulable: map[types.UID]*Item{},
		gate:          gate,
	}
}

func byPriority(a, b *Item) bool {
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	return cmp.Or(a.Since.Compare(b.Since), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID)) < 0
}

// Add queues a new pod. It returns why a gated one waits, or nil.
func (q *Queue) Add(p *corev1.Pod, now time.Time) *framework.Status {
	if q.items[p.UID] != nil {
		return q.Update(p, now)
	}
	it := &Item{Pod: snapshot.NewPod(p), First: now}
	q.items[p.UID] = it
	return q.activate(it, now)
}

// activate puts an item where it can be popped, unless it is gated.
func (q *Queue) activate(it *Item, now time.Time) *framework.Status {
	q.leave(it)
	if st := q.gate(it.Pod.Pod); st != nil {
		it.Gated = true
		it.RejectedBy, it.Hints = nil, nil
		q.park(it)
		return st
	}
	it.Gated = false
	it.Since = now
	it.place = active
	heap.Push(&q.active, it)
	return nil
}

func (q *Queue) park(it *Item) {
	it.place = unschedulable
	q.unschedulable[it.UID] = it
}

func (q *Queue) leave(it *Item) {
	switch it.place {
	case active:
		heap.Remove(&q.active, it.index)
	case backoff:
		heap.Remove(&q.backoff, it.index)
	case unschedulable:
		delete(q.unschedulable, it.UID)
	}
	it.place = nowhere
}

// Update takes a new revision of an unscheduled pod.
func (q *Queue) Update(p *corev1.Pod, now time.Time) *framework.Status {
	it := q.items[p.UID]
	if it == nil {
		return q.Add(p, now)
	}
	was := it.Pod
	it.Pod = snapshot.NewPod(p)
	switch {
	case it.place == active:
		heap.Fix(&q.active, it.index)
	case it.Gated:
		return q.activate(it, now)
	case it.place == unschedulable:
		e := framework.Event{Kind: framework.SelfUpdate, OldPod: was, Pod: it.Pod}
		if it.helped(e) {
			q.retry(it, now)
		}
	}
	return nil
}

// Delete forgets a pod.
func (q *Queue) Delete(uid types.UID) {
	if it := q.items[uid]; it != nil {
		q.leave(it)
		delete(q.items, uid)
	}
}

// Get returns a pod's item or nil.
func (q *Queue) Get(uid types.UID) *Item { return q.items[uid] }

// Parked reports whether a pod waits for an event that may help it, rather than its turn or
// the end of its back-off.
func (q *Queue) Parked(uid types.UID) bool {
	it := q.items[uid]
	return it != nil && it.place == unschedulable
}

// Pop returns the next pod to schedule, or nil. With nothing active it takes one that
// backs off because it did not fit: the time is free.
func (q *Queue) Pop(now time.Time) *Item {
	q.flush(now)
	var it *Item
	switch {
	case q.active.Len() > 0:
		it = heap.Pop(&q.active).(*Item)
	default:
		for _, b := range q.backoff.items {
			if b.Errors == 0 && (it == nil || b.until.Before(it.until)) {
				it = b
			}
		}
		if it == nil {
			return nil
		}
		heap.Remove(&q.backoff, it.index)
	}
	it.place = nowhere
	it.Attempts++
	it.RejectedBy, it.Hints = nil, nil
	return it
}

// Failed puts a pod back whose attempt ended in st: an Error backs off, anything else
// waits for an event that its rejecting plugins can use.
func (q *Queue) Failed(it *Item, rejectedBy []string, hints []framework.Hint, isError bool, now time.Time) {
	if q.items[it.UID] != it {
		return // deleted meanwhile
	}
	q.leave(it)
	it.failed = now
	it.RejectedBy, it.Hints = rejectedBy, hints
	if isError {
		it.Errors++
		q.retry(it, now)
		return
	}
	it.Errors = 0
	q.park(it)
}

// retry moves an item to where it can be popped, now or after its back-off.
func (q *Queue) retry(it *Item, now time.Time) {
	q.leave(it)
	n := it.Attempts
	if it.Errors > 0 {
		n = it.Errors
	}
	d := MaxBackoff
	if n <= 4 {
		d = min(InitialBackoff<<max(0, n-1), MaxBackoff)
	}
	it.until = it.failed.Add(d)
	if !it.until.After(now) {
		q.activate(it, now)
		return
	}
	it.place = backoff
	heap.Push(&q.backoff, it)
}

// Event moves the pods that it may help.
func (q *Queue) Event(e framework.Event, now time.Time) {
	for _, it := range q.unschedulable {
		if !it.Gated && it.helped(e) {
			q.retry(it, now)
		}
	}
}

func (it *Item) helped(e framework.Event) bool {
	if it.RejectedBy == nil {
		return true // nobody in particular refused it
	}
	for i := range it.Hints {
		h := &it.Hints[i]
		if h.Kinds&e.Kind != 0 && (h.Worth == nil || h.Worth(it.Pod, e)) {
			return true
		}
	}
	return false
}

// Activate moves pods (of a preemption or a permit) at once.
func (q *Queue) Activate(uid types.UID, now time.Time) {
	if it := q.items[uid]; it != nil && (it.place == backoff || it.place == unschedulable && !it.Gated) {
		q.activate(it, now)
	}
}

// flush moves those whose time has come.
func (q *Queue) flush(now time.Time) {
	for q.backoff.Len() > 0 && !q.backoff.items[0].until.After(now) {
		q.activate(q.backoff.items[0], now)
	}
	if now.Sub(q.scanned) < scanEvery {
		return
	}
	q.scanned = now
	for _, it := range q.unschedulable {
		if !it.Gated && now.Sub(it.failed) >= MaxUnschedulable {
			q.retry(it, now)
		}
	}
}

// Next is when Pop should be asked again though nothing happened; zero: never.
func (q *Queue) Next() time.Time {
	var t time.Time
	if q.backoff.Len() > 0 {
		t = q.backoff.items[0].until
	}
	for _, it := range q.unschedulable {
		if at := q.scanned.Add(scanEvery); !it.Gated && (t.IsZero() || at.Before(t)) {
			t = at
			break
		}
	}
	return t
}

// Len counts the pods by where they wait.
func (q *Queue) Len() (activeN, backoffN, unschedulableN, gated int) {
	for _, it := range q.unschedulable {
		if it.Gated {
			gated++
		}
	}
	return q.active.Len(), q.backoff.Len(), len(q.unschedulable) - gated, gated
}

type itemHeap struct {
	items []*Item
	less  func(a, b *Item) bool
}

func (h *itemHeap) Len() int           { return len(h.items) }
func (h *itemHeap) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }
func (h *itemHeap) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.items[i].index, h.items[j].index = i, j
}
func (h *itemHeap) Push(x any) {
	it := x.(*Item)
	it.index = len(h.items)
	h.items = append(h.items, it)
}
func (h *itemHeap) Pop() any {
	last := len(h.items) - 1
	it := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	return it
}
