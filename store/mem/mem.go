// Package mem is a store in memory, for tests and simulation. It keeps every
// revision until compacted, as etcd does, and uses no timers but those of the
// injected clock, so that it runs inside a testing/synctest bubble.
//
// Must not: persist anything, or be used for a real cluster.
package mem

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/store"
)

// Config configures a Store.
type Config struct {
	// Clock tells when keys with a TTL expire; nil: the real clock.
	Clock clock.WithTicker
}

// version is one revision of a key; deleted marks a tombstone.
type version struct {
	create, mod int64
	value       []byte
	deleted     bool
}

// history is every retained version of a key, oldest first.
type history struct {
	versions []version
	expires  time.Time // of those in Store.expiring
}

func (h *history) at(rev int64) (version, bool) {
	i := sort.Search(len(h.versions), func(i int) bool { return h.versions[i].mod > rev })
	if i == 0 || h.versions[i-1].deleted {
		return version{}, false
	}
	return h.versions[i-1], true
}

// Store implements store.Store.
type Store struct {
	clock clock.WithTicker

	mu        sync.Mutex
	rev       int64
	compacted int64
	keys      []string // sorted
	byKey     map[string]*history
	expiring  map[string]*history // those with a TTL
	log       []store.Event       // every event after the compacted revision, in order
	changed   chan struct{}       // closed and replaced at each change
	deadlines chan struct{}       // tells Run that the nearest deadline may have moved
}

var _ store.Store = (*Store)(nil)

// New returns an empty store at revision 1, as a fresh etcd is.
func New(c Config) *Store {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return &Store{
		clock:     c.Clock,
		rev:       1,
		byKey:     map[string]*history{},
		expiring:  map[string]*history{},
		changed:   make(chan struct{}),
		deadlines: make(chan struct{}, 1),
	}
}

// Run deletes keys whose TTL has passed, until ctx ends. Without it they go at the
// next call of any method.
func (s *Store) Run(ctx context.Context) error {
	for {
		s.mu.Lock()
		s.expireLocked()
		next, ok := s.nextDeadlineLocked()
		s.mu.Unlock()

		var due <-chan time.Time
		stop := func() {}
		if ok {
			t := s.clock.NewTimer(next.Sub(s.clock.Now()))
			due, stop = t.C(), func() { t.Stop() }
		}
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-due:
		case <-s.deadlines:
		}
		stop()
	}
}

func (s *Store) nextDeadlineLocked() (time.Time, bool) {
	var next time.Time
	for _, h := range s.expiring {
		if next.IsZero() || h.expires.Before(next) {
			next = h.expires
		}
	}
	return next, !next.IsZero()
}

// expireLocked deletes all keys that are due in one revision, as an expired lease does.
func (s *Store) expireLocked() {
	if len(s.expiring) == 0 {
		return
	}
	now := s.clock.Now()
	var due []string
	for key, h := range s.expiring {
		if !h.expires.After(now) {
			due = append(due, key)
		}
	}
	if len(due) == 0 {
		return
	}
	slices.Sort(due)
	s.rev++
	for _, key := range due {
		s.deleteLocked(key)
	}
	s.notifyLocked()
}

func (s *Store) currentLocked(key string) (store.KV, bool) {
	h := s.byKey[key]
	if h == nil {
		return store.KV{}, false
	}
	v, ok := h.at(s.rev)
	if !ok {
		return store.KV{}, false
	}
	return v.kv(key), true
}

func (v version) kv(key string) store.KV {
	return store.KV{Key: key, Value: v.value, CreateRevision: v.create, ModRevision: v.mod}
}

// putLocked writes at a new revision.
func (s *Store) putLocked(key string, value []byte, ttl time.Duration) int64 {
	prev, existed := s.currentLocked(key)
	s.rev++
	v := version{create: prev.CreateRevision, mod: s.rev, value: slices.Clone(value)}
	if !existed {
		v.create = s.rev
	}
	h := s.byKey[key]
	if h == nil {
		h = &history{}
		s.byKey[key] = h
		i, _ := slices.BinarySearch(s.keys, key)
		s.keys = slices.Insert(s.keys, i, key)
	}
	h.versions = append(h.versions, v)
	delete(s.expiring, key)
	if ttl > 0 {
		s.expiring[key] = h
		h.expires = s.clock.Now().Add((ttl + time.Second - 1).Truncate(time.Second))
		select {
		case s.deadlines <- struct{}{}:
		default:
		}
	}
	s.log = append(s.log, store.Event{Type: store.Put, KV: v.kv(key), Prev: prev})
	s.notifyLocked()
	return s.rev
}

// deleteLocked writes a tombstone at the current revision.
func (s *Store) deleteLocked(key string) {
	prev, _ := s.currentLocked(key)
	h := s.byKey[key]
	h.versions = append(h.versions, version{mod: s.rev, deleted: true})
	delete(s.expiring, key)
	s.log = append(s.log, store.Event{
		Type: store.Delete,
		KV:   store.KV{Key: key, ModRevision: s.rev},
		Prev: prev,
	})
}

func (s *Store) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// begin locks the store unless ctx has ended.
func (s *Store) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	s.expireLocked()
	return nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.KV, int64, error) {
	if err := s.begin(ctx); err != nil {
		return store.KV{}, 0, err
	}
	defer s.mu.Unlock()
	kv, ok := s.currentLocked(key)
	if !ok {
		return store.KV{}, s.rev, fmt.Errorf("get %q: %w", key, store.ErrNotFound)
	}
	return kv, s.rev, nil
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix string, o store.ListOptions) (store.Page, error) {
	if err := s.begin(ctx); err != nil {
		return store.Page{}, err
	}
	defer s.mu.Unlock()
	rev := o.Revision
	switch {
	case rev == 0:
		rev = s.rev
	case rev > s.rev:
		return store.Page{}, fmt.Errorf("list %q at revision %d: %w", prefix, rev, store.ErrFutureRevision)
	case rev < s.compacted:
		return store.Page{}, fmt.Errorf("list %q at revision %d: %w", prefix, rev, store.ErrCompacted)
	}
	p := store.Page{Revision: rev}
	if o.Revision != 0 {
		p.Revision = o.Revision
	}
	from := max(prefix, o.From)
	i, _ := slices.BinarySearch(s.keys, from)
	for ; i < len(s.keys) && strings.HasPrefix(s.keys[i], prefix); i++ {
		v, ok := s.byKey[s.keys[i]].at(rev)
		if !ok {
			continue
		}
		p.Count++
		if o.Limit > 0 && p.Count > o.Limit {
			continue
		}
		kv := v.kv(s.keys[i])
		if o.KeysOnly {
			kv.Value = nil
		}
		p.KVs = append(p.KVs, kv)
	}
	return p, nil
}

// Create implements store.Store.
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (int64, error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	if kv, ok := s.currentLocked(key); ok {
		return 0, &store.ExistsError{Current: kv}
	}
	return s.putLocked(key, value, ttl), nil
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, key string, value []byte, expected int64, ttl time.Duration) (int64, error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	if err := s.expectLocked(key, expected); err != nil {
		return 0, err
	}
	return s.putLocked(key, value, ttl), nil
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, key string, expected int64) (int64, error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	if err := s.expectLocked(key, expected); err != nil {
		return 0, err
	}
	s.rev++
	s.deleteLocked(key)
	s.notifyLocked()
	return s.rev, nil
}

func (s *Store) expectLocked(key string, expected int64) error {
	kv, ok := s.currentLocked(key)
	if !ok {
		return &store.ConflictError{Key: key, Missing: true}
	}
	if kv.ModRevision != expected {
		return &store.ConflictError{Key: key, Current: kv}
	}
	return nil
}

// Revision implements store.Store.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	return s.rev, nil
}

// Compact implements store.Store.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	switch {
	case revision > s.rev:
		return fmt.Errorf("compact at revision %d: %w", revision, store.ErrFutureRevision)
	case revision <= s.compacted:
		return fmt.Errorf("compact at revision %d: %w", revision, store.ErrCompacted)
	}
	s.compacted = revision
	i := sort.Search(len(s.log), func(i int) bool { return s.log[i].KV.ModRevision >= revision })
	s.log = slices.Clone(s.log[i:])
	s.keys = slices.DeleteFunc(s.keys, func(key string) bool {
		h := s.byKey[key]
		// Keep the newest version at or below the revision, unless it is a tombstone.
		j := sort.Search(len(h.versions), func(j int) bool { return h.versions[j].mod > revision })
		if j > 0 && !h.versions[j-1].deleted {
			j--
		}
		h.versions = slices.Clone(h.versions[j:])
		if len(h.versions) == 0 {
			delete(s.byKey, key)
			return true
		}
		return false
	})
	s.notifyLocked() // watchers that lag behind learn that they are too late
	return nil
}
