package image

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// secured is a registry over TLS whose clients need a token, which another path gives to
// those who know the password (the distribution specification's token authentication).
type secured struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string // users that asked for tokens
}

func newSecured(t *testing.T, inner http.Handler) *secured {
	t.Helper()
	s := &secured{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			u, p, _ := r.BasicAuth()
			s.mu.Lock()
			s.asked = append(s.asked, u)
			s.mu.Unlock()
			if u != "bob" || p != "secret" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]string{"token": "good"})
			return
		}
		if r.Header.Get("Authorization") != "Bearer good" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="reg"`, s.URL))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(s.Close)
	return s
}

func (s *secured) host() string { return strings.TrimPrefix(s.URL, "https://") }

func (s *secured) caFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRegistries(t *testing.T) {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	plain := httptest.NewServer(inner)
	defer plain.Close()
	plainHost := strings.TrimPrefix(plain.URL, "http://")
	push(t, plainHost+"/team/app:x", testImage(t, layer(t, "f", "x")))
	tls := newSecured(t, inner)
	ca := tls.caFile(t)
	// A mirror that is down, one that lacks the image, one that takes connections and is silent.
	down, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	downURL := "http://" + down.Addr().String()
	down.Close()
	empty := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer empty.Close()
	release := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer silent.Close()
	defer close(release)

	bob := Auth{Username: "bob", Password: "secret"}
	ref := tls.host() + "/team/app:x"
	for name, tt := range map[string]struct {
		reg  Registries
		auth Auth
		want string // of the error
	}{
		"authority of the host":   {reg: Registries{CAFiles: map[string]string{tls.host(): ca}}, auth: bob},
		"authority of all":        {reg: Registries{CAFile: ca}, auth: bob},
		"authority of another":    {reg: Registries{CAFiles: map[string]string{"other.io": ca}}, auth: bob, want: "name the authority of " + tls.host() + " in registries.caFiles"},
		"node's credentials":      {reg: Registries{CAFile: ca, Auth: map[string]Auth{tls.host(): bob}}},
		"no credentials":          {reg: Registries{CAFile: ca}, want: "401"},
		"wrong credentials":       {reg: Registries{CAFile: ca}, auth: Auth{Username: "bob", Password: "x"}, want: "401"},
		"pull's before node's":    {reg: Registries{CAFile: ca, Auth: map[string]Auth{tls.host(): bob}}, auth: Auth{Username: "eve", Password: "x"}, want: "401"},
		"mirrors that fail":       {reg: Registries{CAFile: ca, Mirrors: map[string][]string{tls.host(): {downURL, empty.URL}}}, auth: bob},
		"a mirror that is silent": {reg: Registries{CAFile: ca, ProgressDeadline: 200 * time.Millisecond, Mirrors: map[string][]string{"*": {silent.URL}}}, auth: bob},
		"a mirror has it":         {reg: Registries{Mirrors: map[string][]string{tls.host(): {plain.URL}}}},
		"plain where TLS is":      {reg: Registries{PlainHTTP: []string{tls.host()}}, want: "400"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, t.TempDir(), tt.reg)
			got, err := s.Pull(context.Background(), ref, tt.auth)
			switch {
			case tt.want == "" && err != nil:
				t.Fatal(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Fatalf("%v, want %q", err, tt.want)
			case tt.want == "" && got.Tags[0] != ref:
				t.Errorf("got %+v", got)
			case err != nil && strings.Contains(err.Error(), "secret"):
				t.Errorf("the error holds the password: %v", err)
			}
		})
	}

	// A registry alone that is silent: the pull ends with the reason.
	s := newStore(t, t.TempDir(), Registries{PlainHTTP: []string{strings.TrimPrefix(silent.URL, "http://")}, ProgressDeadline: 100 * time.Millisecond})
	if _, err := s.Pull(context.Background(), strings.TrimPrefix(silent.URL, "http://")+"/a:x", Auth{}); err == nil || !strings.Contains(err.Error(), "has sent nothing for") {
		t.Errorf("%v", err)
	}
	for _, bad := range []Registries{{CAFile: "/none"}, {CAFiles: map[string]string{"a": "/none"}}, {CAFiles: map[string]string{"a": "/etc/passwd"}}, {Mirrors: map[string][]string{"a": {"b"}}}} {
		if _, err := newReach(bad); err == nil || !strings.HasPrefix(err.Error(), "registries.") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A pull that takes its time is told of with what has come, and is not ended as long as
// something does.
func TestPullProgress(t *testing.T) {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	fast := httptest.NewServer(inner)
	defer fast.Close()
	push(t, strings.TrimPrefix(fast.URL, "http://")+"/app:x", testImage(t, layer(t, "f", strings.Repeat("0123456789", 400))))
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		inner.ServeHTTP(rec, r)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		body := rec.Body.Bytes()
		for i := range 8 { // drop by drop
			part := body[len(body)*i/8 : len(body)*(i+1)/8]
			_, _ = w.Write(part)
			w.(http.Flusher).Flush()
			if strings.Contains(r.URL.Path, "/blobs/") {
				time.Sleep(40 * time.Millisecond)
			}
		}
	}))
	defer slow.Close()
	var logs bytes.Buffer
	var mu sync.Mutex
	s := newStore(t, t.TempDir(), Registries{PlainHTTP: []string{strings.TrimPrefix(slow.URL, "http://")}, ProgressEvery: 20 * time.Millisecond, ProgressDeadline: 30 * time.Second})
	s.cfg.Logger = slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return logs.Write(b)
	}), nil))
	if _, err := s.Pull(context.Background(), strings.TrimPrefix(slow.URL, "http://")+"/app:x", Auth{}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(logs.String(), "pulling image") || !strings.Contains(logs.String(), "bytesPerSecond=") {
		t.Errorf("log: %s", logs.String())
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// Only a registry that owes an answer can be silent: a layer may take long to unpack.
func TestUnpackingIsNoSilence(t *testing.T) {
	f := &fetcher{reg: Registries{ProgressDeadline: 40 * time.Millisecond}}
	ctx, stop := f.follow(t.Context(), "image", slog.New(slog.DiscardHandler))
	defer stop()
	select {
	case <-ctx.Done():
		t.Fatalf("nothing is asked of the registry, and yet: %v", context.Cause(ctx))
	case <-time.After(400 * time.Millisecond):
	}
	progressOf(ctx).asked.Add(1)
	select {
	case <-ctx.Done():
		if err := context.Cause(ctx); !strings.Contains(err.Error(), "sent nothing") {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a registry that owes an answer is waited for without end")
	}
}

// Each request counts until its answer has been read or has failed.
func TestRequestsThatAreOpen(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("text")) }))
	p := &progress{}
	g, err := newReach(Registries{PlainHTTP: []string{strings.TrimPrefix(srv.URL, "http://")}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(context.WithValue(t.Context(), progressKey{}, p), http.MethodGet, srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		return g.RoundTrip(req)
	}
	resp, err := ask()
	if err != nil || p.asked.Load() != 1 {
		t.Fatalf("%d open, %v", p.asked.Load(), err)
	}
	if b, err := io.ReadAll(resp.Body); string(b) != "text" || err != nil || p.bytes.Load() != 4 {
		t.Errorf("%q, %v, %d bytes", b, err, p.bytes.Load())
	}
	_ = resp.Body.Close()
	_ = resp.Body.Close()
	if n := p.asked.Load(); n != 0 {
		t.Errorf("%d open once it was closed", n)
	}
	srv.Close()
	if _, err := ask(); err == nil || p.asked.Load() != 0 {
		t.Errorf("%d open after %v", p.asked.Load(), err)
	}
}
