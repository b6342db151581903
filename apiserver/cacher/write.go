package cacher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/store"
)

// Create implements Resource.
func (r *resource) Create(ctx context.Context, obj runtime.Object, ttl time.Duration) (Object, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	o, ok := obj.(api.Object)
	if !ok || o.GetName() == "" || r.api.Namespaced != (o.GetNamespace() != "") {
		return nil, internalError(fmt.Errorf("create %s: the object lacks a name or has the wrong scope", r.api.GR()))
	}
	key := r.key(o.GetNamespace(), o.GetName())
	raw, err := r.codec.encode(obj)
	if err != nil {
		return nil, internalError(err)
	}
	rev, err := r.caches.cfg.Store.Create(ctx, r.prefix+key, raw, ttl)
	var exists *store.ExistsError
	switch {
	case errors.As(err, &exists):
		return nil, apierrors.NewAlreadyExists(r.api.GR(), o.GetName())
	case err != nil:
		return nil, statusOf(err)
	}
	return r.published(key, rev, raw).checked()
}

// checked is the entry once it is known to decode.
func (e *entry) checked() (Object, error) {
	if _, err := e.decode(); err != nil {
		return nil, storeReadError(err)
	}
	return e, nil
}

// target is the object of a write while it is tried: first as the cache has it, then,
// whenever that does not lead to a write, as the store has it.
type target struct {
	r         *resource
	namespace string
	name      string
	key       string
	cur       *entry // nil: missing
	fresh     bool   // read from the store
}

func (r *resource) target(ctx context.Context, namespace, name string) (*target, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	t := &target{r: r, namespace: namespace, name: name, key: r.key(namespace, name)}
	e, ok, err := r.cached(t.key)
	if err != nil {
		return nil, err
	}
	if ok {
		t.cur = e
		return t, nil
	}
	_, err = t.refresh(ctx)
	return t, err
}

// refresh reads the store and tells whether that is a newer state.
func (t *target) refresh(ctx context.Context) (changed bool, err error) {
	if t.fresh {
		return false, nil
	}
	kv, _, err := t.r.caches.cfg.Store.Get(ctx, t.r.prefix+t.key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		changed = t.cur != nil
		t.cur, t.fresh = nil, true
		return changed, nil
	case err != nil:
		return false, statusOf(err)
	}
	return t.take(kv), nil
}

// take makes the store's state the current one.
func (t *target) take(kv store.KV) (changed bool) {
	t.fresh = true
	if t.cur != nil && t.cur.rev == kv.ModRevision {
		return false
	}
	t.cur = t.r.published(t.key, kv.ModRevision, kv.Value)
	return true
}

// conflict takes the state that a failed write has found; false if that was no conflict.
func (t *target) conflict(err error) bool {
	var conflict *store.ConflictError
	var exists *store.ExistsError
	switch {
	case errors.As(err, &conflict) && conflict.Missing:
		t.cur, t.fresh = nil, true
	case errors.As(err, &conflict):
		t.take(conflict.Current)
	case errors.As(err, &exists):
		t.take(exists.Current)
	default:
		return false
	}
	return true
}

func (t *target) missing() error { return apierrors.NewNotFound(t.r.api.GR(), t.name) }

// check tells whether the preconditions hold.
func (t *target) check(p Preconditions) error {
	if p.UID == nil && p.ResourceVersion == nil {
		return nil
	}
	f, err := t.cur.decode()
	if err != nil {
		return storeReadError(err)
	}
	if p.UID != nil && *p.UID != f.meta.GetUID() {
		return t.precondition(fmt.Sprintf("UID in precondition: %v, UID in object meta: %v", *p.UID, f.meta.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != f.meta.GetResourceVersion() {
		return t.precondition(fmt.Sprintf("ResourceVersion in precondition: %v, ResourceVersion in object meta: %v",
			*p.ResourceVersion, f.meta.GetResourceVersion()))
	}
	return nil
}

// precondition is a conflict in the words of upstream's storage, code 4 (invalid object) of it.
func (t *target) precondition(detail string) error {
	return apierrors.NewConflict(t.r.api.GR(), t.name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: %s", t.r.prefix+t.key, detail))
}

// Update implements Resource.
func (r *resource) Update(ctx context.Context, namespace, name string, createIfMissing bool, pre Preconditions,
	change func(current Object) (next runtime.Object, ttl time.Duration, err error)) (Object, error) {
	t, err := r.target(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	for {
		next, raw, ttl, err := t.next(createIfMissing, pre, change)
		if err != nil || next == nil {
			// The cached state may be to blame, or behind: the store decides.
			changed, ferr := t.refresh(ctx)
			switch {
			case ferr != nil:
				return nil, ferr
			case changed:
				continue
			case err != nil:
				return nil, err
			}
			return t.cur, nil
		}
		var rev int64
		if t.cur == nil {
			rev, err = r.caches.cfg.Store.Create(ctx, r.prefix+t.key, raw, ttl)
		} else {
			rev, err = r.caches.cfg.Store.Update(ctx, r.prefix+t.key, raw, t.cur.rev, ttl)
		}
		if err == nil {
			return r.published(t.key, rev, raw).checked()
		}
		if !t.conflict(err) {
			return nil, statusOf(err)
		}
	}
}

// next works out what to write over the current state; a nil object: nothing.
func (t *target) next(createIfMissing bool, pre Preconditions,
	change func(current Object) (runtime.Object, time.Duration, error)) (runtime.Object, []byte, time.Duration, error) {
	var current Object
	if t.cur == nil {
		switch {
		case !createIfMissing:
			return nil, nil, 0, t.missing()
		case pre.UID != nil:
			return nil, nil, 0, t.precondition(fmt.Sprintf("UID in precondition: %v, UID in object meta: ", *pre.UID))
		}
	} else {
		if err := t.check(pre); err != nil {
			return nil, nil, 0, err
		}
		if _, err := t.cur.decode(); err != nil {
			return nil, nil, 0, storeReadError(err)
		}
		current = t.cur
	}
	next, ttl, err := change(current)
	switch {
	case errors.Is(err, ErrNoChange):
		if t.cur == nil {
			return nil, nil, 0, t.missing()
		}
		return nil, nil, 0, nil
	case err != nil:
		return nil, nil, 0, err
	case t.cur != nil && next == t.cur.Runtime():
		return nil, nil, 0, nil
	}
	raw, err := t.r.codec.encode(next)
	if err != nil {
		return nil, nil, 0, internalError(err)
	}
	if t.cur != nil {
		stored, err := t.cur.etcdForm()
		if err != nil {
			return nil, nil, 0, storeReadError(err)
		}
		if bytes.Equal(raw, stored) {
			return nil, nil, 0, nil
		}
	}
	return next, raw, ttl, nil
}

// Delete implements Resource.
func (r *resource) Delete(ctx context.Context, namespace, name string, pre Preconditions,
	check func(current Object) error) (Object, error) {
	t, err := r.target(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	for {
		if err := t.deletable(pre, check); err != nil {
			changed, ferr := t.refresh(ctx)
			switch {
			case ferr != nil:
				return nil, ferr
			case changed:
				continue
			}
			return nil, err
		}
		rev, err := r.caches.cfg.Store.Delete(ctx, r.prefix+t.key, t.cur.rev)
		if err == nil {
			return t.cur.at(rev), nil
		}
		if !t.conflict(err) {
			return nil, statusOf(err)
		}
	}
}

func (t *target) deletable(pre Preconditions, check func(current Object) error) error {
	if t.cur == nil {
		return t.missing()
	}
	if err := t.check(pre); err != nil {
		return err
	}
	if check == nil {
		return nil
	}
	if _, err := t.cur.decode(); err != nil {
		return storeReadError(err)
	}
	return check(t.cur)
}
