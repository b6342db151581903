package cacher

import (
	"context"
	"sync"
	"time"
)

// confirmer asks the store for its revision, confirmed by the quorum, on behalf of
// many readers: one question is under way at a time, and whoever comes meanwhile
// shares the next one, since the answer under way may be older than their request.
type confirmer struct {
	revision func(ctx context.Context) (int64, error)
	timeout  time.Duration

	mu      sync.Mutex
	asking  bool
	next    *question
	pending sync.WaitGroup
}

type question struct {
	done chan struct{}
	rev  int64
	err  error
}

// do returns a revision that was the store's newest at some time after the call.
func (c *confirmer) do(ctx context.Context) (int64, error) {
	c.mu.Lock()
	if c.next == nil {
		c.next = &question{done: make(chan struct{})}
	}
	q := c.next
	if !c.asking {
		c.asking = true
		c.pending.Add(1)
		go c.ask()
	}
	c.mu.Unlock()
	select {
	case <-q.done:
		return q.rev, q.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (c *confirmer) ask() {
	defer c.pending.Done()
	for {
		c.mu.Lock()
		q := c.next
		c.next = nil
		if q == nil {
			c.asking = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		// Not the context of any one reader: the others share the answer.
		ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
		q.rev, q.err = c.revision(ctx)
		cancel()
		close(q.done)
	}
}

// wait returns when nothing is under way.
func (c *confirmer) wait() { c.pending.Wait() }
