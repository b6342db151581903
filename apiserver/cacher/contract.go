// Package cacher is the API server's watch cache: one immutable copy of each stored
// object with its encodings, shared by every get, list, watch and in-process informer.
//
// Owns: decoding from and encoding to etcd form, consistent reads, resourceVersion
// semantics, continue tokens, watch history and bookmarks. Must not: know HTTP,
// authorization, admission or validation.
package cacher

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Object is one revision of a stored object. It is immutable and shared: callers
// must DeepCopy what Runtime returns before they change it. Its object has
// TypeMeta and resourceVersion set; JSON and Proto are made at most once per
// budgeted lifetime and must not be modified.
type Object interface {
	Runtime() runtime.Object
	Meta() metav1.Object
	Revision() int64
	// JSON is the compact encoding with kind and apiVersion, without newline.
	JSON() ([]byte, error)
	// Proto is the encoding with the k8s\0 envelope; an error for custom resources.
	Proto() ([]byte, error)
	// RawProto is the message inside the envelope, as list items are.
	RawProto() ([]byte, error)
}

// Event is one watch event. Object is nil for Bookmark and Error events.
type Event struct {
	Type   watch.EventType
	Object Object
	// Revision is the event's revision (for Deleted: of the delete; the object then
	// carries that resourceVersion). For Bookmark: everything up to it was delivered.
	Revision int64
	// InitialEventsEnd marks the bookmark that ends the initial events (KEP-3157).
	InitialEventsEnd bool
	// Err ends the watch (410 Expired, 500 …).
	Err error
}

// Selection narrows a list or watch. An object that stops matching is delivered as Deleted.
type Selection struct {
	Namespace string // empty: all
	Name      string // empty: all (from a metadata.name field selector or a single-object watch)
	Labels    labels.Selector
	Fields    fields.Selector // every selectable field, metadata.* included
}

// ListOptions has the semantics of
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions .
type ListOptions struct {
	Selection
	ResourceVersion      string
	ResourceVersionMatch metav1.ResourceVersionMatch
	Limit                int64
	Continue             string
}

// List is a consistent list.
type List struct {
	Items     []Object
	Revision  int64
	Continue  string
	Remaining *int64
}

// WatchOptions has the semantics of ListOptions' page for watch.
type WatchOptions struct {
	Selection
	ResourceVersion   string
	Bookmarks         bool
	SendInitialEvents *bool
}

// Watcher delivers events in revision order until Stop, an Err event or the context's end,
// then the channel closes. A slow consumer is cut off with an error, never waited for.
type Watcher interface {
	Events() <-chan Event
	Stop()
}

// Preconditions must hold for a write, else 409 Conflict.
type Preconditions struct {
	UID             *types.UID
	ResourceVersion *string
}

// Resource is the cache and store of one resource. All errors are apimachinery
// StatusErrors (404, 409, 410, 429, 500, 503, 504). Safe for concurrent use.
type Resource interface {
	// Get: resourceVersion "" reads consistently, "0" whatever is cached, else at least that.
	Get(ctx context.Context, namespace, name, resourceVersion string) (Object, error)
	List(ctx context.Context, o ListOptions) (*List, error)
	Watch(ctx context.Context, o WatchOptions) (Watcher, error)
	// Create stores obj, which the caller gives up; 409 AlreadyExists.
	Create(ctx context.Context, obj runtime.Object, ttl time.Duration) (Object, error)
	// Update calls change with the current object (nil when it is missing and
	// createIfMissing is set, else 404) until the result is stored without a race.
	// change returns a new object (never the shared one); returning the error
	// ErrNoChange-wrapped or an object equal in encoding to the current writes nothing. The first try
	// may use the cached object; after a conflict the store's.
	Update(ctx context.Context, namespace, name string, createIfMissing bool, pre Preconditions,
		change func(current Object) (next runtime.Object, ttl time.Duration, err error)) (Object, error)
	// Delete removes the object once check (may be nil) accepts its current state; it
	// returns the deleted object carrying the delete's revision.
	Delete(ctx context.Context, namespace, name string, pre Preconditions,
		check func(current Object) error) (Object, error)
	// ListerWatcher feeds in-process informers with the shared objects themselves.
	ListerWatcher() cache.ListerWatcherWithContext
	// Len is how many objects the cache holds; 0 before it has read them.
	Len() int
	// WaitReady blocks until the cache serves.
	WaitReady(ctx context.Context) error
}

// Set is all caches over one store.
type Set interface {
	// Resource returns the cache of a resource, starting it on first use (CRDs come and go).
	// key is group/plural and names the storage, so that several served versions share it.
	Resource(key string) (Resource, bool)
	// Run blocks until ctx ends and everything it started has stopped.
	Run(ctx context.Context) error
}
