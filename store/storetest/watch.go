package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/store"
)

func watch(t *testing.T, s store.Store, prefix string, from int64) store.Watcher {
	t.Helper()
	w, err := s.Watch(t.Context(), prefix, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func next(t *testing.T, w store.Watcher) store.Batch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := w.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(b.Events); n > 0 && b.Revision < b.Events[n-1].KV.ModRevision {
		t.Errorf("a batch at revision %d has an event of %d", b.Revision, b.Events[n-1].KV.ModRevision)
	}
	return b
}

func describe(e store.Event) string {
	if e.Type == store.Delete {
		return "delete " + e.KV.Key + string(e.KV.Value)
	}
	return fmt.Sprintf("put %s=%s", e.KV.Key, e.KV.Value)
}

// want reads events until as many as wanted have come, and compares.
func want(t *testing.T, w store.Watcher, wanted ...string) []store.Event {
	t.Helper()
	var got []store.Event
	for len(got) < len(wanted) {
		got = append(got, next(t, w).Events...)
	}
	var last int64
	for i, e := range got {
		if i >= len(wanted) || describe(e) != wanted[i] {
			t.Fatalf("event %d is %q, want all of %q", i, describe(e), wanted)
		}
		if e.KV.ModRevision < last {
			t.Errorf("event %d at revision %d follows one at %d", i, e.KV.ModRevision, last)
		}
		last = e.KV.ModRevision
		if e.Prev.Key != "" && (e.Prev.Key != e.KV.Key || e.Prev.ModRevision >= e.KV.ModRevision) {
			t.Errorf("event %d: %+v cannot be what was before %+v", i, e.Prev, e.KV)
		}
	}
	return got
}

func testWatchOrder(t *testing.T, s store.Store) {
	w := watch(t, s, "/order/", 0)
	a := create(t, s, "/order/a", "1")
	b := create(t, s, "/order/b", "1")
	a2 := update(t, s, "/order/a", "2", a)
	d := remove(t, s, "/order/b", b)
	events := want(t, w, "put /order/a=1", "put /order/b=1", "put /order/a=2", "delete /order/b")
	for i, rev := range []int64{a, b, a2, d} {
		if events[i].KV.ModRevision != rev {
			t.Errorf("event %d is at revision %d, written at %d", i, events[i].KV.ModRevision, rev)
		}
	}
	if kv := events[2].KV; kv.CreateRevision != a {
		t.Errorf("the update says the key was created at %d, want %d", kv.CreateRevision, a)
	}
}

func testWatchPrefix(t *testing.T, s store.Store) {
	w := watch(t, s, "/prefix/a/", 0)
	create(t, s, "/prefix/a", "no")
	create(t, s, "/prefix/aa/x", "no")
	create(t, s, "/prefix/a/x", "yes")
	create(t, s, "/prefix/b/x", "no")
	create(t, s, "/prefix/a/y", "yes")
	want(t, w, "put /prefix/a/x=yes", "put /prefix/a/y=yes")
}

func testWatchResume(t *testing.T, s store.Store) {
	a := create(t, s, "/resume/a", "1")
	b := update(t, s, "/resume/a", "2", a)
	remove(t, s, "/resume/a", b)
	want(t, watch(t, s, "/resume/", a), "put /resume/a=2", "delete /resume/a")
	want(t, watch(t, s, "/resume/", a-1), "put /resume/a=1", "put /resume/a=2", "delete /resume/a")
	w := watch(t, s, "/resume/", b)
	create(t, s, "/resume/c", "1")
	want(t, w, "delete /resume/a", "put /resume/c=1")
}

func testWatchFuture(t *testing.T, s store.Store) {
	rev := create(t, s, "/future/a", "1")
	w := watch(t, s, "/future/", rev+1)
	b := create(t, s, "/future/b", "1") // at rev+1: not wanted
	c := create(t, s, "/future/c", "1")
	if b != rev+1 {
		t.Skipf("somebody else wrote meanwhile: revision %d follows %d", b, rev)
	}
	events := want(t, w, "put /future/c=1")
	if events[0].KV.ModRevision != c {
		t.Errorf("event at %d, want %d", events[0].KV.ModRevision, c)
	}
}

func testWatchProgress(t *testing.T, s store.Store) {
	w := watch(t, s, "/progress/", 0)
	in := create(t, s, "/progress/a", "1")
	out := create(t, s, "/elsewhere/a", "1")
	// Asking must not overtake events, and reach what lies outside the prefix.
	seen := false
	for {
		if err := w.RequestProgress(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		b, err := w.Next(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			continue // lost: whoever needs progress asks again
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Events {
			seen = seen || e.KV.ModRevision == in
		}
		if b.Revision >= in && !seen {
			t.Fatalf("progress to revision %d before the event of %d", b.Revision, in)
		}
		if b.Revision >= out {
			if len(b.Events) != 0 {
				t.Errorf("progress with events: %+v", b)
			}
			return
		}
	}
}

func testWatchCompacted(t *testing.T, s store.Store) {
	a := create(t, s, "/compacted/a", "1")
	b := update(t, s, "/compacted/a", "2", a)
	c := update(t, s, "/compacted/a", "3", b)
	if err := s.Compact(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := s.Watch(ctx, "/compacted/", a)
	if err == nil {
		defer w.Close()
		_, err = w.Next(ctx)
	}
	if !errors.Is(err, store.ErrCompacted) {
		t.Errorf("watch from a compacted revision: %v, want ErrCompacted", err)
	}
	update(t, s, "/compacted/a", "4", c)
	want(t, watch(t, s, "/compacted/", c), "put /compacted/a=4")
}

// testWatchLarge: a watch that is far behind gets everything, in order.
func testWatchLarge(t *testing.T, s store.Store) {
	const n = 2500
	start, err := s.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	idle := watch(t, s, "/large/", 0)
	rev := create(t, s, "/large/a", "0")
	for i := 1; i < n; i++ {
		rev = update(t, s, "/large/a", fmt.Sprint(i), rev)
	}
	for name, w := range map[string]store.Watcher{"idle": idle, "late": watch(t, s, "/large/", start)} {
		got := 0
		for got < n {
			for _, e := range next(t, w).Events {
				if string(e.KV.Value) != fmt.Sprint(got) {
					t.Fatalf("%s watcher: event %d has value %s", name, got, e.KV.Value)
				}
				got++
			}
		}
	}
}

func testWatchEnds(t *testing.T, s store.Store) {
	// By the context of Next.
	w := watch(t, s, "/ends/", 0)
	ctx, cancel := context.WithCancel(t.Context())
	blocked := make(chan error, 1)
	go func() {
		_, err := w.Next(ctx)
		blocked <- err
	}()
	cancel()
	if err := receive(t, blocked); !errors.Is(err, context.Canceled) {
		t.Errorf("Next after its context ended: %v", err)
	}
	// By the context of Watch.
	ctx, cancel = context.WithCancel(t.Context())
	w, err := s.Watch(ctx, "/ends/", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	go func() {
		_, err := w.Next(context.WithoutCancel(ctx))
		blocked <- err
	}()
	cancel()
	if err := receive(t, blocked); err == nil {
		t.Error("Next goes on after the context of its watch ended")
	}
	// By Close.
	w = watch(t, s, "/ends/", 0)
	go func() {
		_, err := w.Next(context.Background())
		blocked <- err
	}()
	w.Close()
	if err := receive(t, blocked); err == nil {
		t.Error("Next goes on after Close")
	}
	w.Close() // again does no harm
}

func receive(t *testing.T, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		t.Fatal("Next does not return")
	}
	return nil
}
