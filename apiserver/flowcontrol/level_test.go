package flowcontrol

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

func newTestLevel(seats int, q queuing) *level {
	l := newLevel("test", clock.RealClock{})
	l.configure(false, q)
	l.setLimit(seats)
	return l
}

func TestDeal(t *testing.T) {
	hasher := newFlowHasher()
	seen := make([]int, 16)
	for i := range 4000 {
		hand := deal(nil, hasher.hash("schema", fmt.Sprint(i)), 16, 4)
		if len(hand) != 4 {
			t.Fatalf("hand %v", hand)
		}
		for n, card := range hand {
			if card < 0 || card >= 16 || slices.Contains(hand[:n], card) {
				t.Fatalf("hand %v", hand)
			}
			seen[card]++
		}
	}
	for card, n := range seen { // 1000 each, ± what chance does
		if n < 800 || n > 1200 {
			t.Errorf("card %d was dealt %d times of 16000", card, n)
		}
	}
	for _, card := range deal(nil, oneFlow, 64, 6) {
		if slices.Contains(deal(nil, otherFlow, 64, 6), card) {
			t.Errorf("the two flows of these tests share queue %d", card)
		}
	}
	if !slices.Equal(deal(nil, 12345, 128, 6), deal(nil, 12345, 128, 6)) {
		t.Error("the same flow got two hands")
	}
	if got := deal(nil, 99, 3, 8); len(got) != 3 {
		t.Errorf("a hand greater than the deck: %v", got)
	}
}

// load sends requests of one flow, each with its seats for a time, and counts those that are done.
type load struct {
	flow            uint64
	clients, seats  int
	work            time.Duration
	done, refusals  atomic.Int64
	longest, waited time.Duration
}

func (o *load) run(ctx context.Context, l *level, s *schema) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range o.clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				t, reason := l.enter(ctx, s, o.flow, o.seats, time.Minute)
				if reason != "" {
					o.refusals.Add(1)
					continue
				}
				mu.Lock()
				o.longest = max(o.longest, time.Since(began))
				mu.Unlock()
				time.Sleep(o.work)
				l.leave(t)
				o.done.Add(1)
			}
		})
	}
	wg.Wait()
}

// Two flows with hands that share no queue.
const (
	oneFlow   = 0x9e3779b97f4a7c15
	otherFlow = 0xc2b2ae3d27d4eb4f
)

// However many clients a flow has, and however wide its requests are, another flow gets its share.
func TestFairShare(t *testing.T) {
	for name, elephant := range map[string]*load{
		// A client that has just been served is not there when its seat is given on: a flow must
		// have more clients than seats to use its share, as the mouse has.
		"many clients":  {flow: oneFlow, clients: 100, seats: 1, work: 10 * time.Millisecond},
		"wide requests": {flow: oneFlow, clients: 30, seats: 5, work: 10 * time.Millisecond},
		"slow requests": {flow: oneFlow, clients: 100, seats: 1, work: 20 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newTestLevel(10, queuing{queues: 64, hand: 6, length: 200})
				mouse := &load{flow: otherFlow, clients: 30, seats: 1, work: 10 * time.Millisecond}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				s := &schema{name: "s"}
				var wg sync.WaitGroup
				for _, o := range []*load{elephant, mouse} {
					wg.Go(func() { o.run(ctx, l, s) })
				}
				wg.Wait()
				if mouse.refusals.Load() > 30 || elephant.done.Load() == 0 { // those that wait at the end are cancelled
					t.Errorf("%d refusals; the elephant did %d", mouse.refusals.Load(), elephant.done.Load())
				}
				// Half of ten seats for twenty seconds, in seat-seconds, is a hundred. The mouse's
				// clients could use more: it must get most of that.
				if got := float64(mouse.done.Load()) * mouse.work.Seconds(); got < 70 {
					t.Errorf("the mouse got %.0f seat-seconds of 100; the elephant %.0f", got, float64(elephant.done.Load())*elephant.work.Seconds()*float64(elephant.seats))
				}
				if !l.idle() || l.inUse != 0 || l.waitingSeats != 0 {
					t.Errorf("left behind: %d executing, %d waiting, %d seats, %d waited for", l.executing, l.waiting, l.inUse, l.waitingSeats)
				}
			})
		})
	}
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &schema{name: "s"}
		enter := func(l *level, limit time.Duration) (*ticket, string) { return l.enter(t.Context(), s, 1, 1, limit) }

		l := newTestLevel(1, queuing{})
		first, _ := enter(l, time.Second)
		if _, reason := enter(l, time.Second); reason != concurrencyLimit {
			t.Errorf("without queues: %q", reason)
		}
		l.leave(first)
		if first, reason := enter(l, time.Second); reason != "" {
			t.Errorf("after it was free again: %q", reason)
		} else {
			l.leave(first)
		}

		l = newTestLevel(1, queuing{queues: 1, hand: 1, length: 1})
		first, _ = enter(l, time.Second)
		var second string
		var wg sync.WaitGroup
		wg.Go(func() { _, second = enter(l, time.Second) })
		synctest.Wait()
		if _, reason := enter(l, time.Second); reason != queueFull {
			t.Errorf("a full queue: %q", reason)
		}
		wg.Wait()
		if second != timedOut {
			t.Errorf("a second later: %q", second)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var reason string
		wg.Go(func() { _, reason = l.enter(ctx, s, 1, 1, time.Minute) })
		synctest.Wait()
		cancel()
		wg.Wait()
		if reason != cancelled {
			t.Errorf("a client that went: %q", reason)
		}
		l.leave(first)
		if got := l.counts.refused; got[refusal{"s", queueFull}] != 1 || got[refusal{"s", timedOut}] != 1 || got[refusal{"s", cancelled}] != 1 {
			t.Errorf("counted %v", got)
		}
		if !l.idle() {
			t.Error("not idle")
		}
	})
}

// A request that is wider than what is free is not overtaken for ever, and one wider than all there is goes alone.
func TestWide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLevel(4, queuing{queues: 8, hand: 2, length: 50})
		s := &schema{name: "s"}
		narrow := &load{flow: oneFlow, clients: 20, seats: 1, work: 10 * time.Millisecond}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { narrow.run(ctx, l, s) })
		began := time.Now()
		wide, reason := l.enter(ctx, s, otherFlow, 9, 5*time.Second)
		if reason != "" {
			t.Fatalf("after %s: %s", time.Since(began), reason)
		}
		if l.inUse != 9 {
			t.Errorf("%d seats in use beside the wide one", l.inUse-9)
		}
		l.leave(wide)
		wg.Wait()
	})
}

// A smaller limit lets what is in work end; a greater one lets those go who wait; queues may become fewer.
func TestReconfigure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLevel(1, queuing{queues: 16, hand: 4, length: 50})
		s := &schema{name: "s"}
		var going atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				ticket, reason := l.enter(ctx, s, uint64(i)*7919, 1, time.Hour)
				if reason != "" {
					t.Error(reason)
					return
				}
				going.Add(1)
				<-ctx.Done()
				l.leave(ticket)
			})
		}
		synctest.Wait()
		for _, step := range []struct {
			do   func()
			want int64
		}{
			{func() {}, 1},
			{func() { l.setLimit(4) }, 4},
			{func() { l.setLimit(2) }, 4},
			{func() { l.configure(false, queuing{queues: 2, hand: 1, length: 50}); l.setLimit(6) }, 6},
			{func() { l.configure(true, queuing{}) }, 10},
		} {
			step.do()
			synctest.Wait()
			if got := going.Load(); got != step.want {
				t.Errorf("%d go, want %d", got, step.want)
			}
		}
		cancel()
		wg.Wait()
	})
}

func TestRetryAfterGrows(t *testing.T) {
	var r retryAfter
	now := time.Unix(1000, 0)
	for range 10 {
		for range 200 {
			r.drop(now)
		}
		now = now.Add(time.Second)
	}
	if r.seconds != maxRetryAfter {
		t.Errorf("under a storm: %d s", r.seconds)
	}
	for range 10 {
		r.drop(now)
		now = now.Add(time.Second)
	}
	if r.seconds != 1 {
		t.Errorf("after it: %d s", r.seconds)
	}
}

func BenchmarkEnterAndLeave(b *testing.B) {
	l := newTestLevel(100, queuing{queues: 128, hand: 6, length: 50})
	s := &schema{name: "s"}
	b.ReportAllocs()
	for b.Loop() {
		t, _ := l.enter(b.Context(), s, 12345, 1, time.Second)
		l.leave(t)
	}
}
