package controller

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Retry delays grow from minBackoff to maxBackoff as upstream's default item limiter's.
const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = 1000 * time.Second
)

// Queue hands out keys in order of arrival, each at most once at a time and once for
// any number of Adds before it is handed out. Unlike client-go's workqueue it holds no
// goroutine: there are dozens of controllers, idle most of the time.
type Queue[K comparable] struct {
	clock       clock.WithDelayedExecution
	least, most time.Duration // between failures of one key

	mu         sync.Mutex
	cond       sync.Cond
	ready      []K
	dirty      map[K]struct{} // waits in ready, or for the end of its processing
	processing map[K]struct{}
	failures   map[K]int
	delayed    delayHeap[K]
	delays     map[K]*delay[K]
	timer      clock.Timer
	timerAt    time.Time
}

type delay[K comparable] struct {
	key   K
	at    time.Time
	index int
}

// NewQueue makes an empty queue.
func NewQueue[K comparable](c clock.WithDelayedExecution) *Queue[K] {
	q := &Queue[K]{
		clock: c,
		least: minBackoff, most: maxBackoff,
		dirty:      map[K]struct{}{},
		processing: map[K]struct{}{},
		failures:   map[K]int{},
		delays:     map[K]*delay[K]{},
	}
	q.cond.L = &q.mu
	return q
}

// SetBackoff changes the delays after failures, before the queue is used: the first one, which
// doubles each time, and the longest.
func (q *Queue[K]) SetBackoff(least, most time.Duration) { q.least, q.most = least, most }

// Add queues a key now.
func (q *Queue[K]) Add(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(key)
}

func (q *Queue[K]) add(key K) {
	if _, ok := q.dirty[key]; ok {
		return
	}
	q.dirty[key] = struct{}{}
	if _, ok := q.processing[key]; ok {
		return
	}
	q.ready = append(q.ready, key)
	q.cond.Signal()
}

// AddAfter queues a key when d has passed; the earliest of several wins.
func (q *Queue[K]) AddAfter(key K, d time.Duration) {
	if d <= 0 {
		q.Add(key)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addAt(key, q.clock.Now().Add(d))
}

// AddRateLimited queues a key after a delay that doubles with each failure.
func (q *Queue[K]) AddRateLimited(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.failures[key]
	q.failures[key] = n + 1
	d := q.least
	for range n {
		if d >= q.most {
			break
		}
		d *= 2
	}
	d = min(d, q.most)
	q.addAt(key, q.clock.Now().Add(d))
}

// Forget ends the count of a key's failures.
func (q *Queue[K]) Forget(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.failures, key)
}

func (q *Queue[K]) addAt(key K, at time.Time) {
	if e, ok := q.delays[key]; ok {
		if e.at.After(at) {
			e.at = at
			heap.Fix(&q.delayed, e.index)
		}
	} else {
		e := &delay[K]{key: key, at: at}
		q.delays[key] = e
		heap.Push(&q.delayed, e)
	}
	q.arm()
}

// arm sets the one timer to the earliest delay.
func (q *Queue[K]) arm() {
	if len(q.delayed) == 0 {
		return
	}
	at := q.delayed[0].at
	if q.timer != nil && !q.timerAt.After(at) {
		return
	}
	if q.timer != nil {
		q.timer.Stop()
	}
	q.timerAt = at
	q.timer = q.clock.AfterFunc(at.Sub(q.clock.Now()), q.release)
}

func (q *Queue[K]) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.timer = nil
	now := q.clock.Now()
	for len(q.delayed) > 0 && !q.delayed[0].at.After(now) {
		e := heap.Pop(&q.delayed).(*delay[K])
		delete(q.delays, e.key)
		q.add(e.key)
	}
	q.arm()
}

// Get blocks for the next key; false when ctx ended. Done must follow.
func (q *Queue[K]) Get(ctx context.Context) (key K, ok bool) {
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.cond.Broadcast()
	})
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.ready) == 0 && ctx.Err() == nil {
		q.cond.Wait()
	}
	if ctx.Err() != nil {
		return key, false
	}
	key = q.ready[0]
	var zero K
	q.ready[0] = zero
	q.ready = q.ready[1:]
	if len(q.ready) == 0 {
		q.ready = nil
	}
	delete(q.dirty, key)
	q.processing[key] = struct{}{}
	return key, true
}

// Done ends a key's processing; it comes again if it was added meanwhile.
func (q *Queue[K]) Done(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.processing, key)
	if _, ok := q.dirty[key]; ok {
		q.ready = append(q.ready, key)
		q.cond.Signal()
	}
}

// Len is the number of keys that could be handed out now.
func (q *Queue[K]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready)
}

// stop ends the timer, so that nothing of the queue runs any more.
func (q *Queue[K]) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
}

type delayHeap[K comparable] []*delay[K]

func (h delayHeap[K]) Len() int           { return len(h) }
func (h delayHeap[K]) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h delayHeap[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *delayHeap[K]) Push(x any) {
	e := x.(*delay[K])
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *delayHeap[K]) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}
