package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/storetest"
)

// dial runs a client and waits for etcd.
func dial(t *testing.T, c ClientConfig) *Client {
	t.Helper()
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return s
}

func TestClient(t *testing.T) {
	etcd := members(t, 1, nil)
	etcd[0].start()
	s := dial(t, ClientConfig{Endpoints: urls(etcd)})
	storetest.Run(t, func(t *testing.T) store.Store { return s })
}

// TestClientSurvivesKills: whatever a killed etcd has acknowledged is there when it is
// started again, and one watch over all of that misses and repeats nothing.
func TestClientSurvivesKills(t *testing.T) {
	etcd := members(t, 1, nil)
	etcd[0].start()
	s := dial(t, ClientConfig{Endpoints: urls(etcd)})
	w, err := s.Watch(t.Context(), "/kill/", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()

	acknowledged := writeWhile(t, s, "/kill/", func(wrote *atomic.Int64) {
		for range 3 {
			waitFor(t, wrote, wrote.Load()+50)
			etcd[0].kill()
			etcd[0].start()
		}
		waitFor(t, wrote, wrote.Load()+50)
	})
	checkAll(t, s, w, acknowledged)
}

// TestClientFailover: one of three members may die, whichever it is.
func TestClientFailover(t *testing.T) {
	etcd := members(t, 3, nil)
	for _, m := range etcd {
		m.start()
	}
	s := dial(t, ClientConfig{Endpoints: urls(etcd)})
	w, err := s.Watch(t.Context(), "/failover/", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	acknowledged := writeWhile(t, s, "/failover/", func(wrote *atomic.Int64) {
		for _, m := range etcd {
			waitFor(t, wrote, wrote.Load()+20)
			m.kill()
			waitFor(t, wrote, wrote.Load()+20)
			m.start()
		}
	})
	checkAll(t, s, w, acknowledged)
}

// TestClientDeadEndpoint: servers that never answer do no harm beside one that does.
func TestClientDeadEndpoint(t *testing.T) {
	etcd := members(t, 1, nil)
	etcd[0].start()
	s := dial(t, ClientConfig{Endpoints: []string{"http://" + freePort(t), etcd[0].url, "http://" + freePort(t)}})
	for i := range 20 {
		if _, err := s.Create(t.Context(), fmt.Sprintf("/dead/%d", i), nil, 0); err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
}

// writeWhile creates keys from some callers at once while during runs; it returns the
// revisions of those acknowledged.
func writeWhile(t *testing.T, s store.Store, prefix string, during func(wrote *atomic.Int64)) map[string]int64 {
	t.Helper()
	const writers = 4
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wrote atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	acknowledged := map[string]int64{}
	for i := range writers {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprintf("%s%d-%06d", prefix, i, n)
				rev, err := s.Create(ctx, key, []byte(key), 0)
				switch {
				case err == nil:
					mu.Lock()
					acknowledged[key] = rev
					mu.Unlock()
					wrote.Add(1)
				case errors.Is(err, store.ErrUncertain), errors.Is(err, store.ErrUnavailable), ctx.Err() != nil:
					// The key may be there or not; the next one is another.
				default:
					t.Errorf("create: %v", err)
					return
				}
			}
		})
	}
	during(&wrote)
	stop()
	wg.Wait()
	return acknowledged
}

func waitFor(t *testing.T, n *atomic.Int64, wanted int64) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); n.Load() < wanted; {
		if time.Now().After(end) {
			t.Fatalf("%d writes, want %d", n.Load(), wanted)
		}
		<-tick.C
	}
}

// checkAll compares what was acknowledged with what is there and what the watch tells.
func checkAll(t *testing.T, s store.Store, w store.Watcher, acknowledged map[string]int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for key, rev := range acknowledged {
		kv, _, err := s.Get(ctx, key)
		if err != nil {
			t.Errorf("a write that was acknowledged is lost: %v", err)
		} else if kv.ModRevision != rev {
			t.Errorf("%s is at revision %d, acknowledged at %d", key, kv.ModRevision, rev)
		}
	}
	end, err := s.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for last := int64(0); last < end; {
		if err := w.RequestProgress(ctx); err != nil {
			t.Fatal(err)
		}
		b, err := w.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Events {
			if e.KV.ModRevision <= last {
				t.Errorf("the event of revision %d follows one of %d", e.KV.ModRevision, last)
			}
			if seen[e.KV.Key] {
				t.Errorf("%s is told of twice", e.KV.Key)
			}
			seen[e.KV.Key] = true
			last = e.KV.ModRevision
		}
		last = max(last, b.Revision)
	}
	for key := range acknowledged {
		if !seen[key] {
			t.Errorf("the watch did not tell of %s", key)
		}
	}
}

// TestClientUnavailable: with nobody to send a write to, its outcome is certain.
func TestClientUnavailable(t *testing.T) {
	etcd := members(t, 1, nil)
	etcd[0].start()
	s := dial(t, ClientConfig{Endpoints: urls(etcd)})
	etcd[0].kill()
	etcd[0].waitDown()
	var err error
	for range 100 { // the first may still be sent over the broken connection
		if _, err = s.Create(t.Context(), "/unavailable", nil, 0); errors.Is(err, store.ErrUnavailable) {
			break
		}
		if !errors.Is(err, store.ErrUncertain) {
			t.Fatalf("create without etcd: %v", err)
		}
	}
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("create without etcd: %v, want ErrUnavailable", err)
	}
}

// TestClientEnds: what is under way ends with the client.
func TestClientEnds(t *testing.T) {
	etcd := members(t, 1, nil)
	etcd[0].start()
	s, err := NewClient(ClientConfig{Endpoints: urls(etcd)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Ready()
	w, err := s.Watch(t.Context(), "/ends/", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("watch after the end: %v, want ErrClosed", err)
	}
}

// TestLeaseEnds: keys with a TTL can be written although the lease that they would share
// is gone.
func TestLeaseEnds(t *testing.T) {
	etcd := members(t, 1, nil)
	etcd[0].start()
	outside := dial(t, ClientConfig{Endpoints: urls(etcd)})
	inside, _ := run(t, Config{DataDir: t.TempDir()})
	for name, s := range map[string]struct {
		kv     *kv
		revoke func(id int64) error
	}{
		"external": {&outside.kv, func(id int64) error {
			_, err := pb.NewLeaseClient(outside.remote.client.ActiveConnection()).LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: id})
			return err
		}},
		"embedded": {&inside.kv, func(id int64) error {
			_, err := inside.local.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: id})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := s.kv.Create(t.Context(), "/lease/a", nil, time.Hour); err != nil {
				t.Fatal(err)
			}
			first := s.kv.leases.id
			if err := s.revoke(first); err != nil {
				t.Fatal(err)
			}
			if _, err := s.kv.Create(t.Context(), "/lease/b", nil, time.Hour); err != nil {
				t.Fatal(err)
			}
			if s.kv.leases.id == first {
				t.Error("the lease that is gone is still used")
			}
		})
	}
}
