package apiserver

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// readyPoll is how often a server that starts asks itself whether it is ready.
const readyPoll = 100 * time.Millisecond

// Serving returns once Run serves and /readyz succeeds: from then on clients may be led here.
func (s *Server) Serving(ctx context.Context) error {
	select {
	case <-s.serving:
	case <-ctx.Done():
		return ctx.Err()
	}
	t := time.NewTicker(readyPoll)
	defer t.Stop()
	for !s.health.ready(ctx) {
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// shutdown ends a server behind a balancer without anybody noticing: it says that it is not
// ready and leaves the places where clients find it, goes on taking requests until they have
// heard of that, then ends watches, takes no more and lets what is in work finish.
func (s *Server) shutdown(ctx context.Context, served <-chan error) error {
	ctx = context.WithoutCancel(ctx)
	close(s.unready)
	var leaving sync.WaitGroup
	if s.c.Leave != nil {
		leaving.Go(func() { s.c.Leave(ctx) })
	}
	delay := time.NewTimer(s.c.ShutdownDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
	case err := <-served: // its listener is gone: nobody comes any more
		s.log.Warn("the listener failed while the server ended", "err", err)
		served = nil
	}
	leaving.Wait() // it may need this server
	close(s.stopping)
	grace, cancel := context.WithTimeout(ctx, s.c.ShutdownGrace+s.c.WatchGrace)
	defer cancel()
	if s.c.ShutdownRetryAfter {
		s.work.drain(grace)
	}
	err := s.http.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	if served != nil {
		<-served
	}
	return err
}

// work counts the requests that a shutdown waits for before the listener closes, and refuses
// those that come after.
type work struct {
	mu       sync.Mutex
	n        int
	draining bool
	idle     chan struct{} // closed when draining and n is 0
}

// enter is false for who comes too late; else leave must follow.
func (w *work) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draining {
		return false
	}
	w.n++
	return true
}

func (w *work) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n--
	if w.draining && w.n == 0 {
		close(w.idle)
	}
}

// drain refuses whoever comes from now on, and returns when those before are through or ctx ends.
func (w *work) drain(ctx context.Context) {
	w.mu.Lock()
	w.draining, w.idle = true, make(chan struct{})
	if w.n == 0 {
		close(w.idle)
	}
	idle := w.idle
	w.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// lateRetry is when a client that comes while the server ends should come again, in seconds:
// to another, it is hoped.
const lateRetry = "5"

// balance is for connections: now and then a client is told to make a new one, which a
// balancer may give to another server, and who comes while the server ends is sent away.
func (s *Server) balance(next http.Handler) http.Handler {
	if s.c.GoawayChance <= 0 && !s.c.ShutdownRetryAfter {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Context().Value(inProcess{}) != nil {
			next.ServeHTTP(w, req)
			return
		}
		if req.ProtoMajor == 2 && rand.Float64() < s.c.GoawayChance {
			w.Header().Set("Connection", "close") // GOAWAY; what is in work on the connection goes on
		}
		if !s.c.ShutdownRetryAfter || answersToTheEnd(req.URL.Path) {
			next.ServeHTTP(w, req)
			return
		}
		info, err := s.resolver.NewRequestInfo(req)
		waited := err == nil && !longRunning(req, info)
		if !s.work.enter() {
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", lateRetry)
			http.Error(w, "The apiserver is shutting down, please try again later.", http.StatusTooManyRequests)
			return
		}
		if waited {
			defer s.work.leave()
		} else {
			s.work.leave()
		}
		next.ServeHTTP(w, req)
	})
}

// answersToTheEnd are paths by which the server itself is looked after.
func answersToTheEnd(path string) bool {
	for _, p := range []string{"/readyz", "/livez", "/healthz", "/metrics"} {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}
