package cacher

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	testclock "k8s.io/utils/clock/testing"
)

func open(t testing.TB, w *world, o WatchOptions) Watcher {
	t.Helper()
	watcher, err := w.pods.Watch(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watcher.Stop)
	return watcher
}

// quiet checks that no event is waiting once everything so far has been delivered:
// the next event is that of a pod created now.
func quiet(t testing.TB, w *world, watcher Watcher) {
	t.Helper()
	w.create(t, pod("ns", "sentinel"))
	expect(t, watcher, watch.Added, "sentinel")
	w.remove(t, "ns", "sentinel")
	expect(t, watcher, watch.Deleted, "sentinel")
}

func TestWatchStarts(t *testing.T) {
	yes, no := true, false
	for _, test := range []struct {
		name    string
		rv      string // "a" stands for the revision after pod a was created
		initial *bool
		want    []string
	}{
		{name: "unset", rv: "", want: []string{"ADDED a", "ADDED b"}},
		{name: "any", rv: "0", want: []string{"ADDED a", "ADDED b"}},
		{name: "exact", rv: "a", want: []string{"ADDED b"}},
		{name: "unset without initial events", rv: "", initial: &no},
		{name: "any without initial events", rv: "0", initial: &no},
		{name: "exact without initial events", rv: "a", initial: &no, want: []string{"ADDED b"}},
		{name: "unset with initial events", rv: "", initial: &yes, want: []string{"ADDED a", "ADDED b", "END"}},
		{name: "any with initial events", rv: "0", initial: &yes, want: []string{"ADDED a", "ADDED b", "END"}},
		{name: "not older, with initial events", rv: "a", initial: &yes, want: []string{"ADDED a", "ADDED b", "END"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := start(t)
			a := w.create(t, pod("ns", "a"))
			b := w.create(t, pod("ns", "b"))
			if err := w.pods.atLeast(t.Context(), b.Revision()); err != nil {
				t.Fatal(err)
			}
			rv := test.rv
			if rv == "a" {
				rv = fmt.Sprint(a.Revision())
			}
			watcher := open(t, w, WatchOptions{ResourceVersion: rv, SendInitialEvents: test.initial, Bookmarks: true})
			for _, want := range test.want {
				e := next(t, watcher)
				got := string(e.Type)
				if e.InitialEventsEnd {
					got = "END"
					if e.Type != watch.Bookmark || e.Revision < b.Revision() {
						t.Errorf("the initial events end with %s at %d, want a bookmark at least at %d", e.Type, e.Revision, b.Revision())
					}
				} else if e.Object != nil {
					got += " " + e.Object.Meta().GetName()
				}
				if got != want {
					t.Fatalf("got %s, want %s", got, want)
				}
			}
			quiet(t, w, watcher)
		})
	}
}

func TestWatchNoEndWithoutBookmarks(t *testing.T) {
	w := start(t)
	yes := true
	w.create(t, pod("ns", "a"))
	watcher := open(t, w, WatchOptions{SendInitialEvents: &yes})
	expect(t, watcher, watch.Added, "a")
	quiet(t, w, watcher)
}

func TestWatchScopes(t *testing.T) {
	onNode := func(name, node string) *corev1.Pod {
		p := pod("ns", name)
		p.Spec.NodeName = node
		return p
	}
	for _, test := range []struct {
		name string
		sel  Selection
		want string
	}{
		{"all", Selection{}, "a b c other"},
		{"namespace", Selection{Namespace: "ns"}, "a b c"},
		{"name", Selection{Namespace: "ns", Name: "b"}, "b"},
		{"name by field", Selection{Namespace: "ns", Fields: fields.OneTermEqualSelector("metadata.name", "b")}, "b"},
		{"name by field, everywhere", Selection{Fields: fields.OneTermEqualSelector("metadata.name", "other")}, "other"},
		{"name everywhere, and node", Selection{Name: "b", Fields: fields.OneTermEqualSelector("spec.nodeName", "n2")}, "b"},
		{"name everywhere, and another node", Selection{Name: "b", Fields: fields.OneTermEqualSelector("spec.nodeName", "n1")}, ""},
		{"namespace by field", Selection{Fields: fields.OneTermEqualSelector("metadata.namespace", "elsewhere")}, "other"},
		{"contradicting names", Selection{Namespace: "ns", Name: "a", Fields: fields.OneTermEqualSelector("metadata.name", "b")}, ""},
		{"not this name", Selection{Namespace: "ns", Fields: fields.OneTermNotEqualSelector("metadata.name", "b")}, "a c"},
		{"node", Selection{Fields: fields.OneTermEqualSelector("spec.nodeName", "n1")}, "a c"},
		{"node and namespace", Selection{Namespace: "elsewhere", Fields: fields.OneTermEqualSelector("spec.nodeName", "n1")}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := start(t)
			// The same selection by list, by initial events and by events.
			live := open(t, w, WatchOptions{Selection: test.sel, ResourceVersion: "0"})
			w.create(t, onNode("a", "n1"))
			w.create(t, onNode("b", "n2"))
			w.create(t, onNode("c", "n1"))
			w.create(t, pod("elsewhere", "other"))
			l, err := w.pods.List(t.Context(), ListOptions{Selection: test.sel})
			if err != nil {
				t.Fatal(err)
			}
			listed := ""
			for i, o := range l.Items {
				if i > 0 {
					listed += " "
				}
				listed += o.Meta().GetName()
			}
			initial := open(t, w, WatchOptions{Selection: test.sel})
			for _, o := range l.Items {
				if test.want != "a b c other" { // across namespaces, lists are by key and events by time
					expect(t, live, watch.Added, o.Meta().GetName())
				}
				expect(t, initial, watch.Added, o.Meta().GetName())
			}
			if test.name == "all" {
				test.want = "other a b c"
			}
			if listed != test.want {
				t.Errorf("list: %q, want %q", listed, test.want)
			}
		})
	}
}

func TestWatchExpired(t *testing.T) {
	w := start(t, func(c *Config) { c.History = 4096 })
	first := w.create(t, pod("ns", "a"))
	for i := range 50 {
		w.relabel(t, "ns", "a", fmt.Sprint(i))
	}
	w.consistent(t)
	watcher := open(t, w, WatchOptions{ResourceVersion: fmt.Sprint(first.Revision())})
	e := next(t, watcher)
	if e.Type != watch.Error || !apierrors.IsResourceExpired(e.Err) {
		t.Fatalf("watch from a forgotten revision: %v %v, want 410", e.Type, e.Err)
	}
	if _, ok := <-watcher.Events(); ok {
		t.Error("the watch goes on after its error")
	}
}

func (w *world) consistent(t testing.TB) {
	t.Helper()
	if err := w.pods.consistent(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A consumer that does not read is cut off once what it has not read is forgotten, and
// holds up nobody meanwhile.
func TestWatchSlowConsumer(t *testing.T) {
	w := start(t, func(c *Config) { c.History = 8192 })
	w.create(t, pod("ns", "a"))
	slow := open(t, w, WatchOptions{ResourceVersion: "0"})
	fast := open(t, w, WatchOptions{ResourceVersion: "0"})
	expect(t, fast, watch.Added, "a")
	for i := range 500 {
		w.relabel(t, "ns", "a", fmt.Sprint(i))
		expect(t, fast, watch.Modified, "a")
	}
	events := 0
	for e := range slow.Events() {
		if e.Type == watch.Error {
			if !apierrors.IsResourceExpired(e.Err) {
				t.Errorf("error %v, want 410", e.Err)
			}
			return
		}
		events++
	}
	t.Errorf("the slow watch ended after %d events without an error", events)
}

func TestBookmarks(t *testing.T) {
	clk := testclock.NewFakeClock(time.Now())
	w := start(t, func(c *Config) { c.Clock = clk })
	watcher := open(t, w, WatchOptions{ResourceVersion: "0", Bookmarks: true})
	without := open(t, w, WatchOptions{ResourceVersion: "0"})
	w.create(t, pod("ns", "a"))
	expect(t, watcher, watch.Added, "a")
	expect(t, without, watch.Added, "a")
	// A change of another resource moves the bookmark on.
	cms := w.cache(t, "configmaps")
	cm, err := cms.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: pod("ns", "cm").ObjectMeta}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.pods.atLeast(t.Context(), cm.Revision()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		clk.Step(2 * time.Minute)
		e := next(t, watcher)
		if e.Type != watch.Bookmark || e.Revision < cm.Revision() || e.InitialEventsEnd {
			t.Errorf("event %s at %d, want a bookmark at least at %d", e.Type, e.Revision, cm.Revision())
		}
	}
	watcher.(interface{ RequestBookmark() }).RequestBookmark()
	if e := next(t, watcher); e.Type != watch.Bookmark {
		t.Errorf("asked for a bookmark, got %s", e.Type)
	}
	quiet(t, w, without)
}

// A watch may begin at a revision that has not come yet, and then skips what precedes it.
func TestWatchFromFuture(t *testing.T) {
	w := start(t)
	rev, err := w.store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	watcher := open(t, w, WatchOptions{ResourceVersion: fmt.Sprint(rev + 2)})
	for _, n := range []string{"a", "b", "c"} {
		w.create(t, pod("ns", n))
	}
	expect(t, watcher, watch.Added, "c")
}

func TestWatchSharesDeletedObject(t *testing.T) {
	w := start(t)
	one := open(t, w, WatchOptions{ResourceVersion: "0"})
	two := open(t, w, WatchOptions{ResourceVersion: "0"})
	w.create(t, pod("ns", "a"))
	w.remove(t, "ns", "a")
	expect(t, one, watch.Added, "a")
	expect(t, two, watch.Added, "a")
	d1, d2 := expect(t, one, watch.Deleted, "a"), expect(t, two, watch.Deleted, "a")
	if d1.Object.Runtime() != d2.Object.Runtime() {
		t.Error("each watch has its own copy of the deleted object")
	}
}

func TestRemoveEndsWatches(t *testing.T) {
	w := start(t)
	watcher := open(t, w, WatchOptions{ResourceVersion: "0"})
	w.set.Remove("pods")
	select {
	case _, ok := <-watcher.Events():
		if ok {
			t.Error("an event of a removed resource")
		}
	case <-time.After(time.Minute):
		t.Error("the watch goes on after its resource was removed")
	}
	if _, ok := w.set.Resource("pods"); ok {
		t.Error("the removed resource is still there")
	}
	// Its objects are still in the store when it comes back.
	if err := w.set.Add("pods", podResource()); err != nil {
		t.Fatal(err)
	}
	old := w.pods
	w.pods = w.cache(t, "pods")
	w.create(t, pod("ns", "a"))
	w.consistent(t)
	// An informer that began with the old cache goes on with the new one.
	l, err := old.ListerWatcher().ListWithContext(t.Context(), listEverything)
	if err != nil || len(l.(*sharedList).Items) != 1 {
		t.Errorf("list through the old cache: %v, %v", l, err)
	}
	if _, err := old.Get(t.Context(), "ns", "a", "0"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("get from the old cache: %v, want 429", err)
	}
}

// A resource that is replaced or removed while a read waits leaves that read with an error that
// says try again, never with an empty state.
func TestReplacedDuringRead(t *testing.T) {
	for name, replace := range map[string]func(*Caches) error{
		"replaced": func(s *Caches) error { return s.Add("pods", podResource()) },
		"removed":  func(s *Caches) error { s.Remove("pods"); return nil },
	} {
		for what, read := range map[string]func(context.Context, *resource) error{
			"get":  func(ctx context.Context, r *resource) error { _, err := r.Get(ctx, "ns", "a", ""); return err },
			"list": func(ctx context.Context, r *resource) error { _, err := r.List(ctx, ListOptions{}); return err },
			"page": func(ctx context.Context, r *resource) error {
				_, err := r.List(ctx, ListOptions{Continue: encodeContinue(-1, "ns/a")})
				return err
			},
			"watch": func(ctx context.Context, r *resource) error {
				w, err := r.Watch(ctx, WatchOptions{})
				if err != nil {
					return err
				}
				defer w.Stop()
				return (<-w.Events()).Err
			},
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				w := start(t)
				w.create(t, pod("ns", "a"))
				w.set.confirm.revision = func(ctx context.Context) (int64, error) {
					if err := replace(w.set); err != nil {
						return 0, err
					}
					return w.store.Revision(ctx)
				}
				if err := read(t.Context(), w.pods); !apierrors.IsTooManyRequests(err) {
					t.Errorf("%v, want 429", err)
				}
			})
		}
		t.Run("update "+name, func(t *testing.T) {
			w := start(t)
			w.create(t, pod("ns", "a"))
			if err := replace(w.set); err != nil {
				t.Fatal(err)
			}
			if _, _, err := w.pods.cached("ns/a"); !apierrors.IsTooManyRequests(err) {
				t.Errorf("%v, want 429", err)
			}
		})
	}
}

// An object that cannot be decoded fails what needs it, and nothing else.
func TestUndecodable(t *testing.T) {
	w := start(t)
	w.create(t, pod("ns", "a"))
	if _, err := w.store.Create(t.Context(), "/registry/pods/ns/bad", []byte("k8s\x00garbage"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pods.Get(t.Context(), "ns", "bad", ""); apierrors.ReasonForError(err) != "StorageReadError" {
		t.Errorf("get: %v, want a StorageReadError", err)
	}
	if _, err := w.pods.Get(t.Context(), "ns", "a", ""); err != nil {
		t.Error(err)
	}
	if _, err := w.pods.ListerWatcher().ListWithContext(t.Context(), listEverything); apierrors.ReasonForError(err) != "StorageReadError" {
		t.Errorf("list: %v, want a StorageReadError", err)
	}
	if _, err := w.pods.Update(t.Context(), "ns", "bad", false, Preconditions{}, func(Object) (runtime.Object, time.Duration, error) {
		t.Error("change was called with an object that cannot be decoded")
		return nil, 0, nil
	}); apierrors.ReasonForError(err) != "StorageReadError" {
		t.Errorf("update: %v", err)
	}
	// What cannot be read can still be deleted.
	w.remove(t, "ns", "bad")
}
