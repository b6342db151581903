package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/storage"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/skiff-k8s/skiff/store"
)

// Server is an embedded etcd member, and the store in it. Calls wait until Run has
// made it ready.
type Server struct {
	kv
	cfg   Config
	space spaceGuard

	ready   chan struct{}
	ended   chan struct{} // closed when Run returns, or etcd has failed
	end     sync.Once
	failure chan error
	local   *local // set before ready is closed
}

// local is the running member.
type local struct {
	*etcdserver.EtcdServer
	quota storage.Quota
	space *spaceGuard
}

func (l *local) watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	return newLocalWatcher(ctx, l.Watchable(), l.StoppingNotify(), prefix, from)
}

func (l *local) writable(r *pb.TxnRequest) error {
	// etcd's own check comes after the write has been applied.
	if !l.quota.Available(r) && r.Success[0].GetRequestPut() != nil {
		return fmt.Errorf("%w: the database has reached its quota of %d MiB: delete objects, compact and defragment",
			store.ErrNoSpace, l.Cfg.QuotaBackendBytes>>20)
	}
	return l.space.check()
}

// New prepares a member; nothing is touched before Run.
func New(c Config) (*Server, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg:     c,
		ready:   make(chan struct{}),
		ended:   make(chan struct{}),
		failure: make(chan error, 1),
		space:   spaceGuard{dir: c.DataDir, reserve: c.ReserveBytes, now: c.Clock.Now, free: freeSpace},
	}
	s.kv.conn = s.connect
	s.kv.leases.now = c.Clock.Now
	return s, nil
}

// Ready is closed once the member serves.
func (s *Server) Ready() <-chan struct{} { return s.ready }

func (s *Server) connect(ctx context.Context) (conn, error) {
	select {
	case <-s.ended:
		return nil, store.ErrClosed
	default:
	}
	select {
	case <-s.ready:
		return s.local, nil
	case <-s.ended:
		return nil, store.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fail takes note that etcd cannot go on. Only the first reason counts.
func (s *Server) fail(err error) {
	s.end.Do(func() { close(s.ended) })
	select {
	case s.failure <- err:
	default:
	}
}

// explain says what to do about an error that ends etcd.
func (s *Server) explain(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: the disk of %s is full: free some space and start again (%v)", store.ErrNoSpace, s.cfg.DataDir, err)
	}
	return err
}

// Run serves until ctx ends and everything has stopped. When it fails because etcd
// cannot write to its disk, goroutines of etcd are left behind: the process must end.
func (s *Server) Run(ctx context.Context) error {
	defer s.end.Do(func() { close(s.ended) })
	unlock, err := lockDataDir(s.cfg.DataDir)
	if err != nil {
		return err
	}
	etcd, err := s.start()
	if err != nil {
		unlock() // etcd's own locks still protect what a failed start left behind
		return err
	}
	select {
	case <-etcd.ReadyNotify():
	case <-ctx.Done():
		return s.stop(etcd, unlock)
	case err := <-s.failure:
		return s.explain(err)
	case <-etcd.StopNotify():
		unlock()
		return errors.New("etcd stopped during its start")
	}
	s.dropMap()
	s.local = &local{
		EtcdServer: etcd,
		quota:      storage.NewBackendQuota(etcd.Logger(), s.cfg.QuotaBytes, etcd.Backend(), "store"),
		space:      &s.space,
	}
	close(s.ready)

	cctx, cancel := context.WithCancel(ctx)
	compacting := make(chan struct{})
	go func() {
		defer close(compacting)
		c := &compactor{
			kv: &s.kv, interval: s.cfg.CompactInterval, clock: s.cfg.Clock, log: s.cfg.Logger,
			after: s.dropMap,
		}
		c.run(cctx)
	}()
	defer func() {
		cancel()
		<-compacting
	}()
	select {
	case <-ctx.Done():
		cancel()
		<-compacting
		return s.stop(etcd, unlock)
	case err := <-s.failure:
		return s.explain(err)
	case <-etcd.StopNotify():
		unlock()
		return errors.New("etcd stopped by itself")
	}
}

func (s *Server) dropMap() {
	if err := dropMap(s.cfg.DataDir); err != nil {
		s.cfg.Logger.Warn("giving memory back failed", "err", err)
	}
}

var setSegmentBytes = sync.OnceFunc(func() { wal.SegmentSizeBytes = walSegmentBytes })

// start brings the member up, which reads the disk and may fail in any of etcd's ways.
func (s *Server) start() (*etcdserver.EtcdServer, error) {
	if err := s.space.check(); err != nil {
		return nil, err
	}
	lg := zapTo(s.cfg.Logger.With("component", "etcd"), s.fail)
	cfg, err := serverConfig(s.cfg, lg)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	setSegmentBytes()
	type result struct {
		etcd *etcdserver.EtcdServer
		err  error
	}
	done := make(chan result, 1)
	go func() {
		existing := wal.Exist(cfg.WALDir())
		etcd, err := etcdserver.NewServer(cfg)
		if err == nil && existing && cfg.ServerFeatureGate.Enabled(features.InitialCorruptCheck) {
			if err = etcd.CorruptionChecker().InitialCheck(); err != nil {
				etcd.Cleanup()
			}
		}
		if err == nil {
			etcd.Start()
		}
		done <- result{etcd, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, s.explain(fmt.Errorf("start etcd in %s: %w", s.cfg.DataDir, r.err))
		}
		return r.etcd, nil
	case err := <-s.failure:
		return nil, s.explain(fmt.Errorf("start etcd in %s: %w", s.cfg.DataDir, err))
	}
}

// stopTimeout is far more than etcd needs unless its disk hangs.
const stopTimeout = 10 * time.Second

func (s *Server) stop(etcd *etcdserver.EtcdServer, unlock func()) error {
	s.end.Do(func() { close(s.ended) })
	stopped := make(chan struct{})
	go func() {
		etcd.HardStop() // Stop would try to hand leadership over, to nobody
		close(stopped)
	}()
	t := time.NewTimer(stopTimeout)
	defer t.Stop()
	select {
	case <-stopped:
		unlock()
		return nil
	case err := <-s.failure:
		return s.explain(err)
	case <-t.C:
		return fmt.Errorf("etcd did not stop within %v", stopTimeout)
	}
}
