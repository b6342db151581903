package containers

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/skiff-k8s/skiff/containers/container"
	"github.com/skiff-k8s/skiff/containers/monitor"
	"github.com/skiff-k8s/skiff/containers/sandbox"
)

const (
	streamIdle     = 4 * time.Hour
	streamCreation = 30 * time.Second
	tokenLife      = time.Minute
	maxTokens      = 1000
)

// streamServer serves the streams that Exec, Attach and PortForward hand out
// URLs for. Each URL has a token that is good for one request, once.
type streamServer struct {
	r      *Runtime
	server *http.Server

	mu      sync.Mutex
	base    string
	pending map[string]pendingStream
}

type pendingStream struct {
	kind    string
	req     any // *ExecRequest, *AttachRequest, *PortForwardRequest
	expires time.Time
}

func newStreamServer(r *Runtime) *streamServer {
	s := &streamServer{r: r, pending: map[string]pendingStream{}}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: streamCreation}
	return s
}

func (s *streamServer) setAddress(a net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base = "http://" + a.String()
}

func (s *streamServer) serve(l net.Listener) error {
	if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve streams: %w", err)
	}
	return nil
}

func (s *streamServer) close() error { return s.server.Close() }

// url keeps the request for the client that is about to come.
func (s *streamServer) url(kind string, req any) (string, error) {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	token := base64.RawURLEncoding.EncodeToString(raw[:])
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, p := range s.pending {
		if now.After(p.expires) {
			delete(s.pending, t)
		}
	}
	if len(s.pending) >= maxTokens {
		return "", status.Errorf(codes.ResourceExhausted, "%d streams wait for their clients already", maxTokens)
	}
	s.pending[token] = pendingStream{kind, req, now.Add(tokenLife)}
	return s.base + "/" + kind + "/" + token, nil
}

// take returns the request that waits for this client, and nil for any other.
func (s *streamServer) take(kind, token string) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pending[token]
	delete(s.pending, token)
	if !ok || p.kind != kind || time.Now().After(p.expires) {
		return nil
	}
	return p.req
}

func (s *streamServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	kind, token, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	pending := s.take(kind, token)
	if s.serveWebSocket(w, req, kind, pending) {
		return
	}
	switch x := pending.(type) {
	case *runtimeapi.ExecRequest:
		remotecommand.ServeExec(w, req, s, "", "", x.GetContainerId(), x.GetCmd(),
			&remotecommand.Options{Stdin: x.GetStdin(), Stdout: x.GetStdout(), Stderr: x.GetStderr(), TTY: x.GetTty()},
			streamIdle, streamCreation, remotecommand.SupportedStreamingProtocols)
	case *runtimeapi.AttachRequest:
		remotecommand.ServeAttach(w, req, s, "", "", x.GetContainerId(),
			&remotecommand.Options{Stdin: x.GetStdin(), Stdout: x.GetStdout(), Stderr: x.GetStderr(), TTY: x.GetTty()},
			streamIdle, streamCreation, remotecommand.SupportedStreamingProtocols)
	case *runtimeapi.PortForwardRequest:
		opts, err := portforward.BuildV4Options(x.GetPort())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, req, s, x.GetPodSandboxId(), "", opts, streamIdle, streamCreation, portforward.SupportedProtocols)
	default:
		http.NotFound(w, req)
	}
}

// ExecInContainer runs a command with its streams.
func (s *streamServer) ExecInContainer(ctx context.Context, _, _, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	sizes, stop := sizesOf(resize)
	defer stop()
	code, err := s.r.exec(ctx, id, cmd, tty, in, writer(out), writer(errOut), sizes)
	if err != nil {
		return err
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("exit code %d", code), Code: int(code)}
	}
	return nil
}

// writer keeps a nil interface nil when it changes its type.
func writer(w io.WriteCloser) io.Writer {
	if w == nil {
		return nil
	}
	return w
}

// sizesOf passes terminal sizes on until stop is called.
func sizesOf(in <-chan remotecommand.TerminalSize) (<-chan container.Size, func()) {
	if in == nil {
		return nil, func() {}
	}
	out, done := make(chan container.Size), make(chan struct{})
	go func() {
		defer close(out)
		for {
			select {
			case sz, ok := <-in:
				if !ok {
					return
				}
				select {
				case out <- container.Size{Rows: sz.Height, Cols: sz.Width}:
				case <-done:
					return
				}
			case <-done:
				return
			}
		}
	}()
	return out, sync.OnceFunc(func() { close(done) })
}

// AttachContainer joins the streams of the container's own process.
func (s *streamServer) AttachContainer(ctx context.Context, _, _, id string, in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	c, err := s.r.containerFor(id)
	if err != nil {
		return err
	}
	rec := c.record()
	if rec.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return fmt.Errorf("container %s is %s, not running", rec.ID, stateName(rec.State))
	}
	dir := s.r.containerRun(rec.ID)
	sizes, stop := sizesOf(resize)
	defer stop()
	if sizes != nil {
		go func() {
			for sz := range sizes {
				_ = monitor.Resize(dir, sz.Rows, sz.Cols) // a container that just ended needs no size
			}
		}()
	}
	if !c.cfg.GetStdin() {
		in = nil
	}
	return monitor.Attach(dir, in, writer(out), writer(errOut), ctx.Done())
}

// PortForward joins a stream with a port of the sandbox, over its loopback.
func (s *streamServer) PortForward(ctx context.Context, id, _ string, port int32, stream io.ReadWriteCloser) error {
	sb, err := s.r.sandboxFor(id)
	if err != nil {
		return err
	}
	rec := sb.record()
	if !rec.Ready {
		return fmt.Errorf("sandbox %s is not ready", rec.ID)
	}
	conn, err := dialIn(ctx, s.r.networkSandbox(sb).NetNSPath, port)
	if err != nil {
		return fmt.Errorf("forward to port %d of pod %s: %w", port, sb.cfg.GetMetadata().GetName(), err)
	}
	defer func() { _ = conn.Close() }()
	fromPod := make(chan error, 1)
	go func() {
		_, err := io.Copy(stream, conn)
		fromPod <- err
	}()
	toPod := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, stream)
		if t, ok := conn.(*net.TCPConn); ok {
			_ = t.CloseWrite() // the client has said all; the pod may still answer
		}
		toPod <- err
	}()
	select {
	case err := <-fromPod:
		return err
	case err := <-toPod:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-fromPod:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dialIn connects to a port on localhost, IPv4 first, in a network namespace
// ("" for this one). The socket stays in the namespace it was made in.
func dialIn(ctx context.Context, netns string, port int32) (net.Conn, error) {
	var conn net.Conn
	dial := func() error {
		var errs []error
		for _, host := range []string{"127.0.0.1", "::1"} {
			// No happy eyeballs, no resolver: the dial must stay on this thread.
			c, err := dialOnThread(host, port)
			if err == nil {
				conn = c
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	var err error
	if netns == "" {
		err = dial()
	} else {
		err = sandbox.InNetwork(netns, dial)
	}
	if err == nil && ctx.Err() != nil {
		return nil, errors.Join(ctx.Err(), conn.Close())
	}
	return conn, err
}

func dialOnThread(host string, port int32) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second, FallbackDelay: -1}
	return d.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
}

// Exec returns the URL at which the command's streams are served.
func (r *Runtime) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if err := r.mustRun(req.GetContainerId()); err != nil {
		return nil, err
	}
	if err := validStreams(req.GetTty(), req.GetStdin(), req.GetStdout(), req.GetStderr()); err != nil {
		return nil, err
	}
	url, err := r.streams.url("exec", req)
	return &runtimeapi.ExecResponse{Url: url}, err
}

// Attach returns the URL at which the container's streams are served.
func (r *Runtime) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if err := r.mustRun(req.GetContainerId()); err != nil {
		return nil, err
	}
	if err := validStreams(req.GetTty(), req.GetStdin(), req.GetStdout(), req.GetStderr()); err != nil {
		return nil, err
	}
	url, err := r.streams.url("attach", req)
	return &runtimeapi.AttachResponse{Url: url}, err
}

// PortForward returns the URL at which the sandbox's ports are served.
func (r *Runtime) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	s, err := r.sandboxFor(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if rec := s.record(); !rec.Ready {
		return nil, status.Errorf(codes.FailedPrecondition, "sandbox %s is not ready", rec.ID)
	}
	url, err := r.streams.url("portforward", req)
	return &runtimeapi.PortForwardResponse{Url: url}, err
}

func (r *Runtime) mustRun(id string) error {
	c, err := r.containerFor(id)
	if err != nil {
		return err
	}
	if rec := c.record(); rec.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return status.Errorf(codes.FailedPrecondition, "container %s is %s, not running", rec.ID, stateName(rec.State))
	}
	return nil
}

func validStreams(tty, in, out, errOut bool) error {
	if tty && errOut {
		return status.Error(codes.InvalidArgument, "tty and stderr: a terminal has one output")
	}
	if !in && !out && !errOut {
		return status.Error(codes.InvalidArgument, "one of stdin, stdout and stderr must be set")
	}
	return nil
}
