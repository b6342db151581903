package apiserver_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// listening is a server with a listener of its own that runs until end is called.
type listening struct {
	*servertest.Server
	t    *testing.T
	conf *rest.Config
	addr string
	end  context.CancelFunc
	done chan error
}

func listen(t *testing.T, change func(*apiserver.Config)) *listening {
	t.Helper()
	certificate, ca := pair(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listening{t: t, addr: ln.Addr().String(), done: make(chan error, 1)}
	l.Server = servertest.New(t, func(c *apiserver.Config) {
		c.Listener, c.TLS = ln, &tls.Config{Certificates: []tls.Certificate{certificate}}
		change(c)
	})
	ctx, cancel := context.WithCancel(context.Background())
	l.end = cancel
	go func() { l.done <- l.Run(ctx) }()
	l.conf = &rest.Config{Host: "https://" + l.addr, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
	if err := l.Serving(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-l.done; err != nil {
			t.Errorf("Run: %v", err)
		}
		l.done <- nil
	})
	return l
}

func (l *listening) client() *http.Client {
	l.t.Helper()
	c, err := rest.HTTPClientFor(rest.CopyConfig(l.conf))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(c.CloseIdleConnections)
	return c
}

type answer struct {
	code   int
	header http.Header
	body   string
	err    error
}

func (l *listening) get(c *http.Client, path string) answer {
	resp, err := c.Get(l.conf.Host + path)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

// slow is a path that answers when it is let go.
func slow(begun, let chan struct{}) map[string]http.Handler {
	return map[string]http.Handler{"/slow": http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		close(begun)
		select {
		case <-let:
			fmt.Fprint(w, "in time")
		case <-req.Context().Done():
		}
	})}
}

// The end of a server behind a balancer, step by step.
func TestShutdownIsNoticedByNobody(t *testing.T) {
	leaving, left, begun, let := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	l := listen(t, func(c *apiserver.Config) {
		c.Leave = func(context.Context) { close(leaving); <-left }
		c.Paths = slow(begun, let)
	})
	c := l.client()
	k, err := kubernetes.NewForConfig(l.conf)
	if err != nil {
		t.Fatal(err)
	}
	namespace(t, k, "default")
	w, err := k.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if a := l.get(c, "/readyz"); a.code != 200 {
		t.Fatalf("before: %+v", a)
	}
	l.end()
	<-leaving
	// Not ready, and for who does not know yet everything is as before: new connections, writes, watches.
	if a := l.get(l.client(), "/readyz"); a.code != 500 {
		t.Errorf("ready while it leaves: %+v", a)
	}
	if a := l.get(l.client(), "/livez"); a.code != 200 {
		t.Errorf("not alive while it leaves: %+v", a)
	}
	if _, err := k.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("late", "1"), metav1.CreateOptions{}); err != nil {
		t.Errorf("a write while it leaves: %v", err)
	}
	if e, ok := <-w.ResultChan(); !ok || e.Type != "ADDED" {
		t.Errorf("the watch while it leaves: %v %v", e, ok)
	}
	answered := make(chan answer, 1)
	go func() { answered <- l.get(c, "/slow") }()
	<-begun
	close(left)
	// Then watches end, nobody new gets in, and what is in work is finished.
	if e, ok := <-w.ResultChan(); ok {
		t.Errorf("the watch goes on: %v", e)
	}
	for {
		conn, err := net.Dial("tcp", l.addr)
		if err != nil {
			break
		}
		conn.Close()
	}
	select {
	case err := <-l.done:
		t.Fatalf("it ended with a request in work: %v", err)
	default:
	}
	close(let)
	if a := <-answered; a.code != 200 || a.body != "in time" {
		t.Errorf("the request in work: %+v", a)
	}
}

// With ShutdownRetryAfter who comes late is sent away, not left at a closed door.
func TestShutdownRetryAfter(t *testing.T) {
	begun, let := make(chan struct{}), make(chan struct{})
	l := listen(t, func(c *apiserver.Config) {
		c.ShutdownRetryAfter = true
		c.Paths = slow(begun, let)
	})
	answered := make(chan answer, 1)
	c := l.client()
	go func() { answered <- l.get(c, "/slow") }()
	<-begun
	l.end()
	for {
		a := l.get(l.client(), "/version")
		if a.code == http.StatusTooManyRequests && a.header.Get("Retry-After") == "5" {
			break
		}
		if a.code != 200 {
			t.Fatalf("before it drains: %+v", a)
		}
	}
	if a := l.get(l.client(), "/readyz"); a.code != 500 {
		t.Errorf("readiness while it drains: %+v", a)
	}
	if a := l.get(l.client(), "/livez"); a.code != 200 {
		t.Errorf("liveness while it drains: %+v", a)
	}
	close(let)
	if a := <-answered; a.code != 200 || a.body != "in time" {
		t.Errorf("the request in work: %+v", a)
	}
}

// Watches that end one after the other still deliver until they do.
func TestWatchGrace(t *testing.T) {
	l := listen(t, func(c *apiserver.Config) { c.WatchGrace = 200 * time.Millisecond })
	k, err := kubernetes.NewForConfig(l.conf)
	if err != nil {
		t.Fatal(err)
	}
	var open []<-chan struct{}
	for range 50 {
		w, err := k.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range w.ResultChan() {
			}
		}()
		open = append(open, ended)
	}
	l.end()
	for _, ended := range open {
		<-ended
	}
}

// Clients that are told to go come by another connection, and lose nothing by it.
func TestGoaway(t *testing.T) {
	for _, chance := range []float64{0, 1} {
		l := listen(t, func(c *apiserver.Config) {
			c.GoawayChance = chance
			c.Paths = map[string]http.Handler{"/me": http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { fmt.Fprint(w, req.RemoteAddr) })}
		})
		c := l.client()
		seen := map[string]bool{}
		for range 5 {
			a := l.get(c, "/me")
			if a.code != 200 {
				t.Fatalf("%+v", a)
			}
			seen[a.body] = true
		}
		if want := 1 + 4*int(chance); len(seen) != want {
			t.Errorf("with a chance of %v 5 requests came by %d connections, want %d", chance, len(seen), want)
		}
	}
}
