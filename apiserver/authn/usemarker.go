package authn

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// UseMarker writes on Secrets with ServiceAccount tokens when they were used last, so that
// it is known which of them nobody needs (KEP-2799). Requests do not wait for it.
type UseMarker struct {
	stores func() seams.Stores
	log    *slog.Logger
	wake   chan struct{}

	mu      sync.Mutex
	waiting map[tokenSecret]string // the day
}

type tokenSecret struct{ namespace, name string }

// maxUseMarks bounds what may wait; a use that finds no room is noted at the next.
const maxUseMarks = 1000

// NewUseMarker builds a UseMarker; stores is called while it runs.
func NewUseMarker(stores func() seams.Stores, log *slog.Logger) *UseMarker {
	return &UseMarker{stores: stores, log: log, wake: make(chan struct{}, 1), waiting: map[tokenSecret]string{}}
}

// Mark is Config.MarkUsed.
func (m *UseMarker) Mark(namespace, secret, today string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) >= maxUseMarks {
		return
	}
	m.waiting[tokenSecret{namespace, secret}] = today
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends.
func (m *UseMarker) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		}
		m.mu.Lock()
		marks := m.waiting
		m.waiting = map[tokenSecret]string{}
		m.mu.Unlock()
		for s, today := range marks {
			if err := m.write(ctx, s, today); err != nil && ctx.Err() == nil {
				m.log.Warn("note the use of a token", "namespace", s.namespace, "secret", s.name, "err", err)
			}
		}
	}
}

func (m *UseMarker) write(ctx context.Context, s tokenSecret, today string) error {
	store, ok := m.stores().Store(secrets)
	if !ok {
		return fmt.Errorf("%s are not served", secrets)
	}
	_, err := store.Update(ctx, s.namespace, s.name, "", false, func(obj runtime.Object) (runtime.Object, error) {
		secret, ok := obj.(*corev1.Secret)
		if !ok {
			return nil, fmt.Errorf("it is a %T", obj)
		}
		if secret.Labels == nil {
			secret.Labels = map[string]string{}
		}
		secret.Labels[lastUsedLabel] = today
		return secret, nil
	})
	if apierrors.IsNotFound(err) { // deleted since
		return nil
	}
	return err
}
