package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// leases hands out leases for keys with a TTL. Keys written within a short while share
// one: a lease each would cost as much as the keys.
type leases struct {
	now func() time.Time

	mu      sync.Mutex
	id      int64
	ttl     time.Duration // that the lease serves
	until   time.Time     // it serves keys written before
	granted int           // keys attached
}

const (
	// A key may outlive its TTL by this share of it, at most by maxExtra.
	extraShare = 20
	maxExtra   = time.Minute
	// maxPerLease bounds the deletes of one expiry, which are one transaction.
	maxPerLease = 1000
)

// get returns a lease that ends no sooner than ttl from now; 0 for no ttl.
func (l *leases) get(ctx context.Context, c conn, ttl time.Duration) (int64, error) {
	if ttl <= 0 {
		return 0, nil
	}
	ttl = (ttl + time.Second - 1).Truncate(time.Second)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.ttl == ttl && now.Before(l.until) && l.granted < maxPerLease {
		l.granted++
		return l.id, nil
	}
	extra := min(ttl/extraShare, maxExtra).Truncate(time.Second)
	r, err := c.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: int64((ttl + extra) / time.Second)})
	if err != nil {
		// A lease without keys does no harm: whether it was granted doesn't matter.
		return 0, fmt.Errorf("grant a lease of %v: %w", ttl, readError(ctx, err))
	}
	l.id, l.ttl, l.granted = r.ID, ttl, 1
	l.until = now.Add(extra)
	return l.id, nil
}

// drop takes note that a lease has ended before its time: somebody revoked it, or this
// process was stopped for long.
func (l *leases) drop(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id == id {
		l.until = time.Time{}
	}
}
