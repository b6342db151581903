// Package expectations remembers the creations and deletions of dependents that a
// controller has asked for and its informers have not yet shown, so that it does not
// ask twice. Must not: survive the process; a lost expectation expires.
package expectations

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Timeout is how long an expectation may stay unmet, as upstream's.
const Timeout = 5 * time.Minute

// Set holds the expectations of one controller's objects, by their key.
type Set[K comparable] struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	byKey map[K]*entry
}

type entry struct {
	creations int
	deletions map[types.UID]struct{}
	since     time.Time
}

// New makes an empty set.
func New[K comparable](c clock.PassiveClock) *Set[K] {
	return &Set[K]{clock: c, byKey: map[K]*entry{}}
}

// Creations expects n more creations.
func (s *Set[K]) Creations(key K, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(key)
	e.creations += n
}

// Deletions expects the deletion of these objects.
func (s *Set[K]) Deletions(key K, uids ...types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(key)
	if e.deletions == nil {
		e.deletions = make(map[types.UID]struct{}, len(uids))
	}
	for _, uid := range uids {
		e.deletions[uid] = struct{}{}
	}
}

func (s *Set[K]) entry(key K) *entry {
	e := s.byKey[key]
	if e == nil {
		e = &entry{}
		s.byKey[key] = e
	}
	e.since = s.clock.Now()
	return e
}

// Created notes that one creation was seen, or failed.
func (s *Set[K]) Created(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byKey[key]; e != nil && e.creations > 0 {
		e.creations--
		s.drop(key, e)
	}
}

// Deleted notes that a deletion was seen, or failed.
func (s *Set[K]) Deleted(key K, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byKey[key]; e != nil {
		delete(e.deletions, uid)
		s.drop(key, e)
	}
}

func (s *Set[K]) drop(key K, e *entry) {
	if e.creations == 0 && len(e.deletions) == 0 {
		delete(s.byKey, key)
	}
}

// Met reports whether nothing is outstanding (any more).
func (s *Set[K]) Met(key K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byKey[key]
	if e == nil {
		return true
	}
	if s.clock.Since(e.since) >= Timeout {
		delete(s.byKey, key)
		return true
	}
	return false
}

// Forget drops what is expected for a deleted object.
func (s *Set[K]) Forget(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
}
