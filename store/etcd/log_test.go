package etcd

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/skiff-k8s/skiff/store"
)

func TestLog(t *testing.T) {
	var out bytes.Buffer
	fatal := make(chan error, 1)
	lg := zapTo(slog.New(slog.NewTextHandler(&out, nil)), func(err error) { fatal <- err })
	lg.Info("chatter")
	lg.Warn("careful", zap.Int("n", 3), zap.Duration("took", time.Second), zap.Error(errors.New("cause")))
	lg.With(zap.String("member", "a")).Error("failed to update storage version")
	got := out.String()
	if strings.Contains(got, "chatter") || strings.Contains(got, "storage version") {
		t.Errorf("etcd's chatter shows: %s", got)
	}
	if !strings.Contains(got, `level=WARN msg=careful n=3 took=1s error=cause`) {
		t.Errorf("got %s", got)
	}
	// Where etcd would exit, the owner is told why, and the goroutine stays.
	went := make(chan struct{})
	go func() {
		defer close(went)
		lg.Fatal("cannot save", zap.Error(store.ErrNoSpace))
	}()
	if err := <-fatal; !errors.Is(err, store.ErrNoSpace) || !strings.Contains(err.Error(), "cannot save") {
		t.Errorf("the owner was told %v", err)
	}
	select {
	case <-went:
		t.Error("the goroutine went on after a fatal error")
	default:
	}
}
