package etcd

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/storetest"
)

// run starts a member and returns what stops it.
func run(t testing.TB, c Config) (*Server, func() error) {
	t.Helper()
	// Directories of tests are open to all, which etcd would remark on.
	if err := os.Chmod(c.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return s, stop
}

func TestServer(t *testing.T) {
	s, _ := run(t, Config{DataDir: t.TempDir()})
	storetest.Run(t, func(t *testing.T) store.Store { return s })
}
