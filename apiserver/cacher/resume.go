package cacher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/skiff-k8s/skiff/store"
)

// errHistoryMoved: the history changed while it was being extended.
var errHistoryMoved = errors.New("history was reset or trimmed meanwhile")

// extendMargin is in revisions.
const extendMargin = 1000

// extend reads history from rev on back from the store, in front of what is in memory:
// after a restart of the server the watches of before can then go on, where otherwise
// every client would list everything again, all at the same time.
func (r *resource) extend(ctx context.Context, rev int64) error {
	r.extending.Lock()
	defer r.extending.Unlock()
	r.mu.Lock()
	after, epoch := r.history.after, r.stop
	r.mu.Unlock()
	if rev >= after {
		return nil // another watch needed it too
	}
	ctx, cancel := context.WithTimeout(ctx, r.caches.cfg.ReadTimeout)
	defer cancel()
	// A little more than asked for: after a restart all watches come back at once, each
	// from a revision of its own.
	from := max(1, rev-extendMargin)
	changes, err := r.between(ctx, from, after)
	if err != nil {
		from = rev
		changes, err = r.between(ctx, from, after)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.history.after != after || r.stop != epoch || r.phase != serving {
		return errHistoryMoved
	}
	r.history.prepend(changes, from)
	return nil
}

// between returns the changes after revision from up to revision to.
func (r *resource) between(ctx context.Context, from, to int64) ([]*change, error) {
	state := newTree()
	err := (&past{r: r, rev: from}).ascend(ctx, "", func(e *entry) bool {
		state.ReplaceOrInsert(e)
		return true
	})
	if err != nil {
		return nil, err
	}
	w, err := r.caches.cfg.Store.Watch(ctx, r.prefix, from)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", r.prefix, err)
	}
	defer w.Close()
	if err := w.RequestProgress(ctx); err != nil {
		return nil, fmt.Errorf("watch %s: %w", r.prefix, err)
	}
	now := r.caches.cfg.Clock.Now()
	var changes []*change
	var size int64
	for {
		b, err := w.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("watch %s from revision %d: %w", r.prefix, from, err)
		}
		for _, ev := range b.Events {
			if ev.KV.ModRevision > to {
				return changes, nil
			}
			c := newChange(r, state, ev, nil, now)
			if c == nil {
				continue
			}
			changes = append(changes, c)
			if size += c.cost; size > r.caches.cfg.History/2 {
				return nil, fmt.Errorf("history of %s since revision %d is too large", r.prefix, from)
			}
		}
		if b.Revision >= to {
			return changes, nil
		}
		if len(b.Events) == 0 {
			continue
		}
		if err := w.RequestProgress(ctx); err != nil {
			return nil, fmt.Errorf("watch %s: %w", r.prefix, err)
		}
	}
}

// newChange applies an event to a state; nil: it changes nothing. made is the entry of a
// put that this server has already, or nil.
func newChange(r *resource, state *tree, ev store.Event, made *entry, now time.Time) *change {
	c := &change{rev: ev.KV.ModRevision, when: now, key: strings.TrimPrefix(ev.KV.Key, r.prefix), cost: 256}
	if ev.Type == store.Delete {
		prev, ok := state.Delete(&entry{key: c.key})
		if !ok {
			return nil
		}
		c.prev = prev
	} else {
		c.cur = made
		if c.cur == nil {
			c.cur = newEntry(r, c.key, c.rev, ev.KV.Value)
		}
		if prev, ok := state.ReplaceOrInsert(c.cur); ok {
			c.prev = prev
		}
	}
	if c.prev != nil {
		c.cost += c.prev.size()
	}
	return c
}
