package cacher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	testclock "k8s.io/utils/clock/testing"

	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/mem"
)

// brokenStore fails what a test tells it to.
type brokenStore struct {
	store.Store
	mu      sync.Mutex
	watches int
	broken  chan error // receives the error that the next Next returns
	list    error      // of List
	rev     error      // of Revision
}

func (s *brokenStore) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *brokenStore) List(ctx context.Context, prefix string, o store.ListOptions) (store.Page, error) {
	s.mu.Lock()
	err := s.list
	s.mu.Unlock()
	if err != nil {
		return store.Page{}, err
	}
	return s.Store.List(ctx, prefix, o)
}

func (s *brokenStore) Revision(ctx context.Context) (int64, error) {
	s.mu.Lock()
	err := s.rev
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return s.Store.Revision(ctx)
}

func (s *brokenStore) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	w, err := s.Store.Watch(ctx, prefix, from)
	s.set(func() { s.watches++ })
	return &brokenWatcher{w, s}, err
}

type brokenWatcher struct {
	store.Watcher
	s *brokenStore
}

func (w *brokenWatcher) Next(ctx context.Context) (store.Batch, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		b   store.Batch
		err error
	}
	done := make(chan result, 1)
	go func() {
		b, err := w.Watcher.Next(ctx)
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		return r.b, r.err
	case err := <-w.s.broken:
		cancel()
		<-done // what it may have read is lost, as on a broken connection
		return store.Batch{}, err
	}
}

func startBroken(t *testing.T) (*world, *brokenStore) {
	t.Helper()
	w := &world{store: mem.New(mem.Config{})}
	s := &brokenStore{Store: w.store, broken: make(chan error)}
	w.set = runCaches(t, s)
	w.pods = w.cache(t, "pods")
	return w, s
}

// When the watch on the store breaks, it goes on where it was, unnoticed by anybody.
func TestFeedResumes(t *testing.T) {
	w, s := startBroken(t)
	watcher := open(t, w, WatchOptions{ResourceVersion: "0"})
	for i := range 5 {
		name := fmt.Sprintf("p%d", i)
		w.create(t, pod("ns", name))
		expect(t, watcher, watch.Added, name)
		s.broken <- errors.New("connection lost")
	}
	w.create(t, pod("ns", "last"))
	expect(t, watcher, watch.Added, "last")
	s.set(func() {
		if s.watches < 5 {
			t.Errorf("the store was watched %d times", s.watches)
		}
	})
}

// When the store has forgotten where the watch was, everything is read anew, and
// watches end so that clients do the same.
func TestFeedCompacted(t *testing.T) {
	w, s := startBroken(t)
	a := w.create(t, pod("ns", "a"))
	w.create(t, pod("ns", "b"))
	watcher := open(t, w, WatchOptions{ResourceVersion: "0"})
	expect(t, watcher, watch.Added, "a")
	expect(t, watcher, watch.Added, "b")
	s.broken <- fmt.Errorf("watch: %w", store.ErrCompacted)
	w.remove(t, "ns", "b")
	w.create(t, pod("ns", "c"))
	for e := range watcher.Events() {
		if e.Type == watch.Error {
			t.Errorf("the watch ended with %v", e.Err)
		}
	}
	if err := w.pods.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := w.pods.List(t.Context(), ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if names(l) != "a c " {
		t.Errorf("after the reload there is %s", names(l))
	}
	e := next(t, open(t, w, WatchOptions{ResourceVersion: fmt.Sprint(a.Revision())}))
	if e.Type == watch.Error && !apierrors.IsResourceExpired(e.Err) {
		t.Errorf("watch from before the reload: %v", e.Err)
	}
}

// While a resource cannot be read it says so, and when to come back.
func TestNotReady(t *testing.T) {
	w := &world{store: mem.New(mem.Config{})}
	s := &brokenStore{Store: w.store, broken: make(chan error), list: errors.New("disk on fire")}
	w.set = runCaches(t, s, func(c *Config) { c.ReadTimeout = 300 * time.Millisecond })
	r, _ := w.set.Resource("pods")
	_, err := r.Get(t.Context(), "ns", "a", "0")
	if delay, ok := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || !ok || delay != 1 {
		t.Errorf("get: %v, want 429 with a delay", err)
	}
	s.set(func() { s.list = nil })
	if err := r.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.set(func() { s.rev = store.ErrUnavailable })
	if _, err := r.Get(t.Context(), "ns", "a", ""); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("consistent get without a quorum: %v, want 503", err)
	}
	if _, err := r.Get(t.Context(), "ns", "a", "0"); !apierrors.IsNotFound(err) {
		t.Errorf("get of whatever is cached: %v, want 404", err)
	}
}

// Resources are read when somebody asks for them, and events of the time between are in
// none of them twice.
func TestLazyLoad(t *testing.T) {
	w := start(t)
	cms, _ := w.set.Resource("configmaps")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			name := fmt.Sprintf("cm%d", i)
			if _, err := w.store.Create(context.Background(), "/registry/configmaps/ns/"+name, encoded(t, w, name), 0); err != nil {
				t.Error(err)
			}
		}
	}()
	watcher, err := cms.Watch(t.Context(), WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	seen := map[string]bool{}
	for len(seen) < 200 {
		e := next(t, watcher)
		name := e.Object.Meta().GetName()
		if e.Type != watch.Added || seen[name] {
			t.Fatalf("event %s %s", e.Type, name)
		}
		seen[name] = true
	}
	<-done
}

func encoded(t testing.TB, w *world, name string) []byte {
	cm := &corev1.ConfigMap{ObjectMeta: pod("ns", name).ObjectMeta}
	c, err := newCodec(configMapResource(), w.set.cfg.Scheme)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.encode(cm)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A watch that nothing concerns outlives any amount of history.
func TestIdleWatchIsNotSlow(t *testing.T) {
	w := start(t, func(c *Config) { c.History = 4096 })
	onNode := open(t, w, WatchOptions{ResourceVersion: "0", Selection: Selection{Fields: fields.OneTermEqualSelector("spec.nodeName", "n1")}})
	elsewhere := open(t, w, WatchOptions{ResourceVersion: "0", Selection: Selection{Namespace: "other"}})
	single := open(t, w, WatchOptions{ResourceVersion: "0", Selection: Selection{Namespace: "ns", Name: "mine"}})
	w.create(t, pod("ns", "a"))
	for i := range 200 {
		w.relabel(t, "ns", "a", fmt.Sprint(i))
	}
	p := pod("ns", "mine")
	p.Spec.NodeName = "n1"
	w.create(t, p)
	w.create(t, pod("other", "o"))
	expect(t, onNode, watch.Added, "mine")
	expect(t, single, watch.Added, "mine")
	expect(t, elsewhere, watch.Added, "o")

	// Leaving the node is a delete for its watch.
	to := open(t, w, WatchOptions{ResourceVersion: "0", Selection: Selection{Fields: fields.OneTermEqualSelector("spec.nodeName", "n2")}})
	if _, err := w.pods.Update(t.Context(), "ns", "mine", false, Preconditions{}, func(cur Object) (runtime.Object, time.Duration, error) {
		p := cur.Runtime().(*corev1.Pod).DeepCopy()
		p.Spec.NodeName = "n2"
		return p, 0, nil
	}); err != nil {
		t.Fatal(err)
	}
	expect(t, onNode, watch.Deleted, "mine")
	expect(t, to, watch.Added, "mine")
	onNode.Stop()
	to.Stop()
	w.pods.mu.Lock()
	defer w.pods.mu.Unlock()
	for w.pods.watches.byField["spec.nodeName"] != nil {
		w.pods.mu.Unlock()
		time.Sleep(time.Millisecond) // until both have ended
		w.pods.mu.Lock()
	}
}

// A server that starts again serves watches from before its start.
func TestWatchResumesAfterRestart(t *testing.T) {
	w := start(t)
	a := w.create(t, pod("ns", "a"))
	w.relabel(t, "ns", "a", "1")
	b := w.create(t, pod("ns", "b"))
	w.remove(t, "ns", "b")
	w.relabel(t, "ns", "a", "2")
	w.consistent(t)

	later := &world{store: w.store}
	later.set = runCaches(t, w.store)
	later.pods = later.cache(t, "pods")
	onlyOne := Selection{Labels: mustSelector(t, "a=1")}
	selected := open(t, later, WatchOptions{ResourceVersion: fmt.Sprint(b.Revision()), Selection: onlyOne})
	all := open(t, later, WatchOptions{ResourceVersion: fmt.Sprint(a.Revision())})
	second := open(t, later, WatchOptions{ResourceVersion: fmt.Sprint(a.Revision())})
	later.create(t, pod("ns", "c"))
	for _, watcher := range []Watcher{all, second} {
		expect(t, watcher, watch.Modified, "a")
		expect(t, watcher, watch.Added, "b")
		if e := expect(t, watcher, watch.Deleted, "b"); e.Object.Meta().GetResourceVersion() != fmt.Sprint(e.Revision) {
			t.Error("the deleted object does not carry the revision of its delete")
		}
		expect(t, watcher, watch.Modified, "a")
		expect(t, watcher, watch.Added, "c")
	}
	expect(t, selected, watch.Deleted, "a") // it had a=1 at that revision

	l, err := later.pods.List(t.Context(), ListOptions{ResourceVersion: fmt.Sprint(b.Revision()), ResourceVersionMatch: "Exact"})
	if err != nil || names(l) != "a b " {
		t.Errorf("list at %d: %v, %v", b.Revision(), names(l), err)
	}

	rev, err := w.store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	again := &world{store: w.store}
	again.set = runCaches(t, w.store)
	again.pods = again.cache(t, "pods")
	if e := next(t, open(t, again, WatchOptions{ResourceVersion: fmt.Sprint(a.Revision())})); !apierrors.IsResourceExpired(e.Err) {
		t.Errorf("watch from a compacted revision: %v %v, want 410", e.Type, e.Err)
	}
}

// In a quiet cluster old history goes, and the revision follows the store's all the same.
func TestUpkeep(t *testing.T) {
	clk := testclock.NewFakeClock(time.Now())
	w := start(t, func(c *Config) { c.Clock = clk })
	w.create(t, pod("ns", "a"))
	many := historyMin / 100 // far more than the least that is kept
	for i := range many {
		w.relabel(t, "ns", "a", fmt.Sprint(i))
	}
	w.consistent(t)
	rev, err := w.store.Create(t.Context(), "/elsewhere", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for clk.HasWaiters() && w.set.feed.revision() < rev {
		clk.Step(upkeepEvery)
		time.Sleep(time.Millisecond)
	}
	clk.Step(historyAge)
	kept := func() int64 {
		w.pods.mu.Lock()
		defer w.pods.mu.Unlock()
		return w.pods.history.bytes
	}
	for kept() > historyMin || w.set.budget.size() > 0 {
		clk.Step(upkeepEvery)
		time.Sleep(time.Millisecond)
	}
}
