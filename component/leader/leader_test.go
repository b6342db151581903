package leader

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
)

func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		led := make(chan string, 4)
		elected := func(id string, linger time.Duration) *Elected {
			e, err := New(Config{Client: client, Name: "x", Identity: id, Logger: slog.New(slog.DiscardHandler),
				Run: func(ctx context.Context) error {
					led <- "+" + id
					<-ctx.Done()
					time.Sleep(linger)
					led <- "-" + id
					return nil
				}})
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		actx, stopA := context.WithCancel(t.Context())
		bctx, stopB := context.WithCancel(t.Context())
		done := make(chan error, 2)
		a, b := elected("a", 5*time.Second), elected("b", 0)
		go func() { done <- a.Run(actx) }()
		if got := <-led; got != "+a" {
			t.Fatal(got)
		}
		go func() { done <- b.Run(bctx) }()
		time.Sleep(time.Minute)
		if b.IsLeader() || !a.IsLeader() {
			t.Fatal("b leads while a renews")
		}
		stopA()
		for _, want := range []string{"-a", "+b"} {
			if got := <-led; got != want {
				t.Fatalf("got %s, want %s: the lease must be given up only after its holder stopped", got, want)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		stopB()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var gone atomic.Bool
		client.PrependReactor("*", "leases", func(k8stesting.Action) (bool, runtime.Object, error) {
			return gone.Load(), nil, errors.New("api server is gone")
		})
		e, err := New(Config{Client: client, Name: "x", Identity: "a", Logger: slog.New(slog.DiscardHandler),
			Run: func(ctx context.Context) error { <-ctx.Done(); return nil }})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- e.Run(t.Context()) }()
		time.Sleep(time.Minute)
		gone.Store(true)
		begin := time.Now()
		if err := <-done; !errors.Is(err, ErrLost) {
			t.Fatalf("error %v, want ErrLost", err)
		}
		if took := time.Since(begin); took > LeaseDuration {
			t.Errorf("stopped leading %s after the last renewal, when others may lead already", took)
		}
	})
}
