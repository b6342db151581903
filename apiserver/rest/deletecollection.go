package rest

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
)

// deleteWorkers is how many deletes of a collection are on their way to the store at a
// time: the store gathers concurrent writes into one commit.
const deleteWorkers = 16

// deleteCollection deletes every selected object and answers with what it found.
func (c *call) deleteCollection(v *view) error {
	if err := c.negotiate(); err != nil {
		return err
	}
	lo, err := c.listOptions()
	if err != nil {
		return err
	}
	opts, err := c.deleteOptions()
	if err != nil {
		return err
	}
	cache, err := c.r.cache()
	if err != nil {
		return err
	}
	list, err := cache.List(c.ctx, cacher.ListOptions{
		Selection:            c.selection(lo),
		ResourceVersion:      lo.ResourceVersion,
		ResourceVersionMatch: lo.ResourceVersionMatch,
		Limit:                lo.Limit,
		Continue:             lo.Continue,
	})
	if err != nil {
		return err
	}
	err = each(c.ctx, list.Items, func(ctx context.Context, o cacher.Object) error {
		w := c.newWrite(v, opts, opts.DryRun)
		w.namespace, w.name = o.Meta().GetNamespace(), o.Meta().GetName()
		_, err := w.delete(ctx, opts)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.writeList(list)
}

// each calls f for all items from several goroutines; it stops early at an error.
func each(ctx context.Context, items []cacher.Object, f func(context.Context, cacher.Object) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan cacher.Object)
	var wg sync.WaitGroup
	for range min(deleteWorkers, len(items)) {
		wg.Go(func() {
			for o := range work {
				if err := f(ctx, o); err != nil {
					cancel(err)
				}
			}
		})
	}
feed:
	for _, o := range items {
		select {
		case work <- o:
		case <-ctx.Done():
			break feed
		}
	}
	close(work)
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return ctx.Err()
}
