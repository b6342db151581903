package cacher

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/store/mem"
)

// A cache whose watch delivers nothing serves what needs the newest state from the store
// itself, tells who asks for more than it has when to come again, and is not ready.
func TestBehind(t *testing.T) {
	db := mem.New(mem.Config{})
	s := &staleStore{Store: db, free: make(chan struct{})}
	w := &world{store: db}
	w.set = runCaches(t, s, func(c *Config) { c.ReadTimeout = 300 * time.Millisecond })
	w.pods = w.cache(t, "pods")
	w.create(t, pod("ns", "a"))
	w.create(t, pod("other", "o"))
	if err := w.set.Follows(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.hold.Store(true)
	// The write of another server: this one has not made the entry itself.
	other := &world{store: db}
	other.set = runCaches(t, db)
	other.pods = other.cache(t, "pods")
	b := other.create(t, pod("ns", "b"))
	other.remove(t, "ns", "a")

	ctx := t.Context()
	if o, err := w.pods.Get(ctx, "ns", "b", ""); err != nil || o.Revision() != b.Revision() || o.Meta().GetResourceVersion() != fmt.Sprint(b.Revision()) {
		t.Errorf("the newest b: %v %v", o, err)
	}
	if _, err := w.pods.Get(ctx, "ns", "a", ""); !apierrors.IsNotFound(err) {
		t.Errorf("the newest a: %v, want 404", err)
	}
	if _, err := w.pods.Get(ctx, "ns", "a", "0"); err != nil {
		t.Errorf("whatever is cached: %v", err)
	}
	l, err := w.pods.List(ctx, ListOptions{Selection: Selection{Namespace: "ns"}})
	if err != nil || names(l) != "b " || l.Revision <= b.Revision() {
		t.Errorf("the newest of ns: %v %v", l, err)
	}
	first, err := w.pods.List(ctx, ListOptions{Limit: 1})
	if err != nil || names(first) != "b " || first.Continue == "" || *first.Remaining != 1 {
		t.Errorf("the first page: %v %v", first, err)
	}
	for name, err := range map[string]error{
		"get": func() error { _, err := w.pods.Get(ctx, "ns", "b", fmt.Sprint(b.Revision())); return err }(),
		"list": func() error {
			_, err := w.pods.List(ctx, ListOptions{ResourceVersion: fmt.Sprint(b.Revision())})
			return err
		}(),
		"exact": func() error {
			_, err := w.pods.List(ctx, ListOptions{ResourceVersion: fmt.Sprint(b.Revision()), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
			return err
		}(),
		"stream": next(t, open(t, w, WatchOptions{ResourceVersion: fmt.Sprint(b.Revision()), SendInitialEvents: new(true), Bookmarks: true})).Err,
	} {
		delay, ok := apierrors.SuggestsClientDelay(err)
		if !apierrors.IsTimeout(err) || !ok || delay != 1 || !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			t.Errorf("%s of a revision to come: %v, want 504 with the cause %s and a delay", name, err, metav1.CauseTypeResourceVersionTooLarge)
		}
	}
	if err := w.set.Follows(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it follows: %v", err)
	}
	// A streamed list may begin with nothing older than the quorum's: it is not begun.
	if e := next(t, open(t, w, WatchOptions{SendInitialEvents: new(true), Bookmarks: true})); !apierrors.IsTooManyRequests(e.Err) {
		t.Errorf("a streamed list: %v %v, want 429", e.Type, e.Err)
	}
	s.hold.Store(false)
	close(s.free)
	if err := w.set.Follows(ctx); err != nil {
		t.Errorf("after all it does not follow: %v", err)
	}
}
