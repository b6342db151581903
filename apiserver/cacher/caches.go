package cacher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/store"
)

// Defaults of Config.
const (
	DefaultPrefix  = "/registry/"
	DefaultBudget  = 32 << 20
	DefaultHistory = 8 << 20
)

// Config configures the caches.
type Config struct {
	Store  store.Store
	Scheme *runtime.Scheme // decodes and converts built-in objects
	Logger *slog.Logger
	// Clock paces bookmarks and ages history; nil: the real clock.
	Clock clock.WithTicker
	// Prefix of every key, with the trailing slash; empty: /registry/.
	Prefix string
	// Budget bounds, in bytes, the encodings and decoded forms that are kept only
	// to save work; 0: DefaultBudget.
	Budget int64
	// History bounds, in bytes and per resource, the superseded objects that are
	// kept for watches to resume from; 0: DefaultHistory.
	History int64
	// ReadTimeout is how long a read waits for the cache to catch up before it
	// fails with a retryable error; 0: 3 s, as upstream.
	ReadTimeout time.Duration
	// BookmarkInterval is about how far apart bookmarks are; 0: one minute.
	BookmarkInterval time.Duration
	// CheckMutations is of how many decoded objects one is watched for changes, which
	// nobody may make to shared objects; 0: 64. Tests use 1.
	CheckMutations int
	// OnMutation hears of a shared object that was changed; nil: an error is logged.
	OnMutation func(error)
}

// Caches implements Set: one watch on the store feeds the caches of all resources.
type Caches struct {
	cfg       Config
	log       *slog.Logger
	budget    *budget
	confirm   confirmer
	feed      feed
	mutations mutations

	mu      sync.Mutex
	byKey   map[string]*resource
	byPath  map[string]*resource // by api.Resource.StoragePath
	running context.Context      // nil unless Run runs
	ended   bool
	wg      sync.WaitGroup // loaders and watchers
}

var _ Set = (*Caches)(nil)

// New returns caches for no resources yet.
func New(c Config) (*Caches, error) {
	if c.Store == nil || c.Scheme == nil {
		return nil, errors.New("cacher: Store and Scheme must be set")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.Budget == 0 {
		c.Budget = DefaultBudget
	}
	if c.History == 0 {
		c.History = DefaultHistory
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = 3 * time.Second
	}
	if c.BookmarkInterval == 0 {
		c.BookmarkInterval = time.Minute
	}
	if c.CheckMutations <= 0 {
		c.CheckMutations = mutationEvery
	}
	if c.OnMutation == nil {
		log := c.Logger
		c.OnMutation = func(err error) { log.Error("shared objects must not be changed", "err", err) }
	}
	s := &Caches{
		cfg: c, log: c.Logger,
		budget: newBudget(c.Budget),
		byKey:  map[string]*resource{},
		byPath: map[string]*resource{},
	}
	s.confirm.revision = c.Store.Revision
	s.confirm.timeout = c.ReadTimeout
	s.feed.init()
	s.mutations.every, s.mutations.report = uint64(c.CheckMutations), c.OnMutation
	return s, nil
}

// Key is the key of a resource in Set.Resource: group/plural, and the plural alone
// for the core group.
func Key(r *api.Resource) string { return normalKey(r.Group + "/" + r.Plural) }

func normalKey(key string) string { return strings.TrimPrefix(key, "/") }

// Add makes a resource known under key. A resource that is known already is replaced:
// its watches end, and its objects are read anew from the store.
func (s *Caches) Add(key string, r *api.Resource) error {
	if r.StoragePath == "" {
		return fmt.Errorf("cacher: add %s: the resource has no StoragePath", key)
	}
	c, err := newCodec(r, s.cfg.Scheme)
	if err != nil {
		return fmt.Errorf("cacher: add %s: %w", key, err)
	}
	key = normalKey(key)
	res := newResource(s, r, c)
	// The old one ends before it gets no more events: none of its watches may then tell of a
	// revision that it has not seen.
	var ended *resource
	for {
		s.mu.Lock()
		old := s.byKey[key]
		if other := s.byPath[r.StoragePath]; other != nil && old != other {
			s.mu.Unlock()
			return fmt.Errorf("cacher: add %s: StoragePath %q belongs to another resource", key, r.StoragePath)
		}
		if old == ended {
			if old != nil {
				delete(s.byPath, old.api.StoragePath)
			}
			s.byKey[key] = res
			s.byPath[r.StoragePath] = res
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		if old != nil {
			old.shut()
		}
		ended = old
	}
}

// Remove forgets a resource: its watches end, its objects stay in the store.
func (s *Caches) Remove(key string) {
	key = normalKey(key)
	s.mu.Lock()
	old := s.byKey[key]
	s.mu.Unlock()
	if old == nil {
		return
	}
	old.shut() // first, as in Add
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[key] == old {
		delete(s.byKey, key)
		delete(s.byPath, old.api.StoragePath)
	}
}

// Resource implements Set.
func (s *Caches) Resource(key string) (Resource, bool) {
	s.mu.Lock()
	r := s.byKey[normalKey(key)]
	s.mu.Unlock()
	if r == nil {
		return nil, false
	}
	r.start()
	return r, true
}

// Ready is closed once the feed from the store has been established the first time.
func (s *Caches) Ready() <-chan struct{} { return s.feed.ready }

// Lag is how many revisions the caches are behind the store; for readiness.
func (s *Caches) Lag(ctx context.Context) (int64, error) {
	rev, err := s.confirm.do(ctx)
	if err != nil {
		return 0, fmt.Errorf("confirm the store's revision: %w", err)
	}
	return max(0, rev-s.feed.revision()), nil
}

// Follows returns once the caches have everything that the store had at the time of the
// call: what every consistent read waits for. It fails where they do not get there in time,
// because their watch is lost or lags.
func (s *Caches) Follows(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ReadTimeout)
	defer cancel()
	rev, err := s.confirm.do(ctx)
	if err != nil {
		return fmt.Errorf("confirm the store's revision: %w", err)
	}
	if err := s.feed.wait(ctx, rev); err != nil {
		return fmt.Errorf("the watch cache is at revision %d, the store at %d: %w", s.feed.revision(), rev, err)
	}
	return nil
}

// Run implements Set.
func (s *Caches) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	if s.running != nil || s.ended {
		s.mu.Unlock()
		return errors.New("cacher: Run may be called once")
	}
	s.running = ctx
	started := make([]*resource, 0, len(s.byKey))
	for _, r := range s.byKey {
		started = append(started, r)
	}
	s.mu.Unlock()
	for _, r := range started {
		r.resume()
	}

	s.spawn(s.upkeep)
	s.runFeed(ctx)

	s.mu.Lock()
	s.running, s.ended = nil, true
	all := make([]*resource, 0, len(s.byKey))
	for _, r := range s.byKey {
		all = append(all, r)
	}
	s.mu.Unlock()
	for _, r := range all {
		r.shut()
	}
	s.confirm.wait()
	s.wg.Wait()
	return nil
}

// upkeepEvery is how often the caches look after themselves.
const upkeepEvery = 30 * time.Second

// upkeep does what no request does: it lets go of history that has become old and of
// forms that nobody has used for a while, keeps
// the feed's revision near the store's, so that a broken watch can be opened again there
// although nothing under the prefix changes, and checks the sample of shared objects.
func (s *Caches) upkeep(ctx context.Context) {
	t := s.cfg.Clock.NewTicker(upkeepEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C():
		case <-ctx.Done():
			s.mutations.verifyAll()
			return
		}
		s.Tidy(s.cfg.Clock.Now())
		s.feed.requestProgress(ctx)
		s.mutations.verifyAll()
	}
}

// Tidy lets go of history that is old at now, and of forms that have not been used since
// the last time. Run does so by itself.
func (s *Caches) Tidy(now time.Time) {
	s.mu.Lock()
	all := make([]*resource, 0, len(s.byKey))
	for _, r := range s.byKey {
		all = append(all, r)
	}
	s.mu.Unlock()
	for _, r := range all {
		r.mu.Lock()
		r.history.trim(now, r.watches.read(r.history.end()))
		r.mu.Unlock()
	}
	s.budget.sweep()
}

// spawn runs f until the context it gets ends; false when nothing runs now.
func (s *Caches) spawn(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return false
	}
	ctx := s.running
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		f(ctx)
	}()
	return true
}

// lookup finds the resource that a store key belongs to: storage paths have one
// segment ("pods") or two ("services/specs", "example.com/widgets").
func (s *Caches) lookup(key string) *resource {
	rest, ok := strings.CutPrefix(key, s.cfg.Prefix)
	if !ok {
		return nil
	}
	i := strings.IndexByte(rest, '/')
	if i < 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := strings.IndexByte(rest[i+1:], '/'); j >= 0 {
		if r := s.byPath[rest[:i+1+j]]; r != nil {
			return r
		}
	}
	return s.byPath[rest[:i]]
}

// Find returns the cache of the first resource that match accepts, starting it as
// Resource does.
func (s *Caches) Find(match func(*api.Resource) bool) (Resource, *api.Resource, bool) {
	s.mu.Lock()
	var found *resource
	for _, r := range s.byKey {
		if match(r.api) {
			found = r
			break
		}
	}
	s.mu.Unlock()
	if found == nil {
		return nil, nil, false
	}
	found.start()
	return found, found.api, true
}
