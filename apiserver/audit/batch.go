package audit

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
)

// BatchConfig is how events are gathered.
type BatchConfig struct {
	// BufferSize is how many events may wait; those beyond are lost.
	BufferSize int
	// MaxBatchSize is how many go at a time, MaxWait how long an incomplete batch waits.
	MaxBatchSize int
	MaxWait      time.Duration
	// ThrottleQPS and ThrottleBurst bound the batches per second.
	ThrottleEnable bool
	ThrottleQPS    float32
	ThrottleBurst  int
}

func (c BatchConfig) validate(plugin string) error {
	for _, n := range []struct {
		flag string
		ok   bool
		is   any
	}{
		{"batch-buffer-size", c.BufferSize > 0, c.BufferSize},
		{"batch-max-size", c.MaxBatchSize > 0, c.MaxBatchSize},
		{"batch-throttle-qps", !c.ThrottleEnable || c.ThrottleQPS > 0, c.ThrottleQPS},
		{"batch-throttle-burst", !c.ThrottleEnable || c.ThrottleBurst > 0, c.ThrottleBurst},
	} {
		if !n.ok {
			return fmt.Errorf("--audit-%s-%s %v: must be positive", plugin, n.flag, n.is)
		}
	}
	return nil
}

// batcher gathers encoded events and hands them on from a goroutine of its own.
type batcher struct {
	c      BatchConfig
	send   func(context.Context, [][]byte) error
	clock  clock.WithTicker
	log    *slog.Logger
	plugin string
	limit  flowcontrol.RateLimiter // nil: none

	mu      sync.Mutex
	waiting [][]byte
	lost    int
	closed  bool
	wake    chan struct{} // there is an event, or a batch is full
}

func newBatcher(c BatchConfig, plugin string, clk clock.WithTicker, send func(context.Context, [][]byte) error, log *slog.Logger) (*batcher, error) {
	if err := c.validate(plugin); err != nil {
		return nil, err
	}
	b := &batcher{c: c, send: send, clock: clk, log: log, plugin: plugin, wake: make(chan struct{}, 1)}
	if c.ThrottleEnable {
		b.limit = flowcontrol.NewTokenBucketRateLimiter(c.ThrottleQPS, c.ThrottleBurst)
	}
	return b, nil
}

// put copies the line into the buffer, or loses it.
func (b *batcher) put(line []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.waiting) >= b.c.BufferSize {
		b.lost++
		return
	}
	b.waiting = append(b.waiting, append([]byte(nil), line...))
	if n := len(b.waiting); n == 1 || n == b.c.MaxBatchSize {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// take is the next batch; more tells whether a whole one follows.
func (b *batcher) take() (batch [][]byte, lost int, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.waiting), b.c.MaxBatchSize)
	batch = b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	lost, b.lost = b.lost, 0
	return batch, lost, len(b.waiting) >= b.c.MaxBatchSize
}

func (b *batcher) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) >= b.c.MaxBatchSize
}

// run sends batches until ctx ends, then what is left.
func (b *batcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-b.wake:
			b.fill(ctx)
			for more := true; more && ctx.Err() == nil; {
				more = b.pass(ctx)
			}
		}
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSend)
	defer cancel()
	for b.pass(last) || b.left() {
	}
}

// lastSend bounds how long the end waits for what is left to be sent.
const lastSend = 10 * time.Second

func (b *batcher) left() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) > 0
}

// fill waits until a batch is full, or long enough.
func (b *batcher) fill(ctx context.Context) {
	if b.c.MaxWait <= 0 || b.full() {
		return
	}
	t := b.clock.NewTimer(b.c.MaxWait)
	defer t.Stop()
	for !b.full() {
		select {
		case <-ctx.Done():
			return
		case <-t.C():
			return
		case <-b.wake:
		}
	}
}

// pass sends one batch and tells whether another is to be sent at once.
func (b *batcher) pass(ctx context.Context) bool {
	batch, lost, more := b.take()
	if lost > 0 {
		b.log.Error("audit events lost: the buffer is full", "plugin", b.plugin, "events", lost, "buffer", b.c.BufferSize)
	}
	if len(batch) == 0 {
		return false
	}
	if b.limit != nil {
		if err := b.limit.Wait(ctx); err != nil && ctx.Err() == nil {
			b.log.Error("audit throttle", "plugin", b.plugin, "err", err)
		}
	}
	if err := b.send(ctx, batch); err != nil {
		b.log.Error("audit events lost", "plugin", b.plugin, "events", len(batch), "err", err)
	}
	return more || b.c.MaxWait <= 0 && b.left()
}
