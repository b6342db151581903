// Package store is the revisioned key-value contract that the API server keeps
// cluster state in. It knows bytes and revisions and no Kubernetes kind.
//
// Implementations: store/etcd (embedded or external etcd) and store/mem (tests,
// simulation). store/storetest is the suite that every implementation passes.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// KV is one key at one revision. Value is shared and must not be modified.
type KV struct {
	Key            string
	Value          []byte
	CreateRevision int64
	ModRevision    int64
}

// ListOptions narrows a List.
type ListOptions struct {
	// From skips keys below it (inclusive start); empty starts at the prefix.
	From string
	// Limit is the most keys to return; 0 means all.
	Limit int64
	// Revision reads the past; 0 reads the newest, confirmed by the quorum.
	Revision int64
	// KeysOnly leaves Value nil.
	KeysOnly bool
}

// Page is a consistent part of a prefix.
type Page struct {
	KVs []KV
	// Revision is the store revision that the page was read at.
	Revision int64
	// Count is the number of keys from From to the end of the prefix at
	// Revision, those beyond Limit included.
	Count int64
}

// EventType says what happened to a key.
type EventType uint8

const (
	// Put is a create (KV.CreateRevision == KV.ModRevision) or an update.
	Put EventType = iota
	// Delete carries the key and the revision of the delete in KV; KV.Value is nil.
	Delete
)

// Event is one change. Prev is the key's state before it, the zero KV for a create
// or where the implementation could not give it.
type Event struct {
	Type EventType
	KV   KV
	Prev KV
}

// Batch is what one watch delivers at a time: all events of one or more whole
// revisions, in order, never part of a revision. A batch without events is a
// progress notice: everything up to Revision has been delivered.
type Batch struct {
	Events   []Event
	Revision int64
}

// Watcher delivers batches until its context ends or it fails.
type Watcher interface {
	// Next blocks for the next batch. It fails with ErrCompacted when the start
	// revision is gone, with the context's error when that ends. After an error
	// the watcher is dead. Next must be called from one goroutine at a time.
	Next(ctx context.Context) (Batch, error)
	// RequestProgress asks that a progress notice be delivered soon.
	RequestProgress(ctx context.Context) error
	// Close frees the watcher; a blocked Next returns.
	Close()
}

// Store is safe for concurrent use. Every call honours its context. Writes return
// only once they are durable on a quorum. An error that wraps ErrUncertain leaves it open
// whether the write happened.
type Store interface {
	// Get reads the newest value, confirmed by the quorum; ErrNotFound if none.
	// The revision is the store's at the time of the read, also with ErrNotFound.
	Get(ctx context.Context, key string) (KV, int64, error)
	// List reads the keys that start with prefix, in key order.
	List(ctx context.Context, prefix string, o ListOptions) (Page, error)
	// Create writes a key that must not exist; *ExistsError otherwise. A ttl above 0
	// deletes the key about that long after its last write (rounded up to seconds).
	Create(ctx context.Context, key string, value []byte, ttl time.Duration) (revision int64, err error)
	// Update writes a key whose ModRevision must be expected; *ConflictError
	// (with the current state, or Missing) otherwise.
	Update(ctx context.Context, key string, value []byte, expected int64, ttl time.Duration) (revision int64, err error)
	// Delete removes a key whose ModRevision must be expected; *ConflictError otherwise.
	Delete(ctx context.Context, key string, expected int64) (revision int64, err error)
	// Watch delivers every event under prefix after revision from (exclusive);
	// from 0 means from now on.
	Watch(ctx context.Context, prefix string, from int64) (Watcher, error)
	// Revision is the newest revision, confirmed by the quorum.
	Revision(ctx context.Context) (int64, error)
	// Compact forgets history before revision; ErrCompacted if that was done before.
	Compact(ctx context.Context, revision int64) error
}

var (
	// ErrNotFound: no such key.
	ErrNotFound = errors.New("key not found")
	// ErrCompacted: the revision asked for has been compacted.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrFutureRevision: the revision asked for does not exist yet.
	ErrFutureRevision = errors.New("revision is in the future")
	// ErrUncertain: the outcome of a write is unknown (timeout, lost leader).
	ErrUncertain = errors.New("outcome of the write is unknown")
	// ErrUnavailable: the write or read was not done, trying again later may help
	// (no leader, overload).
	ErrUnavailable = errors.New("store is not available")
	// ErrTooLarge: the value is larger than the store takes.
	ErrTooLarge = errors.New("value is too large")
	// ErrNoSpace: the store's quota or disk is full; reads still work.
	ErrNoSpace = errors.New("store is out of space")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
)

// ExistsError says that a key to be created exists.
type ExistsError struct{ Current KV }

func (e *ExistsError) Error() string { return fmt.Sprintf("key %q exists", e.Current.Key) }

// ConflictError says that a key was not at the expected revision.
type ConflictError struct {
	Key     string
	Current KV
	// Missing is true when the key does not exist; Current is then zero.
	Missing bool
}

func (e *ConflictError) Error() string {
	if e.Missing {
		return fmt.Sprintf("key %q does not exist", e.Key)
	}
	return fmt.Sprintf("key %q is at revision %d", e.Key, e.Current.ModRevision)
}
