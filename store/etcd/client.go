package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/store"
)

// ClientConfig configures a store in an etcd that runs elsewhere.
type ClientConfig struct {
	Endpoints []string
	// TLS is nil for plain HTTP endpoints.
	TLS    *tls.Config
	Logger *slog.Logger
	Clock  clock.WithTicker
	// CompactInterval as in Config.
	CompactInterval time.Duration
}

// Client is the store in an external etcd.
type Client struct {
	kv
	cfg    ClientConfig
	remote *remote
	ended  chan struct{}
	end    sync.Once
}

// remote speaks to etcd over gRPC.
type remote struct {
	client *clientv3.Client
	kv     pb.KVClient
	lease  pb.LeaseClient
}

func (r *remote) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	return r.kv.Range(ctx, req)
}

func (r *remote) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	return r.kv.Txn(ctx, req)
}

func (r *remote) Compact(ctx context.Context, req *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	return r.kv.Compact(ctx, req)
}

func (r *remote) LeaseGrant(ctx context.Context, req *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return r.lease.LeaseGrant(ctx, req)
}

func (r *remote) writable(*pb.TxnRequest) error { return nil }

const (
	dialTimeout      = 20 * time.Second
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// Dial prepares a client; connections are made when needed. Run ends it.
func Dial(c ClientConfig) (*Client, error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("etcd: Endpoints must be set")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.CompactInterval == 0 {
		c.CompactInterval = defaultCompactInterval
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Endpoints,
		TLS:                  c.TLS,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		MaxCallRecvMsgSize:   math.MaxInt32,
		Logger:               zapTo(c.Logger.With("component", "etcd-client"), func(error) {}),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	s := &Client{
		cfg: c,
		remote: &remote{
			client: client,
			kv:     clientv3.RetryKVClient(client),
			lease:  clientv3.RetryLeaseClient(client),
		},
		ended: make(chan struct{}),
	}
	s.kv.conn = func(ctx context.Context) (conn, error) {
		select {
		case <-s.ended:
			return nil, store.ErrClosed
		default:
			return s.remote, ctx.Err()
		}
	}
	s.kv.leases.now = c.Clock.Now
	return s, nil
}

// Run compacts until ctx ends, then closes all connections.
func (s *Client) Run(ctx context.Context) error {
	c := &compactor{kv: &s.kv, interval: s.cfg.CompactInterval, clock: s.cfg.Clock, log: s.cfg.Logger}
	c.run(ctx)
	<-ctx.Done()
	s.end.Do(func() { close(s.ended) })
	if err := s.remote.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the etcd client: %w", err)
	}
	return nil
}

// remoteWatcher reads a watch of its own stream: progress is told per stream.
type remoteWatcher struct {
	prefix string
	from   int64
	client clientv3.Watcher
	events clientv3.WatchChan
	cancel context.CancelFunc
	ctx    context.Context // of the caller of Watch
	own    context.Context // the one that etcd's client finds the stream by
}

func (r *remote) watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	own, cancel := context.WithCancel(ctx)
	w := &remoteWatcher{
		prefix: prefix, from: from,
		client: clientv3.NewWatcher(r.client),
		cancel: cancel, ctx: ctx, own: own,
	}
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithCreatedNotify()}
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

func (w *remoteWatcher) failed(ctx context.Context, r clientv3.WatchResponse, ok bool) error {
	switch {
	case !ok && ctx.Err() != nil:
		return ctx.Err()
	case !ok && w.ctx.Err() != nil:
		return w.ctx.Err()
	case !ok:
		return store.ErrClosed
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
