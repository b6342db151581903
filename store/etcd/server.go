package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/storage"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

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
	local   *local      // set before ready is closed
	turned  atomic.Bool // away by other members: this one was removed
}

// local is the running member.
type local struct {
	*etcdserver.EtcdServer
	space *spaceGuard

	mu      sync.Mutex
	quota   storage.Quota
	quotaOf backend.Backend // a member that is far behind gets a new database from the leader
}

func (l *local) room(r *pb.TxnRequest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.Backend(); now != l.quotaOf {
		l.quota, l.quotaOf = storage.NewBackendQuota(l.Logger(), l.Cfg.QuotaBackendBytes, now, "store"), now
	}
	return l.quota.Available(r)
}

func (l *local) watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	return newLocalWatcher(ctx, l.Watchable(), l.StoppingNotify(), prefix, from)
}

func (l *local) writable(r *pb.TxnRequest) error {
	// etcd's own check comes after the write has been applied.
	if r.Success[0].GetRequestPut() != nil && !l.room(r) {
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
	if err := checkRemoved(s.cfg.DataDir); err != nil {
		unlock()
		return err
	}
	front, err := listen(s.cfg)
	if err != nil {
		unlock()
		return err
	}
	etcd, err := s.start(ctx)
	if err != nil {
		front.close()
		unlock() // etcd's own locks still protect what a failed start left behind
		return err
	}
	front.servePeers(etcd)
	err = s.serve(ctx, etcd, front)
	switch {
	case errors.Is(err, errStopped):
		front.close()
		if s.turned.Load() || etcd.IsIDRemoved(uint64(etcd.MemberID())) {
			err = markRemoved(s.cfg.DataDir, s.cfg.Clock.Now())
		}
		unlock()
		return err
	case errors.As(err, new(failedError)):
		front.close()
		return s.explain(errors.Unwrap(err))
	}
	if stopErr := s.stop(etcd, front, unlock); err == nil || errors.Is(err, context.Canceled) {
		return stopErr
	}
	return err
}

// failedError says that etcd cannot go on, not even to stop.
type failedError struct{ error }

func (e failedError) Unwrap() error { return e.error }

// serve makes the member ready and returns when it is to end, or has.
func (s *Server) serve(ctx context.Context, etcd *etcdserver.EtcdServer, front *front) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() {
		cancel()
		wg.Wait()
	}()
	made := make(chan error, 1)
	wg.Go(func() { made <- s.makeReady(ctx, etcd, front) })
	for {
		select {
		case err := <-made:
			if err != nil {
				return err
			}
			made = nil
			wg.Go(func() {
				c := &compactor{
					kv: &s.kv, interval: s.cfg.CompactInterval, clock: s.cfg.Clock, log: s.cfg.Logger,
					after: s.dropMap,
				}
				c.run(ctx)
			})
		case <-ctx.Done():
			return nil
		case err := <-s.failure:
			return failedError{err}
		case <-etcd.StopNotify():
			return errStopped
		}
	}
}

// makeReady waits until the member is a voter that has a leader, and opens it to callers.
func (s *Server) makeReady(ctx context.Context, etcd *etcdserver.EtcdServer, front *front) error {
	select {
	case <-etcd.ReadyNotify():
	case <-ctx.Done():
		return nil
	case <-etcd.StopNotify():
		return errStopped
	}
	if err := s.settle(ctx, etcd); err != nil {
		return err
	}
	if err := s.promote(ctx, etcd); err != nil {
		return err
	}
	s.dropMap()
	front.serveClients(etcd)
	s.local = &local{EtcdServer: etcd, space: &s.space}
	close(s.ready)
	return nil
}

func (s *Server) dropMap() {
	if err := dropMap(s.cfg.DataDir); err != nil {
		s.cfg.Logger.Warn("giving memory back failed", "err", err)
	}
}

var setSegmentBytes = sync.OnceFunc(func() { wal.SegmentSizeBytes = walSegmentBytes })

// start brings the member up, which reads the disk and may fail in any of etcd's ways.
func (s *Server) start(ctx context.Context) (*etcdserver.EtcdServer, error) {
	if err := s.space.check(); err != nil {
		return nil, err
	}
	var joined types.URLsMap
	var err error
	if q := s.cfg.Quorum; q != nil && len(q.Join) > 0 && !wal.Exist(datadir.ToWALDir(s.cfg.DataDir)) {
		if joined, err = s.enlist(ctx); err != nil {
			return nil, err
		}
	}
	lg := s.logger()
	cfg, err := serverConfig(s.cfg, joined, lg)
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
		if err == nil {
			if err = s.alone(etcd); err != nil {
				etcd.Cleanup()
			}
		}
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

// logger is etcd's. One thing that it says cannot be learnt otherwise: that other members
// turn this one away.
func (s *Server) logger() *zap.Logger {
	return zapTo(s.cfg.Logger.With("component", "etcd"), s.fail).WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return &listeningCore{Core: c, message: turnedAway, heard: func() { s.turned.Store(true) }}
	}))
}

// turnedAway is what etcd says right before a member that was removed stops.
const turnedAway = "data-dir used by this member must be removed"

// stopTimeout is far more than etcd needs unless its disk hangs.
const stopTimeout = 10 * time.Second

func (s *Server) stop(etcd *etcdserver.EtcdServer, front *front, unlock func()) error {
	s.end.Do(func() { close(s.ended) })
	stopped := make(chan struct{})
	go func() {
		front.endClients()
		if s.cfg.Quorum == nil {
			etcd.HardStop() // Stop would try to hand leadership over, to nobody
		} else {
			etcd.Stop() // others need not wait for an election
		}
		front.close()
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
