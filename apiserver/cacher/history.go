package cacher

import (
	"slices"
	"sort"
	"sync/atomic"
	"time"
)

// change is one event of a resource. prev is nil for a create, cur for a delete.
type change struct {
	rev  int64
	when time.Time
	key  string
	cur  *entry
	prev *entry
	cost int64
	gone atomic.Pointer[entry]
}

// deleted is the object of the Deleted event that this change is to some watches: prev
// carrying the change's revision, made once and shared by all of them.
func (c *change) deleted() *entry {
	if e := c.gone.Load(); e != nil {
		return e
	}
	c.gone.CompareAndSwap(nil, c.prev.at(c.rev))
	return c.gone.Load()
}

const (
	// historyAge is how long changes are kept for watches that come back: from their last
	// bookmark, which is a minute old at most. From older revisions the store's own history
	// is read (extend).
	historyAge = 75 * time.Second
	// historySlow is how long they are kept for watches that have not read them yet.
	historySlow = 5 * time.Minute
	// historyMin is how many bytes of changes are kept whatever their age.
	historyMin = 32 << 10
)

// history holds the newest changes of a resource; each has a sequence number. The
// resource's lock guards it.
type history struct {
	limit   int64
	changes []*change
	first   int64 // sequence number of changes[0]
	bytes   int64
	// after is the revision that history begins after: every later change is here.
	after int64
}

func (h *history) end() int64 { return h.first + int64(len(h.changes)) }

// add appends a change and drops those beyond the limits.
func (h *history) add(c *change) {
	h.changes = append(h.changes, c)
	h.bytes += c.cost
	h.trim(c.when, h.first)
}

// trim drops what is beyond the limits now; every watch has read what comes before the
// sequence number read. The newest change stays.
func (h *history) trim(now time.Time, read int64) {
	n := 0
	for n < len(h.changes)-1 {
		old := h.changes[n]
		full := h.bytes > h.limit
		age := now.Sub(old.when)
		aged := h.bytes > historyMin && (age > historySlow || age > historyAge && h.first+int64(n) < read)
		// A revision goes as a whole.
		if !full && !aged && (n == 0 || old.rev != h.after) {
			break
		}
		h.bytes -= old.cost
		h.after = old.rev
		if old.prev != nil {
			old.prev.release()
		}
		if gone := old.gone.Load(); gone != nil {
			gone.release()
		}
		n++
	}
	if n > 0 {
		clear(h.changes[:n])
		h.changes = h.changes[n:]
		h.first += int64(n)
		if cap(h.changes) > 64 && cap(h.changes) > 4*len(h.changes) {
			h.changes = slices.Clone(h.changes)
		}
	}
}

// prepend puts older changes in front, so that history begins after rev.
func (h *history) prepend(changes []*change, rev int64) {
	h.changes = append(changes, h.changes...)
	h.first -= int64(len(changes))
	for _, c := range changes {
		h.bytes += c.cost
	}
	h.after = rev
}

// seek returns the sequence number of the first change after rev.
func (h *history) seek(rev int64) int64 {
	i := sort.Search(len(h.changes), func(i int) bool { return h.changes[i].rev > rev })
	return h.first + int64(i)
}

// read copies up to n changes from seq on into buf; false when they are gone.
func (h *history) read(seq int64, buf []*change) (int, bool) {
	if seq < h.first {
		return 0, false
	}
	return copy(buf, h.changes[seq-h.first:]), true
}
