package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/store"
)

// presence is a key with a time to live by which an API server tells the others, upstream's
// among them, that it is there: an Endpoints object, key and bytes upstream's.
type presence struct {
	store store.Store
	key   string
	// fill sets what the object says, over what it said before.
	fill func(*corev1.Endpoints)
}

// presenceTime is how long an API server counts after its last heartbeat.
const presenceTime = 15 * time.Second

// beat renews the key, or makes it.
func (p *presence) beat(ctx context.Context) error {
	kv, _, err := p.store.Get(ctx, p.key)
	missing := errors.Is(err, store.ErrNotFound)
	if err != nil && !missing {
		return fmt.Errorf("read %s: %w", p.key, err)
	}
	for range 3 {
		next := &corev1.Endpoints{}
		if !missing {
			if old, err := decodePresence(kv.Value); err == nil {
				next = old
			}
		}
		p.fill(next)
		// The generation makes each heartbeat another value, without which upstream's would renew nothing.
		next.Generation++
		value, err := encodePresence(next)
		if err != nil {
			return err
		}
		if missing {
			_, err = p.store.Create(ctx, p.key, value, presenceTime)
			var exists *store.ExistsError
			if !errors.As(err, &exists) {
				return err
			}
			kv, missing = exists.Current, false
			continue
		}
		_, err = p.store.Update(ctx, p.key, value, kv.ModRevision, presenceTime)
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
		kv, missing = conflict.Current, conflict.Missing
	}
	return fmt.Errorf("%s changes too often: do two API servers advertise one address?", p.key)
}

// drop deletes the key.
func (p *presence) drop(ctx context.Context) error {
	for range 3 {
		kv, _, err := p.store.Get(ctx, p.key)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", p.key, err)
		}
		_, err = p.store.Delete(ctx, p.key, kv.ModRevision)
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
	}
	return fmt.Errorf("%s changes too often: do two API servers advertise one address?", p.key)
}

func encodePresence(e *corev1.Endpoints) ([]byte, error) {
	raw, err := e.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode an API server's lease: %w", err)
	}
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Endpoints"}, Raw: raw}
	b, err := u.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode an API server's lease: %w", err)
	}
	return append([]byte("k8s\x00"), b...), nil
}

func decodePresence(b []byte) (*corev1.Endpoints, error) {
	rest, ok := strings.CutPrefix(string(b), "k8s\x00")
	if !ok {
		return nil, errors.New("decode an API server's lease: not protobuf")
	}
	var u runtime.Unknown
	if err := u.Unmarshal([]byte(rest)); err != nil {
		return nil, fmt.Errorf("decode an API server's lease: %w", err)
	}
	e := &corev1.Endpoints{}
	if err := e.Unmarshal(u.Raw); err != nil {
		return nil, fmt.Errorf("decode an API server's lease: %w", err)
	}
	return e, nil
}
