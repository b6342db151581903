package cacher

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/store"
)

// phase is where a resource's cache is in its life.
type phase uint8

const (
	idle    phase = iota // nobody has asked for the resource yet: events pass by
	loading              // the store is being listed: events are set aside
	serving
	shutDown
)

// resource implements Resource: the objects in key order, each once, and the changes
// that led here.
type resource struct {
	caches *Caches
	api    *api.Resource
	codec  *codec
	prefix string // of its keys, with the trailing slash
	// pinned: decoded objects are shared with in-process informers and stay.
	pinned atomic.Bool
	// extending is held while history is read back from the store.
	extending sync.Mutex

	mu       sync.Mutex
	phase    phase
	epoch    int           // counts loads, so that a stale one is dropped
	loaded   chan struct{} // closed while serving or shut down
	stop     chan struct{} // closed when the watches of this epoch must end
	aside    []store.Event
	tree     *tree
	snapshot *tree // a clone of tree, until the next change
	rev      int64 // of the newest change applied, or of the load
	history  history
	watches  watches
	// own holds entries that this server has written and the feed has not shown yet,
	// by revision: when it does, nothing has to be decoded.
	own map[int64]*entry
}

type tree = btree.BTree[*entry]

// treeDegree keeps nodes small: each change copies those on its path while a view is held.
const treeDegree = 16

func newTree() *tree {
	return btree.New(treeDegree, func(a, b *entry) bool { return a.key < b.key })
}

// view is the state at one revision; it never changes.
type view struct {
	tree *tree
	rev  int64
}

func newResource(s *Caches, r *api.Resource, c *codec) *resource {
	return &resource{
		caches: s, api: r, codec: c,
		prefix: s.cfg.Prefix + r.StoragePath + "/",
		loaded: make(chan struct{}),
		stop:   make(chan struct{}),
		tree:   newTree(),
		own:    map[int64]*entry{},
	}
}

func (r *resource) key(namespace, name string) string {
	if r.api.Namespaced {
		return namespace + "/" + name
	}
	return name
}

// Len implements Resource.
func (r *resource) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tree.Len()
}

// start loads the resource on first use.
func (r *resource) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == idle {
		r.phase = loading
		r.loadLocked()
	}
}

// resume starts the load of a resource that was asked for before Run.
func (r *resource) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == loading && r.epoch == 0 {
		r.loadLocked()
	}
}

// loadLocked lists the store in the background.
func (r *resource) loadLocked() {
	epoch := r.epoch + 1
	if r.caches.spawn(func(ctx context.Context) { r.load(ctx, epoch) }) {
		r.epoch = epoch
		r.aside = nil
	}
}

// restart drops the state and its watches, and loads again if it was in use: events
// have been lost.
func (r *resource) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.phase {
	case serving:
		close(r.stop)
		r.stop = make(chan struct{})
		r.loaded = make(chan struct{})
		r.phase = loading
		r.loadLocked()
	case loading:
		r.loadLocked()
	}
}

// shut ends every watch for good.
func (r *resource) shut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == shutDown {
		return
	}
	if r.phase != serving {
		close(r.loaded)
	}
	r.phase = shutDown
	close(r.stop)
	r.tree.Ascend(func(e *entry) bool { e.release(); return true })
	for _, c := range r.history.changes {
		if c.prev != nil {
			c.prev.release()
		}
		if gone := c.gone.Load(); gone != nil {
			gone.release()
		}
	}
	r.history.first = r.history.end() // watches that are about to end may still ask
	r.tree, r.snapshot, r.history.changes, r.own = newTree(), nil, nil, nil
}

const (
	loadPage     = 1000
	loadRetryMin = 50 * time.Millisecond
	loadRetryMax = 2 * time.Second
)

// load fills the cache from the store, trying until it succeeds.
func (r *resource) load(ctx context.Context, epoch int) {
	select {
	case <-r.caches.feed.ready:
	case <-ctx.Done():
		return
	}
	for retry := loadRetryMin; ; retry = min(2*retry, loadRetryMax) {
		t, rev, err := r.list(ctx)
		if err == nil {
			r.serve(epoch, t, rev)
			return
		}
		if ctx.Err() != nil {
			return
		}
		r.caches.log.Warn("listing a resource from the store failed", "resource", r.api.GR().String(), "err", err)
		timer := r.caches.cfg.Clock.NewTimer(retry)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// list reads all objects at one revision.
func (r *resource) list(ctx context.Context) (*tree, int64, error) {
	t := newTree()
	o := store.ListOptions{Limit: loadPage}
	for {
		page, err := r.caches.cfg.Store.List(ctx, r.prefix, o)
		if err != nil {
			return nil, 0, fmt.Errorf("list %s: %w", r.prefix, err)
		}
		for _, kv := range page.KVs {
			t.ReplaceOrInsert(newEntry(r, strings.TrimPrefix(kv.Key, r.prefix), kv.ModRevision, kv.Value))
		}
		if o.Revision == 0 {
			o.Revision = page.Revision
		}
		if int64(len(page.KVs)) >= page.Count {
			return t, o.Revision, nil
		}
		o.From = page.KVs[len(page.KVs)-1].Key + "\x00"
	}
}

// serve makes the loaded state the current one and catches up with what came meanwhile.
func (r *resource) serve(epoch int, t *tree, rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != loading || r.epoch != epoch {
		return // replaced meanwhile
	}
	r.tree, r.snapshot, r.rev = t, nil, rev
	// Sequence numbers go on, so that a watch of before cannot take up a new change.
	r.history = history{limit: r.caches.cfg.History, first: r.history.end() + 1, after: rev}
	aside := r.aside
	r.aside = nil
	r.phase = serving
	r.applyLocked(aside)
	close(r.loaded)
}

// apply takes the events of one batch.
func (r *resource) apply(events []store.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.phase {
	case loading:
		r.aside = append(r.aside, events...)
	case serving:
		r.applyLocked(events)
	}
}

func (r *resource) applyLocked(events []store.Event) {
	seen := r.rev // a load, or a watch that was opened again, may repeat events
	now := r.caches.cfg.Clock.Now()
	for _, ev := range events {
		if ev.KV.ModRevision <= seen {
			continue
		}
		r.rev = ev.KV.ModRevision
		r.snapshot = nil
		c := newChange(r, r.tree, ev, r.own[r.rev], now)
		delete(r.own, r.rev)
		if c == nil {
			continue
		}
		r.watches.offer(c, r.history.end())
		r.history.add(c)
	}
	for rev := range r.own { // written before a watch that skipped them began
		if rev <= r.rev {
			delete(r.own, rev)
		}
	}
}

// published returns the entry of an object that this server has just written: the one
// that the feed has made of it meanwhile, or a new one that the feed will take up.
func (r *resource) published(key string, rev int64, raw []byte) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cur, ok := r.tree.Get(&entry{key: key}); ok && cur.rev == rev {
		return cur
	}
	e := newEntry(r, key, rev, raw)
	if r.phase == serving && rev > r.rev {
		r.own[rev] = e
	}
	return e
}

// WaitReady implements Resource.
func (r *resource) WaitReady(ctx context.Context) error {
	r.start()
	for {
		r.mu.Lock()
		loaded, phase := r.loaded, r.phase
		r.mu.Unlock()
		switch phase {
		case serving:
			return nil
		case shutDown:
			return notReady(r)
		}
		select {
		case <-loaded:
		case <-ctx.Done():
			return notReady(r)
		}
	}
}

// cached returns the entry of a key as the cache has it.
func (r *resource) cached(key string) (*entry, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != serving {
		return nil, false, notReady(r)
	}
	e, ok := r.tree.Get(&entry{key: key})
	return e, ok, nil
}

// oldest is the revision that the history in memory begins after.
func (r *resource) oldest() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history.after
}

// current returns the newest state. Its revision is what has been applied to this
// resource, or the feed's where that is ahead: no change lies in between. A reader that
// found the resource ready a moment ago may find it dropped or replaced: then what is
// here is no state at all.
func (r *resource) current() (*view, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.currentLocked()
}

func (r *resource) currentLocked() (*view, error) {
	if r.phase != serving {
		return nil, notReady(r)
	}
	rev := max(r.rev, r.caches.feed.revision())
	if r.snapshot == nil {
		r.snapshot = r.tree.Clone()
	}
	return &view{tree: r.snapshot, rev: rev}, nil
}
