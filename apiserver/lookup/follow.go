package lookup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
)

// Index is told about every object of a resource, by one goroutine, in revision order.
type Index interface {
	// Replace says that these are all the objects there are.
	Replace(objs []cacher.Object)
	// Set says that an object was created or changed.
	Set(obj cacher.Object)
	// Delete says that an object is gone; obj is its last state.
	Delete(obj cacher.Object)
}

// Follower feeds an Index from a cache and starts over when its watch breaks.
type Follower struct {
	resource cacher.Resource
	index    Index
	log      *slog.Logger

	synced chan struct{}
	once   sync.Once
}

// NewFollower returns a Follower that has not started.
func NewFollower(r cacher.Resource, index Index, log *slog.Logger) *Follower {
	return &Follower{resource: r, index: index, log: log, synced: make(chan struct{})}
}

// Synced is closed once the index holds everything.
func (f *Follower) Synced() <-chan struct{} { return f.synced }

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	backoff := wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 5 * time.Second}
	delay := backoff
	for {
		started := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		f.log.Warn("watch of the cache ended, starting over", "err", err)
		if time.Since(started) > backoff.Cap {
			delay = backoff
		}
		timer := time.NewTimer(delay.Step())
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (f *Follower) follow(ctx context.Context) error {
	initial := true
	w, err := f.resource.Watch(ctx, cacher.WatchOptions{Bookmarks: true, SendInitialEvents: &initial})
	if err != nil {
		return fmt.Errorf("open watch: %w", err)
	}
	defer w.Stop()
	var all []cacher.Object
	for e := range w.Events() {
		switch {
		case e.Err != nil:
			return fmt.Errorf("watch: %w", e.Err)
		case initial && e.Type == watch.Bookmark && e.InitialEventsEnd:
			f.index.Replace(all)
			all, initial = nil, false
			f.once.Do(func() { close(f.synced) })
		case e.Type == watch.Bookmark:
		case initial && e.Type == watch.Added:
			all = append(all, e.Object)
		case initial:
			// Whatever happened meanwhile is only sent after the end of the initial events.
			return fmt.Errorf("watch: %s among the initial events", e.Type)
		case e.Type == watch.Deleted:
			f.index.Delete(e.Object)
		default:
			f.index.Set(e.Object)
		}
	}
	return errors.New("watch: closed")
}

// Await returns an object as soon as it exists, or NotFound after the time given.
func Await(ctx context.Context, r cacher.Resource, namespace, name string, atMost time.Duration) (cacher.Object, error) {
	obj, err := r.Get(ctx, namespace, name, "0")
	if !apierrors.IsNotFound(err) {
		return obj, err
	}
	if obj, err = r.Get(ctx, namespace, name, ""); atMost <= 0 || !apierrors.IsNotFound(err) {
		return obj, err
	}
	missing := err
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	w, err := r.Watch(ctx, cacher.WatchOptions{Selection: cacher.Selection{Namespace: namespace, Name: name}})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	for {
		select {
		case e, ok := <-w.Events():
			switch {
			case !ok, e.Err != nil:
				return nil, missing
			case e.Type == watch.Added, e.Type == watch.Modified:
				return e.Object, nil
			}
		case <-ctx.Done():
			return nil, missing
		}
	}
}
