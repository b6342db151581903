package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
)

// Transport calls the handler chain directly as u: no TLS and no authentication, but
// everything behind it. Streamed answers (watches) stream.
func (s *Server) Transport(u user.Info) http.RoundTripper { return &transport{s.handler, u} }

type transport struct {
	handler http.Handler
	user    user.Info
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(context.WithValue(req.Context(), inProcess{}, t.user))
	in := req.WithContext(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	if in.Host == "" {
		in.Host = req.URL.Host
	}
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := &response{header: http.Header{}, ready: make(chan struct{}), cancel: cancel}
	w.more.L = &w.mu
	go func() {
		defer cancel()
		defer in.Body.Close()
		defer w.finish()
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				panic(p)
			}
		}()
		t.handler.ServeHTTP(w, in)
	}()
	select {
	case <-w.ready:
	case <-ctx.Done():
		select {
		case <-w.ready: // it was answered in time
		default:
			return nil, context.Cause(ctx)
		}
	}
	resp := &http.Response{
		Status: http.StatusText(w.code), StatusCode: w.code, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: w.sent, Body: w, ContentLength: -1, Request: req,
	}
	return resp, nil
}

// response is both ends of an answer: the handler writes, the client reads the body.
// The head is sent at the first flush or at the end, so that small answers cost one
// switch between goroutines.
type response struct {
	header http.Header // the handler's until sent
	sent   http.Header
	code   int
	ready  chan struct{}
	cancel context.CancelFunc

	mu     sync.Mutex
	more   sync.Cond
	buf    bytes.Buffer
	head   bool // the head was sent
	done   bool // the handler is through
	closed bool // the client does not want more
}

// streamBuffer bounds what a streaming handler may be ahead of its reader.
const streamBuffer = 1 << 20

var errClientGone = errors.New("the client closed the response")

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(code int) {
	if r.code == 0 && code >= 200 {
		r.code, r.sent = code, r.header.Clone()
	}
}

func (r *response) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.head && r.buf.Len() > streamBuffer && !r.closed {
		r.more.Wait()
	}
	if r.closed {
		return 0, errClientGone
	}
	r.buf.Write(p)
	r.more.Broadcast()
	return len(p), nil
}

// Flush implements http.Flusher.
func (r *response) Flush() {
	r.WriteHeader(http.StatusOK)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sendHead()
}

func (r *response) sendHead() {
	if !r.head {
		r.head = true
		close(r.ready)
	}
}

func (r *response) finish() {
	r.WriteHeader(http.StatusOK)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = true
	r.sendHead()
	r.more.Broadcast()
}

// Read implements io.Reader for the client.
func (r *response) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.buf.Len() == 0 {
		if r.closed {
			return 0, errClientGone
		}
		if r.done {
			return 0, io.EOF
		}
		r.more.Wait()
	}
	n, _ := r.buf.Read(p)
	r.more.Broadcast()
	return n, nil
}

// Close ends the request.
func (r *response) Close() error {
	r.mu.Lock()
	r.closed = true
	r.more.Broadcast()
	r.mu.Unlock()
	r.cancel()
	return nil
}
