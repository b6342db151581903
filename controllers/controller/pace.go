package controller

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Pace keeps a controller from looking at a large object anew for each of its many parts
// that change: passes cost in proportion to the size, and so would their number.
type Pace[K comparable] struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	last  map[K]time.Time
}

const (
	largeSize = 100 // parts
	perPart   = 500 * time.Microsecond
	mostPace  = 500 * time.Millisecond
)

// NewPace makes a pace.
func NewPace[K comparable](c clock.PassiveClock) *Pace[K] {
	return &Pace[K]{clock: c, last: map[K]time.Time{}}
}

// Wait says how long to wait before another pass over an object of that size; 0 starts one.
// Small objects never wait.
func (p *Pace[K]) Wait(key K, size int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if size < largeSize {
		delete(p.last, key)
		return 0
	}
	now := p.clock.Now()
	if wait := p.last[key].Add(min(time.Duration(size)*perPart, mostPace)).Sub(now); wait > 0 {
		return wait
	}
	p.last[key] = now
	return 0
}
