package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/store"
)

// compactKey is where the API servers of a cluster, upstream's and ours, agree on who
// compacts. Its value is the revision compacted last, its etcd version a logical clock.
const compactKey = "compact_rev_key"

// compactor forgets what is older than an interval. In each interval the first API
// server that moves the key's version on from where it saw it compacts to the
// revision of one interval ago; the others see that they lost, and only remember where
// the version and the revision are now.
type compactor struct {
	kv       *kv
	interval time.Duration
	clock    clock.WithTicker
	log      *slog.Logger
	// after is called after each round.
	after func()

	version  int64 // of the key, as last seen
	revision int64 // of the store, as last seen
}

func (c *compactor) run(ctx context.Context) {
	if c.interval < 0 {
		return
	}
	t := c.clock.NewTicker(c.interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C():
		}
		if err := c.round(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("compaction failed", "err", err)
		}
		if c.after != nil {
			c.after()
		}
	}
}

func (c *compactor) round(ctx context.Context) error {
	conn, err := c.kv.conn(ctx)
	if err != nil {
		return err
	}
	r, err := conn.Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{{
			Key: []byte(compactKey), Target: pb.Compare_VERSION, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_Version{Version: c.version},
		}},
		Success: []*pb.RequestOp{put(compactKey, strconv.AppendInt(nil, c.revision, 10), 0)},
		Failure: []*pb.RequestOp{get(compactKey)},
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", compactKey, writeError(ctx, err))
	}
	compact := c.revision
	c.revision = r.Header.Revision
	if !r.Succeeded {
		c.version = 0
		if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			c.version = kvs[0].Version
		}
		return nil
	}
	c.version++
	if compact == 0 {
		return nil // the first round only learns where the store is
	}
	err = c.kv.Compact(ctx, compact)
	if errors.Is(err, store.ErrCompacted) {
		return nil
	}
	if err == nil {
		c.log.Debug("compacted", "revision", compact)
	}
	return err
}
