// Package servertest runs a real API server with all built-in resources over the
// in-memory store, for tests. Without further configuration everybody may do everything.
package servertest

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/store/mem"
)

// Server is a running server and how to reach it.
type Server struct {
	*apiserver.Server
	URL    string
	Caches *cacher.Caches
}

// Config is a client configuration without credentials.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: s.URL, QPS: -1, UserAgent: "servertest/1"}
}

// New starts a server that ends with the test. change may adapt its configuration.
func New(t testing.TB, change ...func(*apiserver.Config)) *Server {
	t.Helper()
	store := mem.New(mem.Config{})
	scheme := builtin.Scheme()
	caches, err := cacher.New(cacher.Config{Store: store, Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	c := apiserver.Config{Caches: caches, Scheme: scheme, Resources: builtin.Resources()}
	for _, f := range change {
		f(&c)
	}
	if err := apiserver.AddStorage(caches, c.Resources); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- caches.Run(ctx) }()
	srv, err := apiserver.New(c)
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewUnstartedServer(srv)
	h.EnableHTTP2 = false
	h.Start()
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
		cancel()
		select {
		case err := <-done:
			if err != nil && ctx.Err() == nil {
				t.Errorf("caches: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("caches did not stop")
		}
	})
	return &Server{Server: srv, URL: h.URL, Caches: caches}
}
