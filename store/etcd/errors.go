package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/skiff-k8s/skiff/store"
)

// errNotSent: there was no connection to send a request over.
var errNotSent = errors.New("no connection to etcd")

// definite are errors that say that nothing was done. In process they come as values of
// etcd's packages, from elsewhere as gRPC statuses that rpctypes names.
var definite = []struct {
	is []error
	as error
}{
	{[]error{mvcc.ErrCompacted, rpctypes.ErrCompacted}, store.ErrCompacted},
	{[]error{mvcc.ErrFutureRev, rpctypes.ErrFutureRev}, store.ErrFutureRevision},
	{[]error{etcderrors.ErrNoSpace, rpctypes.ErrNoSpace}, store.ErrNoSpace},
	{[]error{etcderrors.ErrRequestTooLarge, rpctypes.ErrRequestTooLarge}, store.ErrTooLarge},
	{[]error{etcderrors.ErrTooManyRequests, rpctypes.ErrTooManyRequests,
		etcderrors.ErrNoLeader, rpctypes.ErrNoLeader,
		etcderrors.ErrNotLeader, rpctypes.ErrNotLeader,
		lease.ErrNotPrimary, errNotSent}, store.ErrUnavailable},
}

func known(err error) (error, bool) {
	// Statuses of gRPC become comparable errors.
	typed := rpctypes.Error(err)
	for _, d := range definite {
		for _, is := range d.is {
			if errors.Is(err, is) || errors.Is(typed, is) {
				return fmt.Errorf("%w: %w", d.as, err), true
			}
		}
	}
	return nil, false
}

// leaseGone tells that a write was not done because its lease has ended.
func leaseGone(err error) bool {
	return errors.Is(err, lease.ErrLeaseNotFound) || errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound)
}

// readError translates the error of a request that changes nothing.
func readError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := known(err); ok {
		return e
	}
	switch {
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrClosed):
		return err // there was no leader to ask
	case errors.Is(err, etcderrors.ErrStopped):
		return fmt.Errorf("%w: %w", store.ErrClosed, err)
	case errors.Is(err, etcderrors.ErrTimeout), errors.Is(err, etcderrors.ErrLeaderChanged),
		errors.Is(err, etcderrors.ErrTimeoutDueToLeaderFail), errors.Is(err, etcderrors.ErrTimeoutDueToConnectionLost),
		errors.Is(err, etcderrors.ErrTimeoutWaitAppliedIndex), unavailable(err):
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return err
}

// writeError translates the error of a request that may have changed something:
// whatever is not known to have failed is uncertain.
func writeError(ctx context.Context, err error) error {
	if e, ok := known(err); ok {
		return e
	}
	var never notDone
	if errors.As(err, &never) {
		return never.error
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", store.ErrUncertain, ctx.Err())
	}
	return fmt.Errorf("%w: %w", store.ErrUncertain, err)
}

func unavailable(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		var e rpctypes.EtcdError
		return errors.As(err, &e) && e.Code() == codes.Unavailable
	}
	return s.Code() == codes.Unavailable
}
