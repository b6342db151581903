package etcd

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/skiff-k8s/skiff/store"
)

// leaderPatience is how long a request waits for a leader: some elections' time. Without a
// quorum there is none, and etcd itself would let each request wait for its whole timeout
// and then not know whether a write was done.
const leaderPatience = 3 * time.Second

// led waits for a leader. A request that it fails has not been made.
func (l *local) led(ctx context.Context) error {
	if l.Lead() != 0 {
		return nil
	}
	t := time.NewTimer(leaderPatience)
	defer t.Stop()
	for {
		changed := l.LeaderChangedNotify()
		if l.Lead() != 0 {
			return nil
		}
		select {
		case <-changed:
		case <-t.C:
			voters := 0
			for _, m := range l.Cluster().Members() {
				if !m.IsLearner {
					voters++
				}
			}
			return fmt.Errorf("%w: etcd has no leader: %d of its %d members must run and reach each other", store.ErrUnavailable, voters/2+1, voters)
		case <-l.StoppingNotify():
			return store.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *local) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := l.led(ctx); err != nil {
		return nil, err
	}
	return l.EtcdServer.Range(ctx, r)
}

func (l *local) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := l.led(ctx); err != nil {
		return nil, notDone{err}
	}
	return l.EtcdServer.Txn(ctx, r)
}

func (l *local) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	if err := l.led(ctx); err != nil {
		return nil, notDone{err}
	}
	return l.EtcdServer.Compact(ctx, r)
}

func (l *local) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if err := l.led(ctx); err != nil {
		return nil, err
	}
	return l.EtcdServer.LeaseGrant(ctx, r)
}

// notDone is an error of a write that never began.
type notDone struct{ error }

func (e notDone) Unwrap() error { return e.error }
