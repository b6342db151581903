package cacher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/store"
)

func parseRevision(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	rev, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		var why *strconv.NumError
		if errors.As(err, &why) {
			why.Func = "ParseUint"
		}
		return 0, field.Invalid(field.NewPath("resourceVersion"), s, err.Error())
	}
	return int64(rev), nil
}

// badRevision makes 400 of a resource version that cannot be, as lists answer it.
func badRevision(err error) error {
	var invalid *field.Error
	if errors.As(err, &invalid) {
		return apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	return err
}

// ready waits a little for a cache that is being filled.
func (r *resource) ready(ctx context.Context) error {
	r.mu.Lock()
	serves := r.phase == serving
	r.mu.Unlock()
	if serves {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.caches.cfg.ReadTimeout)
	defer cancel()
	return r.WaitReady(ctx)
}

// confirmed asks the quorum for the newest revision and waits until the cache has come as
// far. follows is false where it did not in time: its watch is lost, or lags.
func (r *resource) confirmed(ctx context.Context) (rev int64, follows bool, err error) {
	s := r.caches
	within, cancel := context.WithTimeout(ctx, s.cfg.ReadTimeout)
	defer cancel()
	if rev, err = s.confirm.do(within); err != nil {
		return 0, false, statusOf(fmt.Errorf("confirm the newest revision: %w", err))
	}
	if err := s.feed.wait(within, rev); err != nil {
		if ctx.Err() != nil {
			return 0, false, statusOf(ctx.Err())
		}
		return rev, false, nil
	}
	return rev, true, nil
}

// consistent waits until the cache has everything that was written before the call.
func (r *resource) consistent(ctx context.Context) error {
	rev, follows, err := r.confirmed(ctx)
	if err == nil && !follows {
		return apierrors.NewTooManyRequests(tooLarge(rev, r.caches.feed.revision()).Error(), 1)
	}
	return err
}

// newest is the state that a consistent list reads: the cache's, or, where that does not
// follow, the store's own, as upstream falls back to etcd (KEP-2340).
func (r *resource) newest(ctx context.Context) (source, error) {
	rev, follows, err := r.confirmed(ctx)
	if err != nil {
		return nil, err
	}
	if !follows {
		return &past{r: r, rev: rev}, nil
	}
	return r.current()
}

// stored reads one object from the store, past a cache that does not follow.
func (r *resource) stored(ctx context.Context, namespace, name string) (Object, error) {
	key := r.key(namespace, name)
	kv, _, err := r.caches.cfg.Store.Get(ctx, r.prefix+key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, apierrors.NewNotFound(r.api.GR(), name)
	case err != nil:
		return nil, statusOf(err)
	}
	return newEntry(r, key, kv.ModRevision, kv.Value).checked()
}

// atLeast waits until the cache has reached rev.
func (r *resource) atLeast(ctx context.Context, rev int64) error {
	if v, err := r.current(); err != nil || v.rev >= rev {
		return err
	}
	s := r.caches
	within, cancel := context.WithTimeout(ctx, s.cfg.ReadTimeout)
	defer cancel()
	if err := s.feed.wait(within, rev); err != nil {
		if ctx.Err() != nil {
			return statusOf(ctx.Err())
		}
		return tooLarge(rev, s.feed.revision())
	}
	return nil
}

// fresh waits as a resourceVersion parameter demands: "" for everything written so far,
// "0" not at all, else for at least that revision.
func (r *resource) fresh(ctx context.Context, resourceVersion string) error {
	if resourceVersion == "" {
		return r.consistent(ctx)
	}
	rev, err := parseRevision(resourceVersion)
	if err != nil || rev == 0 {
		return err
	}
	return r.atLeast(ctx, rev)
}

// Get implements Resource.
func (r *resource) Get(ctx context.Context, namespace, name, resourceVersion string) (Object, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	if resourceVersion == "" {
		if _, follows, err := r.confirmed(ctx); err != nil {
			return nil, err
		} else if !follows {
			return r.stored(ctx, namespace, name)
		}
	} else if err := r.fresh(ctx, resourceVersion); err != nil {
		return nil, err
	}
	e, ok, err := r.cached(r.key(namespace, name))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, apierrors.NewNotFound(r.api.GR(), name)
	}
	if _, err := e.decode(); err != nil {
		return nil, storeReadError(err)
	}
	return e, nil
}

// source is a state to list: the objects from a key on, in order.
type source interface {
	ascend(ctx context.Context, from string, yield func(*entry) bool) error
	revision() int64
}

func (v *view) revision() int64 { return v.rev }

func (v *view) ascend(_ context.Context, from string, yield func(*entry) bool) error {
	v.tree.AscendGreaterOrEqual(&entry{key: from}, yield)
	return nil
}

// List implements Resource.
func (r *resource) List(ctx context.Context, o ListOptions) (*List, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	m := newMatcher(r, o.Selection)
	// Tokens are relative to the namespace of the request, as upstream's.
	prefix := ""
	if r.api.Namespaced && o.Namespace != "" {
		prefix = o.Namespace + "/"
	}
	limit := o.Limit
	from := max(prefix, m.prefix, m.exact)
	var src source
	var err error
	switch {
	case o.Continue != "":
		var rev int64
		var start string
		if rev, start, err = decodeContinue(o.Continue); err != nil {
			return nil, err
		}
		from = max(from, prefix+start)
		if rev < 0 {
			src, err = r.newest(ctx)
		} else if src, err = r.exactly(ctx, rev); apierrors.IsResourceExpired(err) {
			err = expiredContinue(encodeContinue(-1, start))
		}
	case o.ResourceVersionMatch == metav1.ResourceVersionMatchExact,
		// Before resourceVersionMatch existed, a limit asked for the exact revision.
		o.ResourceVersionMatch == "" && o.Limit > 0 && o.ResourceVersion != "" && o.ResourceVersion != "0":
		var rev int64
		if rev, err = parseRevision(o.ResourceVersion); err == nil {
			if rev == 0 {
				return nil, apierrors.NewBadRequest("resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"")
			}
			src, err = r.exactly(ctx, rev)
		}
	default:
		if o.ResourceVersion == "0" {
			limit = 0 // as upstream: a client that takes anything gets everything at once
		}
		if o.ResourceVersion == "" {
			src, err = r.newest(ctx)
		} else if err = r.fresh(ctx, o.ResourceVersion); err == nil {
			src, err = r.current()
		}
	}
	if err != nil {
		return nil, badRevision(err)
	}
	l, err := r.collect(ctx, src, m, prefix, from, limit)
	if errors.Is(err, store.ErrCompacted) {
		if o.Continue != "" {
			return nil, expiredContinue(encodeContinue(-1, strings.TrimPrefix(from, prefix)))
		}
		return nil, expiredList()
	}
	return l, statusOf(err)
}

// collect takes up to limit matching objects.
func (r *resource) collect(ctx context.Context, src source, m *matcher, prefix, from string, limit int64) (*List, error) {
	l := &List{Items: []Object{}, Revision: src.revision()}
	var last string
	var rest int64
	var failed error
	err := src.ascend(ctx, from, func(e *entry) bool {
		if !strings.HasPrefix(e.key, m.prefix) || m.exact != "" && e.key > m.exact {
			return false
		}
		if limit > 0 && int64(len(l.Items)) == limit {
			rest++
			return !m.selects() // without selectors, the rest is counted
		}
		ok, err := m.match(e)
		if err != nil {
			failed = err
			return false
		}
		if ok {
			l.Items = append(l.Items, e)
		}
		last = e.key
		return true
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	if rest > 0 {
		l.Continue = encodeContinue(l.Revision, strings.TrimPrefix(last, prefix)+"\x00")
		if !m.selects() {
			l.Remaining = &rest
		}
	}
	return l, nil
}

// exactly is the state at a revision: the current one with later changes undone, or,
// where history does not reach back that far, the store's own.
func (r *resource) exactly(ctx context.Context, rev int64) (source, error) {
	if err := r.atLeast(ctx, rev); err != nil {
		return nil, err
	}
	r.mu.Lock()
	v, err := r.currentLocked()
	if err != nil {
		r.mu.Unlock()
		return nil, err
	}
	if rev < r.history.after {
		r.mu.Unlock()
		return &past{r: r, rev: rev}, nil
	}
	undo := slices.Clone(r.history.changes[r.history.seek(rev)-r.history.first:])
	t := v.tree
	if len(undo) > 0 {
		t = r.tree.Clone()
	}
	r.mu.Unlock()
	for i := len(undo) - 1; i >= 0; i-- {
		if undo[i].prev != nil {
			t.ReplaceOrInsert(undo[i].prev)
		} else {
			t.Delete(undo[i].cur)
		}
	}
	return &view{tree: t, rev: rev}, nil
}

// past is a state that only the store still has.
type past struct {
	r   *resource
	rev int64
}

func (p *past) revision() int64 { return p.rev }

func (p *past) ascend(ctx context.Context, from string, yield func(*entry) bool) error {
	o := store.ListOptions{Revision: p.rev, Limit: loadPage, From: p.r.prefix + from}
	for {
		page, err := p.r.caches.cfg.Store.List(ctx, p.r.prefix, o)
		if err != nil {
			return fmt.Errorf("list %s at revision %d: %w", p.r.prefix, p.rev, err)
		}
		for _, kv := range page.KVs {
			if !yield(newEntry(p.r, strings.TrimPrefix(kv.Key, p.r.prefix), kv.ModRevision, kv.Value)) {
				return nil
			}
		}
		if int64(len(page.KVs)) >= page.Count {
			return nil
		}
		o.From = page.KVs[len(page.KVs)-1].Key + "\x00"
	}
}
