package cacher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skiff-k8s/skiff/store"
)

type changeFunc = func(Object) (runtime.Object, time.Duration, error)

func TestUpdatePreconditions(t *testing.T) {
	w := start(t)
	o := w.create(t, pod("ns", "a"))
	stay := func(cur Object) (runtime.Object, time.Duration, error) { return nil, 0, ErrNoChange }
	uid, other := types.UID("u-1"), types.UID("other")
	rev, old := o.Meta().GetResourceVersion(), "1"
	for _, test := range []struct {
		name string
		pre  Preconditions
		ok   bool
	}{
		{"none", Preconditions{}, true},
		{"uid", Preconditions{UID: &uid}, true},
		{"other uid", Preconditions{UID: &other}, false},
		{"revision", Preconditions{ResourceVersion: &rev}, true},
		{"other revision", Preconditions{ResourceVersion: &old}, false},
	} {
		_, err := w.pods.Update(t.Context(), "ns", "a", false, test.pre, stay)
		if ok := err == nil; ok != test.ok || !ok && !apierrors.IsConflict(err) {
			t.Errorf("update with %s: %v", test.name, err)
		}
	}
	if _, err := w.pods.Delete(t.Context(), "ns", "a", Preconditions{UID: &other}, nil); !apierrors.IsConflict(err) {
		t.Errorf("delete with other uid: %v", err)
	}
	if _, err := w.pods.Update(t.Context(), "ns", "none", false, Preconditions{}, stay); !apierrors.IsNotFound(err) {
		t.Errorf("update of a missing object: %v", err)
	}
	refused := apierrors.NewForbidden(w.pods.api.GR(), "a", errors.New("no"))
	calls := 0
	if _, err := w.pods.Delete(t.Context(), "ns", "a", Preconditions{}, func(Object) error { calls++; return refused }); !apierrors.IsForbidden(err) {
		t.Errorf("delete that is refused: %v", err)
	}
	if calls != 1 {
		t.Errorf("a check that fails on the current state ran %d times", calls)
	}
}

func TestUpdateCreates(t *testing.T) {
	w := start(t)
	made := func(cur Object) (runtime.Object, time.Duration, error) {
		if cur != nil {
			t.Error("there is a current object")
		}
		return pod("ns", "a"), 0, nil
	}
	o, err := w.pods.Update(t.Context(), "ns", "a", true, Preconditions{}, made)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.pods.Get(t.Context(), "ns", "a", ""); err != nil || got.Revision() != o.Revision() {
		t.Errorf("get: %v", err)
	}
	uid := types.UID("x")
	if _, err := w.pods.Update(t.Context(), "ns", "b", true, Preconditions{UID: &uid}, made); !apierrors.IsConflict(err) {
		t.Errorf("create by an update that wants a uid: %v", err)
	}
}

// staleStore lets a test write behind the cache's back while the cache's watch stands still.
type staleStore struct {
	store.Store
	hold atomic.Bool
	free chan struct{}
}

type staleWatcher struct {
	store.Watcher
	s *staleStore
}

func (s *staleStore) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	w, err := s.Store.Watch(ctx, prefix, from)
	return &staleWatcher{w, s}, err
}

func (w *staleWatcher) Next(ctx context.Context) (store.Batch, error) {
	b, err := w.Watcher.Next(ctx)
	if w.s.hold.Load() {
		select {
		case <-w.s.free:
		case <-ctx.Done():
		}
	}
	return b, err
}

// A cache that is behind is no reason to fail or to lose an update.
func TestStaleCache(t *testing.T) {
	w := start(t)
	stale := &staleStore{Store: w.store, free: make(chan struct{})}
	set := runCaches(t, stale, func(c *Config) { c.ReadTimeout = 50 * time.Millisecond })
	r, _ := set.Resource("pods")
	if err := r.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := w.create(t, pod("ns", "a"))
	if err := set.feed.wait(t.Context(), first.Revision()); err != nil {
		t.Fatal(err)
	}
	stale.hold.Store(true)
	w.relabel(t, "ns", "a", "1")
	second := w.relabel(t, "ns", "a", "2")
	w.create(t, pod("ns", "b"))

	if got, err := r.Get(t.Context(), "ns", "a", "0"); err != nil || got.Revision() != first.Revision() {
		t.Fatalf("the cache is not stale: %v", err)
	}
	// A consistent read does not need the cache.
	if got, err := r.Get(t.Context(), "ns", "a", ""); err != nil || got.Revision() != second.Revision() {
		t.Errorf("consistent get: %v %v", got, err)
	}
	// An update sees the stale object first, then the real one.
	var seen []string
	third, err := r.Update(t.Context(), "ns", "a", false, Preconditions{}, func(cur Object) (runtime.Object, time.Duration, error) {
		p := cur.Runtime().(*corev1.Pod).DeepCopy()
		seen = append(seen, p.Labels["a"])
		p.Annotations = map[string]string{"seen": p.Labels["a"]}
		return p, 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(seen) != "[ 2]" || third.Meta().GetAnnotations()["seen"] != "2" {
		t.Errorf("update saw %q and wrote %v", seen, third.Meta())
	}
	// What the stale object does not satisfy the real one may.
	rv := third.Meta().GetResourceVersion()
	if _, err := r.Update(t.Context(), "ns", "a", false, Preconditions{ResourceVersion: &rv}, func(Object) (runtime.Object, time.Duration, error) {
		return nil, 0, ErrNoChange
	}); err != nil {
		t.Errorf("precondition on the newest revision: %v", err)
	}
	// A change of nothing is judged by the real object too.
	undo, err := r.Update(t.Context(), "ns", "a", false, Preconditions{}, func(cur Object) (runtime.Object, time.Duration, error) {
		p := cur.Runtime().(*corev1.Pod).DeepCopy()
		p.Labels, p.Annotations = nil, nil // as the stale object is
		return p, 0, nil
	})
	if err != nil || undo.Revision() <= second.Revision() || len(undo.Meta().GetLabels()) != 0 {
		t.Errorf("a change back to the stale state was lost: %v", err)
	}
	// What the cache has not seen can be deleted.
	if _, err := r.Delete(t.Context(), "ns", "b", Preconditions{}, nil); err != nil {
		t.Error(err)
	}
	stale.hold.Store(false)
	close(stale.free)
	if err := set.feed.wait(t.Context(), undo.Revision()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(t.Context(), "ns", "b", ""); !apierrors.IsNotFound(err) {
		t.Errorf("get of a deleted object: %v", err)
	}
}

// Every increment of many concurrent ones counts, every read is as new as the writes
// that ended before it, and a watch sees each value once, in order.
func TestLinearizable(t *testing.T) {
	w := start(t)
	second := runCaches(t, w.store) // another API server on the same store
	r2, _ := second.Resource("pods")
	if err := r2.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := w.create(t, pod("ns", "counter"))
	watcher := open(t, w, WatchOptions{ResourceVersion: strconv.FormatInt(o.Revision(), 10)})
	const workers, rounds = 8, 50
	var done atomic.Int64 // increments known to have been written
	count := func(o Object) int64 {
		n, _ := strconv.ParseInt(o.Meta().GetLabels()["n"], 10, 64) // absent at first
		return n
	}
	var wg sync.WaitGroup
	for i := range workers {
		r := Resource(w.pods)
		if i%2 == 1 {
			r = r2
		}
		wg.Go(func() {
			for range rounds {
				o, err := r.Update(t.Context(), "ns", "counter", false, Preconditions{}, func(cur Object) (runtime.Object, time.Duration, error) {
					p := cur.Runtime().(*corev1.Pod).DeepCopy()
					p.Labels = map[string]string{"n": strconv.FormatInt(count(cur)+1, 10)}
					return p, 0, nil
				})
				if err != nil {
					t.Error(err)
					return
				}
				for {
					n := done.Load()
					if count(o) <= n || done.CompareAndSwap(n, count(o)) {
						break
					}
				}
				atLeast := done.Load()
				got, err := r.Get(t.Context(), "ns", "counter", "")
				if err != nil {
					t.Error(err)
					return
				}
				if count(got) < atLeast {
					t.Errorf("read %d after %d was written", count(got), atLeast)
				}
				l, err := r.List(t.Context(), ListOptions{Selection: Selection{Namespace: "ns"}})
				if err != nil || len(l.Items) != 1 || count(l.Items[0]) < atLeast || l.Items[0].Revision() > l.Revision {
					t.Errorf("list after %d was written: %v", atLeast, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range int64(workers * rounds) {
		if e := next(t, watcher); e.Type != watch.Modified || count(e.Object) != i+1 {
			t.Fatalf("event %s %d, want %d", e.Type, count(e.Object), i+1)
		}
	}
}

func TestTTL(t *testing.T) {
	w := start(t)
	watcher := open(t, w, WatchOptions{ResourceVersion: "0"})
	if _, err := w.pods.Create(t.Context(), pod("ns", "short"), time.Second); err != nil {
		t.Fatal(err)
	}
	expect(t, watcher, watch.Added, "short")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go w.store.Run(ctx)
	expect(t, watcher, watch.Deleted, "short")
}

func TestCustomResources(t *testing.T) {
	w := start(t)
	r := w.cache(t, "example.com/widgets")
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "w"},
		"spec":     map[string]any{"size": int64(3)},
	}}
	o, err := r.Create(t.Context(), u, 0)
	if err != nil {
		t.Fatal(err)
	}
	kv, _, err := w.store.Get(t.Context(), "/registry/example.com/widgets/w")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(kv.Value), `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":3}}`+"\n"; got != want {
		t.Errorf("stored %s, want %s", got, want)
	}
	b, err := o.JSON()
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","resourceVersion":"%d"},"spec":{"size":3}}`, o.Revision())
	if string(b) != want {
		t.Errorf("JSON %s, want %s", b, want)
	}
	if _, err := o.Proto(); err == nil {
		t.Error("a custom resource has a protobuf encoding")
	}
	got, err := r.Update(t.Context(), "", "w", false, Preconditions{}, changeFunc(func(cur Object) (runtime.Object, time.Duration, error) {
		u := cur.Runtime().(*unstructured.Unstructured).DeepCopy()
		return u, 0, unstructured.SetNestedField(u.Object, int64(4), "spec", "size")
	}))
	if err != nil || got.Revision() <= o.Revision() {
		t.Fatalf("update: %v", err)
	}
	d, err := r.Delete(t.Context(), "", "w", Preconditions{}, nil)
	if err != nil || d.Meta().GetResourceVersion() != strconv.FormatInt(d.Revision(), 10) {
		t.Errorf("delete: %v", err)
	}
	if got.Meta().GetResourceVersion() != strconv.FormatInt(got.Revision(), 10) {
		t.Error("deleting changed the shared object")
	}
}
