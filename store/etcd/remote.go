package etcd

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/skiff-k8s/skiff/store"
)

// remote speaks to etcd over gRPC.
type remote struct {
	client *clientv3.Client
	kv     pb.KVClient
	lease  pb.LeaseClient
	ended  <-chan struct{} // closed when the store is
}

func newRemote(client *clientv3.Client, ended <-chan struct{}) *remote {
	return &remote{
		ended:  ended,
		client: client,
		kv:     clientv3.RetryKVClient(client),
		lease:  clientv3.RetryLeaseClient(client),
	}
}

func (r *remote) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	return r.kv.Range(ctx, req)
}

// Txn is tried once, since it may have been done although no answer came. When no server
// was even asked, the error says so.
func (r *remote) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	var asked peer.Peer
	resp, err := r.kv.Txn(ctx, req, grpc.Peer(&asked))
	if err != nil && asked.Addr == nil && unavailable(err) {
		return nil, fmt.Errorf("%w: %w", errNotSent, err)
	}
	return resp, err
}

func (r *remote) Compact(ctx context.Context, req *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	return r.kv.Compact(ctx, req)
}

func (r *remote) LeaseGrant(ctx context.Context, req *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return r.lease.LeaseGrant(ctx, req)
}

func (r *remote) writable(*pb.TxnRequest) error { return nil }

// remoteWatcher reads a watch of its own stream: progress is told per stream.
type remoteWatcher struct {
	prefix string
	from   int64
	client clientv3.Watcher
	events clientv3.WatchChan
	cancel context.CancelFunc
	ctx    context.Context // of the caller of Watch
	own    context.Context // the one that etcd's client finds the stream by
	ended  <-chan struct{}
}

func (r *remote) watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	// A member that was cut off from its leader would otherwise just fall silent.
	own, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	w := &remoteWatcher{
		prefix: prefix, from: from,
		client: clientv3.NewWatcher(r.client),
		cancel: cancel, ctx: ctx, own: own, ended: r.ended,
	}
	// Progress notices from time to time are what makes kine count what is outside of the
	// prefix as delivered, without which it never answers a request for progress.
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithProgressNotify()}
	if from > 0 {
		opts = append(opts, clientv3.WithRev(from+1))
	}
	w.events = w.client.Watch(own, prefix, opts...)
	// "From now on" begins where etcd has the watch.
	select {
	case resp, ok := <-w.events:
		if err := w.failed(ctx, resp, ok); err != nil {
			w.Close()
			return nil, err
		}
	case <-ctx.Done():
		w.Close()
		return nil, ctx.Err()
	}
	return w, nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (w *remoteWatcher) failed(ctx context.Context, r clientv3.WatchResponse, ok bool) error {
	switch {
	case closed(w.ended):
		return store.ErrClosed
	case !ok && ctx.Err() != nil:
		return ctx.Err()
	case !ok && w.ctx.Err() != nil:
		return w.ctx.Err()
	case !ok:
		return fmt.Errorf("%w: etcd has ended the watch", store.ErrUnavailable)
	case r.CompactRevision != 0:
		return compacted(w.prefix, w.from, r.CompactRevision)
	case r.Err() != nil:
		return readError(ctx, r.Err())
	}
	return nil
}

// Next implements store.Watcher.
func (w *remoteWatcher) Next(ctx context.Context) (store.Batch, error) {
	for {
		select {
		case r, ok := <-w.events:
			if err := w.failed(ctx, r, ok); err != nil {
				return store.Batch{}, err
			}
			switch {
			case r.Created:
				continue // again, after the client has resumed the watch
			case len(r.Events) == 0:
				return store.Batch{Revision: r.Header.Revision}, nil
			}
			return batch(r.Events), nil
		case <-ctx.Done():
			return store.Batch{}, ctx.Err()
		}
	}
}

// RequestProgress implements store.Watcher.
func (w *remoteWatcher) RequestProgress(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return w.client.RequestProgress(w.own)
}

// Close implements store.Watcher.
func (w *remoteWatcher) Close() {
	w.cancel()
	// The stream ends with its context; Close only repeats that context's error.
	_ = w.client.Close()
}
