// Package fakecri is a CRI v1 service over a real unix socket whose containers
// exist in memory only. It keeps the runtime's state machine honestly (no
// container without a sandbox, no start twice, removal stops) and lets tests fail
// calls, end containers and restart the service.
package fakecri

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Server is the fake runtime.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	socket string
	grpc   *grpc.Server

	mu         sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*Container
	images     map[string]*runtimeapi.Image // by every name
	watchers   map[chan *runtimeapi.ContainerEventResponse]bool
	seq        int
	calls      map[string]int

	// The fields below may be set before use or under Lock.

	// Fail is asked before every call, by its method's name.
	Fail func(method string, req any) error
	// Started is called (without lock) after a container started; it may Exit it.
	Started func(c *Container)
	// RunExec answers ExecSync.
	RunExec func(c *Container, cmd []string) (stdout string, code int32, err error)
	// Remote are images that can be pulled; Auth, when set, checks the credentials.
	Remote map[string]bool
	Auth   func(image string, auth *runtimeapi.AuthConfig) error
	// StreamURL is what Exec, Attach and PortForward answer.
	StreamURL string
	// Mute withholds container events, as a runtime without them does.
	Mute bool
	// NetworkDown makes the runtime report that its network is not ready.
	NetworkDown bool
}

type sandbox struct {
	id      string
	cfg     *runtimeapi.PodSandboxConfig
	state   runtimeapi.PodSandboxState
	created int64
	ip      string
}

// Container is one container of the fake.
type Container struct {
	ID, Sandbox, Name string
	Config            *runtimeapi.ContainerConfig
	// IgnoreTerm: only SIGKILL ends it.
	IgnoreTerm bool

	state                      runtimeapi.ContainerState
	created, started, finished int64
	code                       int32
	reason, message            string
	logPath                    string
	exited                     chan struct{}
}

// Start serves on a socket in a new temporary directory until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	// Socket paths are limited to 108 bytes; t.TempDir can be longer.
	dir, err := os.MkdirTemp("", "fakecri")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{
		socket: filepath.Join(dir, "cri.sock"), sandboxes: map[string]*sandbox{}, containers: map[string]*Container{},
		images: map[string]*runtimeapi.Image{}, watchers: map[chan *runtimeapi.ContainerEventResponse]bool{}, calls: map[string]int{}, Remote: map[string]bool{},
	}
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Down()
		os.RemoveAll(dir)
	})
	return s
}

// Endpoint is the socket's URL.
func (s *Server) Endpoint() string { return "unix://" + s.socket }

// Up serves (again).
func (s *Server) Up() error {
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		return err
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if err := s.enter(filepath.Base(info.FullMethod), req); err != nil {
			return nil, err
		}
		return h(ctx, req)
	}))
	runtimeapi.RegisterRuntimeServiceServer(g, s)
	runtimeapi.RegisterImageServiceServer(g, s)
	s.mu.Lock()
	s.grpc = g
	s.mu.Unlock()
	go g.Serve(l)
	return nil
}

// Down stops serving; containers live on.
func (s *Server) Down() {
	s.mu.Lock()
	g := s.grpc
	s.grpc = nil
	s.mu.Unlock()
	if g != nil {
		g.Stop()
	}
}

func (s *Server) enter(method string, req any) error {
	s.mu.Lock()
	s.calls[method]++
	fail := s.Fail
	s.mu.Unlock()
	if fail != nil {
		return fail(method, req)
	}
	return nil
}

// Set runs f under the server's lock.
func (s *Server) Set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Calls is how often a method was called.
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// AddImage makes an image present. uid is its user, "" root.
func (s *Server) AddImage(name string, uid *int64, username string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addImage(name, uid, username)
}

func (s *Server) addImage(name string, uid *int64, username string) *runtimeapi.Image {
	img := &runtimeapi.Image{Id: "sha256:" + fmt.Sprintf("%x", name), RepoTags: []string{name}, RepoDigests: []string{name + "@sha256:aa"}, Size: 1000, Username: username}
	if uid != nil {
		img.Uid = &runtimeapi.Int64Value{Value: *uid}
	}
	s.images[name], s.images[img.Id] = img, img
	return img
}

// Containers lists containers by name, newest first.
func (s *Server) Containers(name string) []*Container {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*Container
	for _, c := range s.containers {
		if c.Name == name {
			out = append(out, c)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].created > out[j].created })
	return out
}

// Sandboxes is how many there are.
func (s *Server) Sandboxes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sandboxes)
}

// Running tells whether the container runs.
func (s *Server) Running(c *Container) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.state == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// Exit ends a running container.
func (s *Server) Exit(c *Container, code int32, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exit(c, code, reason)
}

func (s *Server) exit(c *Container, code int32, reason string) {
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return
	}
	if reason == "" {
		reason = "Completed"
		if code != 0 {
			reason = "Error"
		}
	}
	c.state, c.code, c.reason, c.finished = runtimeapi.ContainerState_CONTAINER_EXITED, code, reason, time.Now().UnixNano()
	close(c.exited)
	s.emit(c, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

func (s *Server) emit(c *Container, kind runtimeapi.ContainerEventType) {
	if s.Mute {
		return
	}
	ev := &runtimeapi.ContainerEventResponse{ContainerId: c.ID, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(), ContainersStatuses: []*runtimeapi.ContainerStatus{s.status(c)}}
	if sb := s.sandboxes[c.Sandbox]; sb != nil {
		ev.PodSandboxStatus = s.sandboxStatus(sb)
	}
	for w := range s.watchers {
		select {
		case w <- ev:
		default: // a reader that lags misses events, as with real runtimes
		}
	}
}

func (s *Server) id(kind string) string {
	s.seq++
	return fmt.Sprintf("%s%060x", kind, s.seq)
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s %q not found", kind, id)
}
