package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

func TestQueueHandsOutEachKeyOnceAtATime(t *testing.T) {
	q := NewQueue[string](clock.RealClock{})
	ctx, cancel := context.WithCancel(t.Context())
	q.Add("a")
	q.Add("a")
	q.Add("b")
	a, _ := q.Get(ctx)
	q.Add("a") // while it is processed
	b, _ := q.Get(ctx)
	if a != "a" || b != "b" || q.Len() != 0 {
		t.Fatalf("got %s, %s and %d more", a, b, q.Len())
	}
	q.Done("a")
	if q.Len() != 1 {
		t.Error("a change during processing was lost")
	}
	q.Done("b")
	if q.Len() != 1 {
		t.Error("b came back")
	}
	cancel()
	if _, ok := q.Get(ctx); ok {
		t.Error("a key after the end")
	}
}

func TestQueueDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[string](clock.RealClock{})
		begin := time.Now()
		q.AddAfter("late", 3*time.Second)
		q.AddAfter("early", time.Second)
		q.AddAfter("late", 2*time.Second) // the earliest wins
		q.AddAfter("early", time.Hour)
		for _, want := range []struct {
			key string
			at  time.Duration
		}{{"early", time.Second}, {"late", 2 * time.Second}} {
			key, _ := q.Get(t.Context())
			if key != want.key || time.Since(begin) != want.at {
				t.Errorf("%s after %s, want %s after %s", key, time.Since(begin), want.key, want.at)
			}
			q.Done(key)
		}
		q.stop()
	})
}

func TestLoopRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Duration
		begin := time.Now()
		l := NewLoop("test", 3, clock.RealClock{}, slog.New(slog.DiscardHandler), func(context.Context, string) (time.Duration, error) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(begin))
			switch n := len(at); {
			case n <= 4:
				return 0, errors.New("not yet")
			case n == 5:
				return time.Minute, nil
			}
			return 0, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		l.Add("k")
		time.Sleep(time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		want := []time.Duration{0, 5, 15, 35, 75, 75 + 60000}
		if len(at) != len(want) {
			t.Fatalf("%d calls at %v", len(at), at)
		}
		for i := range want {
			if at[i] != want[i]*time.Millisecond {
				t.Errorf("call %d at %s, want %s", i, at[i], want[i]*time.Millisecond)
			}
		}
	})
}

func TestQueueBacksOff(t *testing.T) {
	for _, tt := range []struct {
		name        string
		least, most time.Duration
		want        []time.Duration
	}{
		{"as by default", 0, 0, []time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond}},
		{"as it is told", 5 * time.Second, 12 * time.Second, []time.Duration{5 * time.Second, 10 * time.Second, 12 * time.Second, 12 * time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := NewQueue[string](clock.RealClock{})
				if tt.least > 0 {
					q.SetBackoff(tt.least, tt.most)
				}
				for i, want := range tt.want {
					begin := time.Now()
					q.AddRateLimited("a")
					if _, ok := q.Get(t.Context()); !ok || time.Since(begin) != want {
						t.Errorf("failure %d is tried again after %s, want %s", i+1, time.Since(begin), want)
					}
					q.Done("a")
				}
				q.stop()
			})
		})
	}
	// However many failures there are, the longest delay holds.
	q := NewQueue[string](clock.RealClock{})
	q.failures["a"] = 1000
	q.AddRateLimited("a")
	if wait := time.Until(q.timerAt); wait < maxBackoff-time.Minute || wait > maxBackoff {
		t.Errorf("after 1000 failures it waits %s", wait)
	}
	q.stop()
}
