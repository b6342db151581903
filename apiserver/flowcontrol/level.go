package flowcontrol

import (
	"context"
	"math"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Why a request was refused, as upstream's metrics name it.
const (
	queueFull        = "queue-full"
	concurrencyLimit = "concurrency-limit"
	timedOut         = "time-out"
	cancelled        = "cancelled"
)

// guess is how long a request is thought to take until it has, in seconds (KEP-1040).
const guess = 0.003

// queuing says how a level's requests wait: in which queues, and how many.
type queuing struct {
	queues, hand, length int // queues 0: nothing waits
}

// level is one priority level: seats, and queues of those who wait for them.
//
// It dispatches by fair queuing: each queue has the virtual time at which its next request
// would start if all queues had an equal share of the seats, and the queue that would end
// first goes first. A request that is wider than what is free waits at the head, so that
// narrow ones cannot starve it.
type level struct {
	name   string
	clock  clock.PassiveClock
	exempt bool

	mu      sync.Mutex
	queuing queuing
	limit   int // seats
	inUse   int
	// executing and waiting count requests, waitingSeats what the waiting ones ask for.
	executing, waiting, waitingSeats int
	queues                           []*queue
	next                             int     // queue to look at first: ties go round
	virtual                          float64 // seat-seconds
	advanced                         time.Time
	demand                           demand
	retry                            retryAfter
	counts                           counts
}

// queue is the requests of some flows.
type queue struct {
	waiting      []*ticket
	waitingSeats int
	executing    int
	seats        int     // of those that execute
	start        float64 // virtual start of the next request
}

// ticket is one request at a level.
type ticket struct {
	schema *schema
	queue  *queue
	seats  int
	came   time.Time
	began  time.Time
	go_    chan struct{} // closed when it may go
	gone   bool          // it may go
}

func newLevel(name string, c clock.PassiveClock) *level {
	now := c.Now()
	return &level{name: name, clock: c, advanced: now, demand: demand{since: now, last: now}, counts: newCounts()}
}

// configure takes over a new shape. What waits in a queue that is no longer dealt from leaves it by and by.
func (l *level) configure(exempt bool, q queuing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exempt, l.queuing = exempt, q
	for len(l.queues) < q.queues {
		l.queues = append(l.queues, &queue{})
	}
	l.dispatch(l.clock.Now())
}

// setLimit gives the level other seats.
func (l *level) setLimit(seats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	l.advance(now)
	l.limit = seats
	l.dispatch(now)
}

// idle says whether no request is at the level.
func (l *level) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.executing == 0 && l.waiting == 0
}

// advance moves virtual time: as fast as each busy queue's share of the seats.
func (l *level) advance(now time.Time) {
	if dt := now.Sub(l.advanced).Seconds(); dt > 0 && !l.exempt {
		busy, asked := 0, 0
		for _, q := range l.queues {
			if n := q.waitingSeats + q.seats; n > 0 {
				busy++
				asked += n
			}
		}
		if busy > 0 {
			l.virtual += dt * float64(min(asked, l.limit)) / float64(busy)
		}
	}
	l.advanced = now
}

// note keeps the demand's statistics after each change of what executes or waits.
func (l *level) note(now time.Time) { l.demand.set(now, float64(l.inUse+l.waitingSeats)) }

// enter lets a request of a flow begin, at once or when its turn comes, and returns its
// ticket; or the reason why not. hash tells flows apart.
func (l *level) enter(ctx context.Context, s *schema, hash uint64, seats int, waitLimit time.Duration) (*ticket, string) {
	l.mu.Lock()
	now := l.clock.Now()
	t := &ticket{schema: s, seats: seats, came: now}
	switch {
	case l.exempt:
		l.begin(t, now)
		l.mu.Unlock()
		return t, ""
	case l.queuing.queues == 0:
		if !l.fits(seats) {
			l.refuse(s, concurrencyLimit, now)
			l.mu.Unlock()
			return nil, concurrencyLimit
		}
		l.begin(t, now)
		l.mu.Unlock()
		return t, ""
	}
	l.advance(now)
	q := l.pick(hash)
	if len(q.waiting) >= l.queuing.length {
		l.refuse(s, queueFull, now)
		l.mu.Unlock()
		return nil, queueFull
	}
	t.queue = q
	if q.executing == 0 && len(q.waiting) == 0 {
		q.start = l.virtual // an idle queue saves nothing up
	}
	if l.waiting == 0 && l.fits(seats) {
		q.start += float64(seats) * guess
		l.begin(t, now)
		l.mu.Unlock()
		return t, ""
	}
	t.go_ = make(chan struct{})
	q.waiting = append(q.waiting, t)
	q.waitingSeats += seats
	l.waiting++
	l.waitingSeats += seats
	l.note(now)
	l.dispatch(now)
	l.mu.Unlock()
	return l.wait(ctx, t, waitLimit)
}

func (l *level) wait(ctx context.Context, t *ticket, limit time.Duration) (*ticket, string) {
	reason := timedOut
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-t.go_:
		return t, ""
	case <-timer.C:
	case <-ctx.Done():
		reason = cancelled
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.gone { // its turn came meanwhile
		return t, ""
	}
	now := l.clock.Now()
	l.advance(now)
	q := t.queue
	for i, w := range q.waiting {
		if w == t {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			break
		}
	}
	l.left(q, t)
	l.note(now)
	l.refuse(t.schema, reason, now)
	l.dispatch(now) // the next in the queue may be narrower
	return nil, reason
}

// left counts a request out of its queue.
func (l *level) left(q *queue, t *ticket) {
	q.waitingSeats -= t.seats
	l.waiting--
	l.waitingSeats -= t.seats
}

// pick is the queue of the flow's hand where least waits.
func (l *level) pick(hash uint64) *queue {
	var best *queue
	var hand [maxHand]int
	for _, i := range deal(hand[:0], hash, l.queuing.queues, l.queuing.hand) {
		q := l.queues[i]
		if best == nil || q.waitingSeats < best.waitingSeats || q.waitingSeats == best.waitingSeats && q.seats < best.seats {
			best = q
		}
	}
	return best
}

// fits says whether so many seats are free. One request always fits, however wide.
func (l *level) fits(seats int) bool { return l.inUse == 0 || l.inUse+seats <= l.limit }

// dispatch lets requests go while there are seats.
func (l *level) dispatch(now time.Time) {
	for l.waiting > 0 {
		i := l.first()
		q := l.queues[i]
		t := q.waiting[0]
		if !l.exempt && !l.fits(t.seats) {
			return
		}
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		l.left(q, t)
		q.start += float64(t.seats) * guess
		l.next = i + 1
		l.begin(t, now)
		t.gone = true
		close(t.go_)
	}
}

// first is the queue whose next request would end first.
func (l *level) first() int {
	best, end := -1, math.Inf(1)
	for n := range l.queues {
		i := (l.next + n) % len(l.queues)
		q := l.queues[i]
		if len(q.waiting) == 0 {
			continue
		}
		if e := q.start + float64(q.waiting[0].seats)*guess; e < end {
			best, end = i, e
		}
	}
	return best
}

func (l *level) begin(t *ticket, now time.Time) {
	l.inUse += t.seats
	l.executing++
	if q := t.queue; q != nil {
		q.executing++
		q.seats += t.seats
	}
	t.began = now
	l.note(now)
	l.counts.dispatched(t.schema.name, now.Sub(t.came))
}

// leave ends a request.
func (l *level) leave(t *ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	l.advance(now)
	l.inUse -= t.seats
	l.executing--
	if q := t.queue; q != nil {
		q.executing--
		q.seats -= t.seats
		q.start += float64(t.seats) * (now.Sub(t.began).Seconds() - guess) // it took what it took
	}
	l.note(now)
	l.dispatch(now)
}

func (l *level) refuse(s *schema, reason string, now time.Time) {
	l.counts.rejected(s.name, reason)
	l.retry.drop(now)
}

// retryAfter is how many seconds those who are refused shall wait: more, the more of them there are.
type retryAfter struct {
	second  int64 // since the epoch, that dropped counts
	dropped int64
	seconds int64
}

const maxRetryAfter = 32

func (r *retryAfter) drop(now time.Time) {
	if s := now.Unix(); s != r.second {
		r.adjust(s)
	}
	r.dropped++
}

// adjust doubles or halves once a second, by how many came although they were told to wait.
func (r *retryAfter) adjust(second int64) {
	r.seconds = max(r.seconds, 1)
	switch {
	case second-r.second > 1, r.dropped < r.seconds:
		r.seconds = max(r.seconds/2, 1)
	case r.dropped >= 3*r.seconds:
		r.seconds = min(r.seconds*2, maxRetryAfter)
	}
	r.second, r.dropped = second, 0
}

// retryAfter is the answer's Retry-After, in seconds.
func (l *level) retryAfter() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.retry.seconds, 1)
}
