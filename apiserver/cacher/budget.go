package cacher

import (
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// form is one derived form of an entry that can be made again: its JSON or protobuf
// encoding, or its decoded object.
type form struct {
	bytes  []byte
	offset int // where the message starts inside a protobuf envelope
	end    int

	obj  runtime.Object
	meta metav1.Object

	cost int64
	used atomic.Bool // since the clock hand last passed
	home *atomic.Pointer[form]
}

// budget bounds the forms of all entries, evicting by the CLOCK algorithm: reading a
// form only sets its bit, so that the hot path shares no lock.
type budget struct {
	limit int64

	mu    sync.Mutex
	used  int64
	queue []*form // the hand is at the front
	dead  int     // forms in queue that were released
}

func newBudget(limit int64) *budget { return &budget{limit: limit} }

// formOverhead is about what a form costs besides its bytes.
const formOverhead = 128

// keep publishes f at home unless another form is there already, and returns what is.
func (b *budget) keep(home *atomic.Pointer[form], f *form) *form {
	f.home = home
	f.cost += formOverhead
	if !home.CompareAndSwap(nil, f) {
		if other := home.Load(); other != nil {
			return other
		}
		return f // evicted in between: serve it unkept
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += f.cost
	b.queue = append(b.queue, f)
	for b.used > b.limit && len(b.queue) > 0 {
		head := b.queue[0]
		b.queue[0] = nil
		b.queue = b.queue[1:]
		switch {
		case head.home == nil:
			b.dead--
		case head.used.Swap(false):
			b.queue = append(b.queue, head)
		default:
			head.home.CompareAndSwap(head, nil)
			head.home = nil
			b.used -= head.cost
		}
	}
	return f
}

// release gives up the form at home, whose entry has left the cache.
func (b *budget) release(home *atomic.Pointer[form]) {
	f := home.Load()
	if f == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.home == nil || !home.CompareAndSwap(f, nil) {
		return
	}
	f.home = nil
	b.used -= f.cost
	b.dead++
	if b.dead > 64 && b.dead > len(b.queue)/2 {
		live := make([]*form, 0, len(b.queue)-b.dead)
		for _, q := range b.queue {
			if q.home != nil {
				live = append(live, q)
			}
		}
		b.queue, b.dead = live, 0
	}
}

// sweep gives up the forms that nobody has used since the last sweep, so that what a
// busy hour made does not stay for good.
func (b *budget) sweep() {
	b.mu.Lock()
	defer b.mu.Unlock()
	var live []*form
	for _, f := range b.queue {
		switch {
		case f.home == nil: // released
		case f.used.Swap(false):
			live = append(live, f)
		default:
			f.home.CompareAndSwap(f, nil)
			f.home = nil
			b.used -= f.cost
		}
	}
	b.queue, b.dead = live, 0
}

// size is the bytes kept now.
func (b *budget) size() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
