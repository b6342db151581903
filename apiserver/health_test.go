package apiserver_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/mem"
)

func TestHealth(t *testing.T) {
	s := servertest.New(t, func(c *apiserver.Config) {
		c.Checks = []apiserver.Check{
			{Name: "good", Live: true, Run: func(context.Context) error { return nil }},
			{Name: "bad", Run: func(context.Context) error { return errors.New("broken") }},
		}
	})
	for _, c := range []struct {
		path string
		code int
		want string
	}{
		{"/livez", 200, "ok"},
		{"/livez?verbose", 200, "[+]ping ok\n[+]etcd ok\n[+]good ok\nlivez check passed\n"},
		{"/readyz", 500, "[+]ping ok\n[+]etcd ok\n[+]etcd-readiness ok\n[+]good ok\n[-]bad failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n"},
		{"/readyz?exclude=bad", 200, "ok"},
		{"/readyz/etcd", 200, "ok"},
		{"/readyz/etcd-readiness", 200, "ok"},
		{"/livez/etcd", 200, "ok"},
		{"/livez/etcd-readiness", 404, "404 page not found\n"},
		{"/readyz/bad", 500, "internal server error: broken\n"},
		{"/readyz/none", 404, "404 page not found\n"},
		{"/healthz/ping", 200, "ok"},
	} {
		resp, err := http.Get(s.URL + c.path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || string(b) != c.want {
			t.Errorf("%s: %d %q %v, want %d %q", c.path, resp.StatusCode, b, err, c.code, c.want)
		}
	}
}

// deadStore is a store that does not answer any more.
type deadStore struct {
	store.Store
	dead atomic.Bool
}

func (s *deadStore) Revision(ctx context.Context) (int64, error) {
	if s.dead.Load() {
		return 0, store.ErrUnavailable
	}
	return s.Store.Revision(ctx)
}

// TestHealthWithoutStore: as upstream, a server without its store is neither ready nor alive.
func TestHealthWithoutStore(t *testing.T) {
	db := &deadStore{Store: mem.New(mem.Config{})}
	caches, err := cacher.New(cacher.Config{Store: db, Scheme: builtin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- caches.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	<-caches.Ready()
	s, err := apiserver.New(apiserver.Config{Caches: caches, Scheme: builtin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	for _, dead := range []bool{false, true} {
		db.dead.Store(dead)
		want := http.StatusOK
		if dead {
			want = http.StatusInternalServerError
		}
		for _, path := range []string{"/livez", "/readyz", "/healthz", "/livez/etcd", "/readyz/etcd-readiness"} {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if w.Code != want {
				t.Errorf("%s with the store dead (%v): %d %s", path, dead, w.Code, w.Body)
			}
		}
	}
}
