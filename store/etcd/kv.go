package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/skiff-k8s/skiff/store"
)

// conn is etcd as the store uses it: *etcdserver.EtcdServer itself has the first four
// methods, and a client's stubs are made to fit.
type conn interface {
	Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error)
	Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error)
	Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error)
	LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error)

	watch(ctx context.Context, prefix string, from int64) (store.Watcher, error)
	// writable tells whether there is room for a write.
	writable(r *pb.TxnRequest) error
}

// kv implements store.Store over a conn.
type kv struct {
	// conn waits until there is one.
	conn   func(ctx context.Context) (conn, error)
	leases leases
}

var _ store.Store = (*kv)(nil)

func get(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
		RequestRange: &pb.RangeRequest{Key: []byte(key)},
	}}
}

func put(key string, value []byte, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: []byte(key), Value: value, Lease: lease},
	}}
}

func modRevisionIs(key string, rev int64) *pb.Compare {
	return &pb.Compare{
		Key: []byte(key), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev},
	}
}

func fromProto(kv *mvccpb.KeyValue) store.KV {
	return store.KV{
		Key:            string(kv.Key),
		Value:          kv.Value,
		CreateRevision: kv.CreateRevision,
		ModRevision:    kv.ModRevision,
	}
}

// Get implements store.Store.
func (s *kv) Get(ctx context.Context, key string) (store.KV, int64, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return store.KV{}, 0, fmt.Errorf("get %q: %w", key, err)
	}
	r, err := c.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		return store.KV{}, 0, fmt.Errorf("get %q: %w", key, readError(ctx, err))
	}
	if len(r.Kvs) == 0 {
		return store.KV{}, r.Header.Revision, fmt.Errorf("get %q: %w", key, store.ErrNotFound)
	}
	return fromProto(r.Kvs[0]), r.Header.Revision, nil
}

// List implements store.Store.
func (s *kv) List(ctx context.Context, prefix string, o store.ListOptions) (store.Page, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return store.Page{}, fmt.Errorf("list %q: %w", prefix, err)
	}
	r, err := c.Range(ctx, &pb.RangeRequest{
		Key:      []byte(max(prefix, o.From)),
		RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix)),
		Limit:    o.Limit,
		Revision: o.Revision,
		KeysOnly: o.KeysOnly,
	})
	if err != nil {
		return store.Page{}, fmt.Errorf("list %q: %w", prefix, readError(ctx, err))
	}
	p := store.Page{Revision: o.Revision, Count: r.Count}
	if o.Revision == 0 {
		p.Revision = r.Header.Revision
	}
	if len(r.Kvs) > 0 {
		p.KVs = make([]store.KV, len(r.Kvs))
		for i, kv := range r.Kvs {
			p.KVs[i] = fromProto(kv)
		}
	}
	return p, nil
}

// Create implements store.Store.
func (s *kv) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (int64, error) {
	rev, current, err := s.write(ctx, key, 0, ttl, func(lease int64) *pb.RequestOp {
		return put(key, value, lease)
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("create %q: %w", key, err)
	case current != nil:
		return 0, &store.ExistsError{Current: *current}
	case rev == 0:
		// The key was there for the comparison and gone for the read, which one
		// transaction rules out.
		return 0, fmt.Errorf("create %q: %w", key, errors.New("etcd contradicts itself"))
	}
	return rev, nil
}

// Update implements store.Store.
func (s *kv) Update(ctx context.Context, key string, value []byte, expected int64, ttl time.Duration) (int64, error) {
	rev, current, err := s.write(ctx, key, expected, ttl, func(lease int64) *pb.RequestOp {
		return put(key, value, lease)
	})
	return conflict("update", key, rev, current, err)
}

// Delete implements store.Store.
func (s *kv) Delete(ctx context.Context, key string, expected int64) (int64, error) {
	rev, current, err := s.write(ctx, key, expected, 0, func(int64) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
			RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)},
		}}
	})
	return conflict("delete", key, rev, current, err)
}

func conflict(verb, key string, rev int64, current *store.KV, err error) (int64, error) {
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s %q: %w", verb, key, err)
	case current != nil:
		return 0, &store.ConflictError{Key: key, Current: *current}
	case rev == 0:
		return 0, &store.ConflictError{Key: key, Missing: true}
	}
	return rev, nil
}

// write runs op if key is at revision expected (0: absent), and else reads the key.
// Revision 0 and no current state: the key is missing.
func (s *kv) write(ctx context.Context, key string, expected int64, ttl time.Duration,
	op func(lease int64) *pb.RequestOp) (rev int64, current *store.KV, err error) {
	c, err := s.conn(ctx)
	if err != nil {
		return 0, nil, err
	}
	var resp *pb.TxnResponse
	for try := 0; ; try++ {
		lease, err := s.leases.get(ctx, c, ttl)
		if err != nil {
			return 0, nil, err
		}
		r := &pb.TxnRequest{
			Compare: []*pb.Compare{modRevisionIs(key, expected)},
			Success: []*pb.RequestOp{op(lease)},
			Failure: []*pb.RequestOp{get(key)},
		}
		if err := c.writable(r); err != nil {
			return 0, nil, err
		}
		if resp, err = c.Txn(ctx, r); err == nil {
			break
		}
		if lease == 0 || try > 0 || !leaseGone(err) {
			return 0, nil, writeError(ctx, err)
		}
		s.leases.drop(lease)
	}
	if resp.Succeeded {
		if len(resp.Responses) > 0 && resp.Responses[0].GetResponseDeleteRange() != nil &&
			resp.Responses[0].GetResponseDeleteRange().Deleted == 0 {
			return 0, nil, nil // kine counts a delete of what is not there as done
		}
		return resp.Header.Revision, nil, nil
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		kv := fromProto(kvs[0])
		return 0, &kv, nil
	}
	return 0, nil, nil
}

// Watch implements store.Store.
func (s *kv) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch %q: %w", prefix, err)
	}
	w, err := c.watch(ctx, prefix, from)
	if err != nil {
		return nil, fmt.Errorf("watch %q: %w", prefix, err)
	}
	return w, nil
}

// Revision implements store.Store.
func (s *kv) Revision(ctx context.Context) (int64, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the revision: %w", err)
	}
	// Any linearizable read carries the revision; this one carries nothing else.
	r, err := c.Range(ctx, &pb.RangeRequest{Key: []byte(compactKey), CountOnly: true})
	if err != nil {
		return 0, fmt.Errorf("read the revision: %w", readError(ctx, err))
	}
	return r.Header.Revision, nil
}

// Compact implements store.Store.
func (s *kv) Compact(ctx context.Context, revision int64) error {
	c, err := s.conn(ctx)
	if err != nil {
		return fmt.Errorf("compact at revision %d: %w", revision, err)
	}
	if _, err := c.Compact(ctx, &pb.CompactionRequest{Revision: revision}); err != nil {
		return fmt.Errorf("compact at revision %d: %w", revision, writeError(ctx, err))
	}
	return nil
}
