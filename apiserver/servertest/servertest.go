// Package servertest runs a real API server with all built-in resources over the
// in-memory store, for tests.
//
// New is the bare server, on which everybody may do everything; Full is one as clusters
// have it; several of FullWith on one store are the servers of one cluster. All check at
// their end that nobody changed a shared object.
package servertest

import (
	"bytes"
	"context"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/mem"
)

// Server is a running server and how to reach it.
type Server struct {
	*apiserver.Server
	URL    string
	Caches *cacher.Caches
	Store  store.Store
	stop   func()
}

// Stop ends the server and all of its parts before the test ends, in the order of a process
// that is told to: what it had in work is broken off.
func (s *Server) Stop() { s.stop() }

// Config is a client configuration without credentials.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: s.URL, QPS: -1, UserAgent: "servertest/1"}
}

// New starts a server that ends with the test. change may adapt its configuration.
func New(t testing.TB, change ...func(*apiserver.Config)) *Server {
	t.Helper()
	return newBase(t, nil).serve(t, change...)
}

// NewOn is New over a store that others use too.
func NewOn(t testing.TB, s store.Store, change ...func(*apiserver.Config)) *Server {
	t.Helper()
	return newBase(t, s).serve(t, change...)
}

// base is what a server is put on.
type base struct {
	store  store.Store
	scheme *runtime.Scheme
	caches *cacher.Caches

	mu   sync.Mutex
	ends []func() // in the order of the starts
}

type runner interface{ Run(context.Context) error }

// newBase makes caches over a store, or over a new one in memory.
func newBase(t testing.TB, s store.Store) *base {
	t.Helper()
	if s == nil {
		s = mem.New(mem.Config{})
	}
	b := &base{store: s, scheme: builtin.Scheme()}
	var err error
	if b.caches, err = cacher.New(cacher.Config{Store: b.store, Scheme: b.scheme}); err != nil {
		t.Fatal(err)
	}
	if err := apiserver.AddStorage(b.caches, builtin.Resources()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	b.run(t, b.caches)
	<-b.caches.Ready()
	return b
}

// stop ends what runs, the last first.
func (b *base) stop() {
	b.mu.Lock()
	ends := b.ends
	b.ends = nil
	b.mu.Unlock()
	for _, end := range slices.Backward(ends) {
		end()
	}
}

func (b *base) onStop(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ends = append(b.ends, f)
}

// run runs components until the server stops; those run last are ended first.
func (b *base) run(t testing.TB, components ...runner) {
	for _, c := range components {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		b.onStop(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("%T: %v", c, err)
				}
			case <-time.After(time.Minute):
				t.Errorf("%T did not stop", c)
			}
		})
	}
}

func (b *base) serve(t testing.TB, change ...func(*apiserver.Config)) *Server {
	t.Helper()
	c := apiserver.Config{Caches: b.caches, Scheme: b.scheme, Resources: builtin.Resources()}
	for _, f := range change {
		f(&c)
	}
	srv, err := apiserver.New(c)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(srv)
	b.onStop(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			h.Close()
		}()
		for open := true; open; { // who has just come may begin a watch
			h.CloseClientConnections()
			select {
			case <-closed:
				open = false
			case <-time.After(10 * time.Millisecond):
			}
		}
		b.unchanged(t)
	})
	return &Server{Server: srv, URL: h.URL, Caches: b.caches, Store: b.store, stop: b.stop}
}

type protoMessage interface{ Marshal() ([]byte, error) }

// unchanged encodes every cached object anew: it must be what was stored.
func (b *base) unchanged(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, r := range builtin.Resources() {
		cache, ok := b.caches.Resource(cacher.Key(r))
		if !ok {
			continue
		}
		list, err := cache.List(ctx, cacher.ListOptions{ResourceVersion: "0"})
		if err != nil {
			continue // the test's context or store is gone
		}
		for _, o := range list.Items {
			stored, err := o.RawProto()
			m, ok := o.Runtime().(protoMessage)
			if err != nil || !ok {
				continue
			}
			now, err := m.Marshal()
			if err != nil || !bytes.Equal(stored, now) {
				t.Errorf("the shared %s %s/%s was changed: %v\nstored %q\nnow    %q", r.Plural, o.Meta().GetNamespace(), o.Meta().GetName(), err, stored, now)
			}
		}
	}
}
