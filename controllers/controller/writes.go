package controller

import (
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Writes remembers what a controller wrote until its cache shows it. To decide on an
// object that is older than one's own write would only end in a conflict; the event that
// brings the new one wakes the controller anyway.
type Writes[K comparable] struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	last  map[K]write
}

type write struct {
	uid      types.UID
	revision uint64
	at       time.Time
}

// patience is how long a cache may lag before it is believed again.
const patience = 30 * time.Second

// NewWrites makes an empty memory.
func NewWrites[K comparable](c clock.PassiveClock) *Writes[K] {
	return &Writes[K]{clock: c, last: map[K]write{}}
}

// Note remembers an object as the server returned it from a write.
func (w *Writes[K]) Note(key K, o metav1.Object) {
	rev, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[key] = write{o.GetUID(), rev, w.clock.Now()}
}

// Behind reports whether a cached object is older than what was written. Revisions of one
// resource can be compared (KEP-5504).
func (w *Writes[K]) Behind(key K, cached metav1.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.last[key]
	if !ok {
		return false
	}
	rev, err := strconv.ParseUint(cached.GetResourceVersion(), 10, 64)
	if err == nil && last.uid == cached.GetUID() && rev < last.revision && w.clock.Since(last.at) < patience {
		return true
	}
	delete(w.last, key)
	return false
}

// Forget drops what is known of a deleted object.
func (w *Writes[K]) Forget(key K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, key)
}
