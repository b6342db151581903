package mem

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s := New(Config{})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return s
	})
}

// In a bubble an hour of TTL takes no time, and nothing is left running.
func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		w, err := s.Watch(ctx, "/", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"/a", "/b"} {
			if _, err := s.Create(ctx, key, nil, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		var last store.Batch
		for range 2 {
			if last, err = w.Next(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if got := time.Since(began); got != time.Hour || len(last.Events) != 2 {
			t.Errorf("after %v: %+v, want both deleted after an hour, in one revision", got, last)
		}
		if _, _, err := s.Get(ctx, "/a"); !errors.Is(err, store.ErrNotFound) {
			t.Error(err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
