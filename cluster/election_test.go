package cluster

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/skiff-k8s/skiff/component/leader"
)

// An API server that does not answer for longer than a lease can wait costs the lease. The
// cluster's own components then stop, compete and start again; those that run alone end, as
// upstream's.
func TestLeaseThatIsLost(t *testing.T) {
	for _, c := range []struct {
		name     string
		election Election
		starts   int32
	}{
		{"of the cluster", (&Config{NodeName: "n", ID: "i"}).election("x"), 2},
		{"alone", Election{Name: "x", Identity: "i"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				var silent atomic.Bool
				client.PrependReactor("*", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
					if silent.Load() {
						return true, nil, errors.New("no answer")
					}
					return false, nil, nil
				})
				var starts, running atomic.Int32
				failure := errors.New("its own failure")
				fails := make(chan struct{})
				member, err := c.election.lead(client, slog.New(slog.DiscardHandler), func(ctx context.Context) error {
					starts.Add(1)
					if running.Add(1) > 1 {
						t.Error("it runs twice")
					}
					defer running.Add(-1)
					select {
					case <-fails:
						return failure
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- member.Run(t.Context()) }()
				time.Sleep(time.Minute)
				if starts.Load() != 1 || running.Load() != 1 {
					t.Fatalf("started %d times, %d run", starts.Load(), running.Load())
				}
				silent.Store(true)
				time.Sleep(leader.LeaseDuration + leader.RetryPeriod)
				if running.Load() != 0 {
					t.Error("it works on without a lease")
				}
				silent.Store(false)
				time.Sleep(time.Minute)
				if starts.Load() != c.starts {
					t.Fatalf("started %d times, want %d", starts.Load(), c.starts)
				}
				if c.starts == 1 {
					if err := <-done; !errors.Is(err, leader.ErrLost) {
						t.Errorf("ended with %v", err)
					}
					return
				}
				close(fails) // what it does by itself ends it still
				if err := <-done; !errors.Is(err, failure) {
					t.Errorf("ended with %v", err)
				}
			})
		})
	}
}
