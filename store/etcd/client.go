package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/store"
)

// ClientConfig configures a store in an etcd that runs elsewhere, or in what speaks its
// protocol (kine). Errors name upstream's flags, by which the fields are set.
type ClientConfig struct {
	// Endpoints are URLs, all of one scheme; requests go to those that answer.
	// --etcd-servers
	Endpoints []string
	// CAFile verifies the servers; empty: the host's trusted roots. --etcd-cafile
	CAFile string
	// CertFile and KeyFile show who we are. They are read for every connection, so that
	// they may be renewed in place. --etcd-certfile, --etcd-keyfile
	CertFile, KeyFile string
	// StartTimeout is how long Run waits for the first answer; 0: one minute.
	StartTimeout time.Duration
	Logger       *slog.Logger
	Clock        clock.WithTicker
	// CompactInterval as in Config. --etcd-compaction-interval
	CompactInterval time.Duration
}

// Client is the store in an external etcd.
type Client struct {
	kv
	cfg    ClientConfig
	remote *remote
	ready  chan struct{}
	ended  chan struct{}
	end    sync.Once
}

const (
	dialTimeout         = 20 * time.Second
	keepaliveTime       = 30 * time.Second
	keepaliveTimeout    = 10 * time.Second
	defaultStartTimeout = time.Minute
)

// NewClient prepares a client; connections are made when needed. Run ends it.
func NewClient(c ClientConfig) (*Client, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.CompactInterval == 0 {
		c.CompactInterval = defaultCompactInterval
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = defaultStartTimeout
	}
	conf, err := c.tls()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Endpoints,
		TLS:                  conf,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		MaxCallRecvMsgSize:   math.MaxInt32,
		Logger:               zapTo(c.Logger.With("component", "etcd-client"), func(error) {}),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	s := &Client{cfg: c, ready: make(chan struct{}), ended: make(chan struct{})}
	s.remote = newRemote(client, s.ended)
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

// Ready is closed once etcd has answered for the first time.
func (s *Client) Ready() <-chan struct{} { return s.ready }

// Run waits for etcd, compacts until ctx ends, and then closes all connections. It fails
// when etcd cannot be reached in time, or never will be as things are configured.
func (s *Client) Run(ctx context.Context) error {
	err := s.reach(ctx)
	if err == nil && ctx.Err() == nil {
		close(s.ready)
		c := &compactor{kv: &s.kv, interval: s.cfg.CompactInterval, clock: s.cfg.Clock, log: s.cfg.Logger}
		c.run(ctx)
		<-ctx.Done()
	}
	s.end.Do(func() { close(s.ended) })
	if closeErr := s.remote.client.Close(); closeErr != nil && !errors.Is(closeErr, context.Canceled) {
		err = errors.Join(err, fmt.Errorf("close the etcd client: %w", closeErr))
	}
	return err
}
