package etcd

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"github.com/skiff-k8s/skiff/store"
)

// localWatcher reads the embedded member's own watch stream.
type localWatcher struct {
	ctx     context.Context
	prefix  string
	from    int64
	stream  mvcc.WatchStream
	id      mvcc.WatchID
	stopped <-chan struct{} // the server stops

	closeOnce sync.Once
	closed    chan struct{}
	progress  atomic.Bool // wanted and not yet delivered
	wake      chan struct{}
}

func newLocalWatcher(ctx context.Context, kv mvcc.WatchableKV, stopped <-chan struct{}, prefix string, from int64) (*localWatcher, error) {
	w := &localWatcher{
		ctx: ctx, prefix: prefix, from: from, stopped: stopped,
		stream: kv.NewWatchStream(),
		closed: make(chan struct{}),
		wake:   make(chan struct{}, 1),
	}
	start := from
	if from > 0 {
		start++
	}
	id, err := w.stream.Watch(ctx, clientv3.AutoWatchID, []byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix)), start)
	if err != nil {
		w.stream.Close()
		return nil, err
	}
	w.id = id
	return w, nil
}

// progressRetry: etcd drops a request for progress while the watch is not in sync.
const progressRetry = 10 * time.Millisecond

// Next implements store.Watcher.
func (w *localWatcher) Next(ctx context.Context) (store.Batch, error) {
	var retry <-chan time.Time
	for {
		select {
		case r, ok := <-w.stream.Chan():
			if !ok {
				return store.Batch{}, store.ErrClosed
			}
			mvcc.ReportEventReceived(len(r.Events))
			if r.CompactRevision != 0 {
				return store.Batch{}, compacted(w.prefix, w.from, r.CompactRevision)
			}
			if len(r.Events) == 0 {
				w.progress.Store(false)
				return store.Batch{Revision: r.Revision}, nil
			}
			return batch(r.Events), nil
		case <-w.wake:
		case <-retry:
		case <-w.closed:
			return store.Batch{}, store.ErrClosed
		case <-w.stopped:
			return store.Batch{}, store.ErrClosed
		case <-ctx.Done():
			return store.Batch{}, ctx.Err()
		case <-w.ctx.Done():
			return store.Batch{}, w.ctx.Err()
		}
		if w.progress.Load() {
			w.stream.RequestProgress(w.id)
			retry = time.After(progressRetry)
		}
	}
}

// batch is one response: etcd never splits a revision unless asked to. A response's own
// revision may lie beyond events that are still to come, so the last event's counts.
func batch(events []*mvccpb.Event) store.Batch {
	b := store.Batch{Events: make([]store.Event, len(events))}
	for i, e := range events {
		b.Events[i] = store.Event{KV: fromProto(e.Kv)}
		if e.Type == mvccpb.Event_DELETE {
			b.Events[i].Type = store.Delete
			b.Events[i].KV.Value = nil
		}
		if e.PrevKv != nil {
			b.Events[i].Prev = fromProto(e.PrevKv)
		}
	}
	b.Revision = b.Events[len(b.Events)-1].KV.ModRevision
	return b
}

func compacted(prefix string, from, revision int64) error {
	return fmt.Errorf("watch %q from revision %d: %w (up to %d)", prefix, from, store.ErrCompacted, revision)
}

// RequestProgress implements store.Watcher.
func (w *localWatcher) RequestProgress(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.progress.Store(true)
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return nil
}

// Close implements store.Watcher.
func (w *localWatcher) Close() {
	w.closeOnce.Do(func() {
		close(w.closed)
		w.stream.Close()
	})
}
