// Package storetest is the contract of store.Store as tests: every implementation
// passes Run.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/store"
)

// Run checks a store that open returns anew for each test. Keys may be there already;
// the tests stay below prefixes of their own. Skipping is for a server of others that cannot do
// what a test asks for: by the test's name, the reason.
func Run(t *testing.T, open func(t *testing.T) store.Store, skipping ...map[string]string) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s store.Store)
	}{
		{"Create", testCreate},
		{"Update", testUpdate},
		{"Delete", testDelete},
		{"Get", testGet},
		{"List", testList},
		{"ListPages", testListPages},
		{"ListPast", testListPast},
		{"Revision", testRevision},
		{"WatchOrder", testWatchOrder},
		{"WatchPrefix", testWatchPrefix},
		{"WatchResume", testWatchResume},
		{"WatchFuture", testWatchFuture},
		{"WatchProgress", testWatchProgress},
		{"WatchCompacted", testWatchCompacted},
		{"WatchLarge", testWatchLarge},
		{"WatchEnds", testWatchEnds},
		{"Compact", testCompact},
		{"TTL", testTTL},
		{"Cancelled", testCancelled},
		{"Race", testRace},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, s := range skipping {
				if reason := s[test.name]; reason != "" {
					t.Skip(reason)
				}
			}
			test.run(t, open(t))
		})
	}
}

// patience is far beyond what any store needs on a busy machine.
const patience = 30 * time.Second

func create(t *testing.T, s store.Store, key, value string) int64 {
	t.Helper()
	rev, err := s.Create(t.Context(), key, []byte(value), 0)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func update(t *testing.T, s store.Store, key, value string, expected int64) int64 {
	t.Helper()
	rev, err := s.Update(t.Context(), key, []byte(value), expected, 0)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func remove(t *testing.T, s store.Store, key string, expected int64) int64 {
	t.Helper()
	rev, err := s.Delete(t.Context(), key, expected)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func testCreate(t *testing.T, s store.Store) {
	before, err := s.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rev := create(t, s, "/create/a", "1")
	if rev <= before {
		t.Errorf("created at revision %d, the store was at %d", rev, before)
	}
	kv, at, err := s.Get(t.Context(), "/create/a")
	if err != nil {
		t.Fatal(err)
	}
	if string(kv.Value) != "1" || kv.Key != "/create/a" || kv.CreateRevision != rev || kv.ModRevision != rev || at < rev {
		t.Errorf("got %+v at %d, want value 1 at %d", kv, at, rev)
	}
	_, err = s.Create(t.Context(), "/create/a", []byte("2"), 0)
	var exists *store.ExistsError
	if !errors.As(err, &exists) {
		t.Fatalf("second create: %v, want an ExistsError", err)
	}
	if exists.Current.ModRevision != rev || string(exists.Current.Value) != "1" {
		t.Errorf("second create says the key is %+v", exists.Current)
	}
	rev = remove(t, s, "/create/a", rev)
	if again := create(t, s, "/create/a", "3"); again <= rev {
		t.Errorf("created again at %d, deleted at %d", again, rev)
	}
}

func testUpdate(t *testing.T, s store.Store) {
	created := create(t, s, "/update/a", "1")
	updated := update(t, s, "/update/a", "2", created)
	kv, _, err := s.Get(t.Context(), "/update/a")
	if err != nil {
		t.Fatal(err)
	}
	if string(kv.Value) != "2" || kv.CreateRevision != created || kv.ModRevision != updated || updated <= created {
		t.Errorf("after update: %+v, created %d, updated %d", kv, created, updated)
	}
	var conflict *store.ConflictError
	_, err = s.Update(t.Context(), "/update/a", []byte("3"), created, 0)
	if !errors.As(err, &conflict) || conflict.Missing || conflict.Key != "/update/a" {
		t.Fatalf("update at an old revision: %v, want a ConflictError", err)
	}
	if conflict.Current.ModRevision != updated || string(conflict.Current.Value) != "2" {
		t.Errorf("the conflict says the key is %+v", conflict.Current)
	}
	_, err = s.Update(t.Context(), "/update/none", []byte("3"), created, 0)
	if !errors.As(err, &conflict) || !conflict.Missing {
		t.Errorf("update of a missing key: %v, want a ConflictError that says so", err)
	}
	empty := update(t, s, "/update/a", "", updated)
	if kv, _, err := s.Get(t.Context(), "/update/a"); err != nil || len(kv.Value) != 0 || kv.ModRevision != empty {
		t.Errorf("an empty value reads as %+v, %v", kv, err)
	}
}

func testDelete(t *testing.T, s store.Store) {
	created := create(t, s, "/delete/a", "1")
	updated := update(t, s, "/delete/a", "2", created)
	var conflict *store.ConflictError
	if _, err := s.Delete(t.Context(), "/delete/a", created); !errors.As(err, &conflict) || conflict.Current.ModRevision != updated {
		t.Fatalf("delete at an old revision: %v, want a ConflictError with revision %d", err, updated)
	}
	if rev := remove(t, s, "/delete/a", updated); rev <= updated {
		t.Errorf("deleted at %d, updated at %d", rev, updated)
	}
	if _, _, err := s.Get(t.Context(), "/delete/a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get after delete: %v, want ErrNotFound", err)
	}
	if _, err := s.Delete(t.Context(), "/delete/a", updated); !errors.As(err, &conflict) || !conflict.Missing {
		t.Errorf("second delete: %v, want a ConflictError that says it is missing", err)
	}
}

func testGet(t *testing.T, s store.Store) {
	rev := create(t, s, "/get/a", "1")
	_, at, err := s.Get(t.Context(), "/get/none")
	if !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("get: %v, want ErrNotFound", err)
	}
	if at < rev {
		t.Errorf("ErrNotFound came with revision %d, the store was at %d", at, rev)
	}
}

func keys(p store.Page) string {
	out := ""
	for _, kv := range p.KVs {
		out += kv.Key + "=" + string(kv.Value) + " "
	}
	return out
}

func list(t *testing.T, s store.Store, prefix string, o store.ListOptions) store.Page {
	t.Helper()
	p, err := s.List(t.Context(), prefix, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func testList(t *testing.T, s store.Store) {
	create(t, s, "/list/b", "2")
	create(t, s, "/list/a/x", "1")
	create(t, s, "/listing", "no")
	create(t, s, "/lisu", "no")
	last := create(t, s, "/list/c", "3")
	p := list(t, s, "/list/", store.ListOptions{})
	if got, want := keys(p), "/list/a/x=1 /list/b=2 /list/c=3 "; got != want {
		t.Errorf("list: %s, want %s", got, want)
	}
	if p.Revision < last || p.Count != 3 {
		t.Errorf("list at revision %d of %d keys, want at least %d and 3", p.Revision, p.Count, last)
	}
	p = list(t, s, "/list/", store.ListOptions{KeysOnly: true})
	if got, want := keys(p), "/list/a/x= /list/b= /list/c= "; got != want {
		t.Errorf("list of keys: %s, want %s", got, want)
	}
	if p := list(t, s, "/list/none/", store.ListOptions{}); len(p.KVs) != 0 || p.Count != 0 || p.Revision < last {
		t.Errorf("list of nothing: %+v", p)
	}
}

func testListPages(t *testing.T, s store.Store) {
	for _, k := range []string{"a", "b", "c", "d", "e"} {
		create(t, s, "/pages/"+k, k)
	}
	first := list(t, s, "/pages/", store.ListOptions{Limit: 2})
	if got, want := keys(first), "/pages/a=a /pages/b=b "; got != want || first.Count != 5 {
		t.Fatalf("first page %s of %d, want %s of 5", got, first.Count, want)
	}
	create(t, s, "/pages/bb", "late")
	second := list(t, s, "/pages/", store.ListOptions{
		From: first.KVs[1].Key + "\x00", Limit: 2, Revision: first.Revision,
	})
	if got, want := keys(second), "/pages/c=c /pages/d=d "; got != want || second.Count != 3 || second.Revision != first.Revision {
		t.Fatalf("second page %s of %d at %d, want %s of 3 at %d", got, second.Count, second.Revision, want, first.Revision)
	}
	if p := list(t, s, "/pages/", store.ListOptions{From: "/pages/d"}); keys(p) != "/pages/d=d /pages/e=e " {
		t.Errorf("from /pages/d: %s", keys(p))
	}
}

func testListPast(t *testing.T, s store.Store) {
	a := create(t, s, "/past/a", "1")
	b := create(t, s, "/past/b", "1")
	remove(t, s, "/past/b", b)
	update(t, s, "/past/a", "2", a)
	if p := list(t, s, "/past/", store.ListOptions{Revision: b}); keys(p) != "/past/a=1 /past/b=1 " || p.Revision != b {
		t.Errorf("at revision %d: %s at %d", b, keys(p), p.Revision)
	}
	if p := list(t, s, "/past/", store.ListOptions{Revision: a}); keys(p) != "/past/a=1 " {
		t.Errorf("at revision %d: %s", a, keys(p))
	}
	now, err := s.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(t.Context(), "/past/", store.ListOptions{Revision: now + 1000}); !errors.Is(err, store.ErrFutureRevision) {
		t.Errorf("list in the future: %v, want ErrFutureRevision", err)
	}
}

func testRevision(t *testing.T, s store.Store) {
	rev := create(t, s, "/revision/a", "1")
	got, err := s.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got < rev {
		t.Errorf("revision %d after a write at %d", got, rev)
	}
}

func testCompact(t *testing.T, s store.Store) {
	a := create(t, s, "/compact/a", "1")
	b := update(t, s, "/compact/a", "2", a)
	c := update(t, s, "/compact/a", "3", b)
	if err := s.Compact(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(t.Context(), "/compact/", store.ListOptions{Revision: a}); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("list before the compacted revision: %v, want ErrCompacted", err)
	}
	if p := list(t, s, "/compact/", store.ListOptions{Revision: b}); keys(p) != "/compact/a=2 " {
		t.Errorf("list at the compacted revision: %s", keys(p))
	}
	if p := list(t, s, "/compact/", store.ListOptions{Revision: c}); keys(p) != "/compact/a=3 " {
		t.Errorf("list after the compacted revision: %s", keys(p))
	}
	if err := s.Compact(t.Context(), b); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("compact again: %v, want ErrCompacted", err)
	}
}

func testTTL(t *testing.T, s store.Store) {
	w := watch(t, s, "/ttl/", 0)
	rev, err := s.Create(t.Context(), "/ttl/a", []byte("1"), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := s.Create(t.Context(), "/ttl/b", []byte("1"), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	update(t, s, "/ttl/b", "2", kept) // without a TTL it stays
	want(t, w, "put /ttl/a=1", "put /ttl/b=1", "put /ttl/b=2", "delete /ttl/a")
	if _, _, err := s.Get(t.Context(), "/ttl/a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get of an expired key: %v, want ErrNotFound", err)
	}
	if _, _, err := s.Get(t.Context(), "/ttl/b"); err != nil {
		t.Errorf("get of a key whose TTL was taken away: %v", err)
	}
	if p := list(t, s, "/ttl/", store.ListOptions{Revision: rev}); keys(p) != "/ttl/a=1 " {
		t.Errorf("the expired key in the past: %s", keys(p))
	}
}

func testCancelled(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Get(ctx, "/cancelled"); !errors.Is(err, context.Canceled) {
		t.Errorf("get: %v", err)
	}
	if _, err := s.List(ctx, "/cancelled", store.ListOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("list: %v", err)
	}
	if _, err := s.Revision(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("revision: %v", err)
	}
	// A write may have happened all the same, unless it says otherwise.
	if _, err := s.Create(ctx, "/cancelled", nil, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("create: %v", err)
	}
}

// testRace: of many writers at one revision, exactly one wins.
func testRace(t *testing.T, s store.Store) {
	rev := create(t, s, "/race/a", "0")
	const writers, rounds = 8, 20
	for round := range rounds {
		var mu sync.Mutex
		var wg sync.WaitGroup
		var wins []int64
		for i := range writers {
			wg.Go(func() {
				next, err := s.Update(t.Context(), "/race/a", fmt.Appendf(nil, "%d-%d", round, i), rev, 0)
				var conflict *store.ConflictError
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					wins = append(wins, next)
				} else if !errors.As(err, &conflict) || conflict.Current.ModRevision <= rev {
					t.Errorf("update: %v", err)
				}
			})
		}
		wg.Wait()
		if len(wins) != 1 {
			t.Fatalf("%d of %d writers at revision %d won", len(wins), writers, rev)
		}
		rev = wins[0]
	}
}
