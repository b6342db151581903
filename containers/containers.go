// Package containers is the built-in container runtime: a CRI v1 service on a
// unix socket, over images as overlayfs layers, sandboxes without a pause
// process, libcontainer in a launcher program and one tiny monitor per container
// that outlives this process.
//
// This package keeps the records of sandboxes and containers and answers CRI;
// the work is done by the packages below it. It must not know the API server,
// the kubelet or how pods get their addresses: the network plugs in as Network.
package containers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/apparmor"
	"github.com/skiff-k8s/skiff/containers/cgroup"
	"github.com/skiff-k8s/skiff/containers/image"
	"github.com/skiff-k8s/skiff/containers/oci"
	"github.com/skiff-k8s/skiff/containers/sandbox"
	"github.com/skiff-k8s/skiff/containers/snapshot"
	hostarmor "github.com/skiff-k8s/skiff/host/apparmor"
)

// Config configures a Runtime.
type Config struct {
	// RootDir keeps images, snapshots and records; it survives reboots.
	RootDir string
	// StateDir keeps what dies with the machine's uptime: mounts, namespaces,
	// sockets. Default: RootDir/run.
	StateDir string
	// SocketPath is where CRI is served. Default: StateDir/cri.sock.
	SocketPath string
	// CgroupRoot is the parent of pods whose configuration names none.
	// Default: /skiff.
	CgroupRoot string
	// StreamAddr is where exec, attach and port-forward streams are served; it
	// must not be reachable from outside. Default: 127.0.0.1:0.
	StreamAddr string
	// Network connects sandboxes.
	Network Network
	// Registries says how registries are reached.
	Registries image.Registries
	// DefaultCapabilities of containers. Default: Docker's set.
	DefaultCapabilities []string
	// RuntimeHandlers are further names under which RuntimeClasses may ask for
	// this runtime, beside the empty one and "skiff".
	RuntimeHandlers []string
	// Version is told to clients; it must be a semantic version. Default: 0.1.0.
	Version string
	Logger  *slog.Logger
}

// Runtime is the runtime. Its methods that CRI defines are safe for concurrent use.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer

	cfg      Config
	log      *slog.Logger
	layers   *snapshot.Layers
	images   *image.Store
	host     oci.Host
	apparmor *apparmor.Profiles
	launcher string // programs; set by Run
	monitor  string
	// unmappable is why pods cannot have user namespaces here, or nil.
	unmappable error

	streams *streamServer
	events  *broadcaster
	usage   *usageCache

	mu         sync.RWMutex
	sandboxes  map[string]*sandboxState
	containers map[string]*containerState

	watching sync.WaitGroup // one per running container
	stop     chan struct{}  // closed when Run returns: the watches end
}

// New reads the records and builds the runtime. It starts nothing and changes
// nothing outside its directories.
func New(cfg Config) (*Runtime, error) {
	if cfg.RootDir == "" || !filepath.IsAbs(cfg.RootDir) {
		return nil, fmt.Errorf("rootDir: %q is not an absolute path", cfg.RootDir)
	}
	if cfg.Network == nil {
		return nil, errors.New("network: none given")
	}
	setDefault(&cfg.StateDir, filepath.Join(cfg.RootDir, "run"))
	setDefault(&cfg.SocketPath, filepath.Join(cfg.StateDir, "cri.sock"))
	setDefault(&cfg.CgroupRoot, "/skiff")
	setDefault(&cfg.StreamAddr, "127.0.0.1:0")
	setDefault(&cfg.Version, "0.1.0")
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Runtime{
		cfg: cfg, log: cfg.Logger,
		sandboxes: map[string]*sandboxState{}, containers: map[string]*containerState{},
		events: newBroadcaster(), usage: newUsageCache(), stop: make(chan struct{}),
	}
	for _, dir := range []string{cfg.RootDir, cfg.StateDir, r.sandboxRoot(), r.containerRoot()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make runtime directory: %w", err)
		}
	}
	var err error
	if r.layers, err = snapshot.NewLayers(filepath.Join(cfg.RootDir, "layers")); err != nil {
		return nil, err
	}
	r.images, err = image.New(image.Config{
		Root: filepath.Join(cfg.RootDir, "images"), Layers: r.layers, Registries: cfg.Registries, Logger: cfg.Logger,
		Builtin: func(ref string) (v1.Image, error) { return image.HelloImage(ref, oci.Hello.Read) },
	})
	if err != nil {
		return nil, err
	}
	if r.host, err = hostFacts(); err != nil {
		return nil, err
	}
	r.apparmor = apparmor.New(hostarmor.This())
	r.streams = newStreamServer(r)
	return r, r.loadRecords()
}

func setDefault(s *string, v string) {
	if *s == "" {
		*s = v
	}
}

func (r *Runtime) sandboxRoot() string   { return filepath.Join(r.cfg.RootDir, "sandboxes") }
func (r *Runtime) containerRoot() string { return filepath.Join(r.cfg.RootDir, "containers") }
func (r *Runtime) ociRoot() string       { return filepath.Join(r.cfg.StateDir, "oci") }

// hostFacts looks once at what specs depend on.
func hostFacts() (oci.Host, error) {
	caps, err := oci.HostCapabilities()
	if err != nil {
		return oci.Host{}, fmt.Errorf("read own capabilities: %w", err)
	}
	h := oci.Host{CgroupV2: cgroup.V2(), HugeTLB: cgroup.HasHugeTLB(), Capabilities: caps, MinOOMScoreAdj: -1000}
	var nofile unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile); err != nil {
		return oci.Host{}, fmt.Errorf("read own limits: %w", err)
	}
	h.MaxOpenFiles = nofile.Max
	privileged := false
	for _, c := range caps {
		privileged = privileged || c == "CAP_SYS_RESOURCE"
	}
	if !privileged {
		// Without CAP_SYS_RESOURCE the score can only be raised.
		h.MinOOMScoreAdj = 0
		if b, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
			if _, err := fmt.Sscan(strings.TrimSpace(string(b)), &h.MinOOMScoreAdj); err != nil {
				return oci.Host{}, fmt.Errorf("parse /proc/self/oom_score_adj: %w", err)
			}
		}
	}
	return h, nil
}

// Run serves until ctx ends. Containers go on running; another Run, in this
// process or a later one, adopts them.
func (r *Runtime) Run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("the container runtime needs root: run as root, or point the kubelet at another CRI socket")
	}
	bin := filepath.Join(r.cfg.RootDir, "bin")
	var err error
	if r.launcher, err = oci.Launcher.Extract(bin); err != nil {
		return err
	}
	if r.monitor, err = oci.Monitor.Extract(bin); err != nil {
		return err
	}
	if r.unmappable = r.tryMapping(); r.unmappable != nil {
		r.log.Info("pods cannot have user namespaces here", "reason", r.unmappable)
	}
	if err := r.apparmor.Missing(); err != nil {
		r.log.Warn("containers that name no AppArmor profile run without one", "reason", err)
	}
	if err := r.adopt(ctx); err != nil {
		return err
	}
	listener, err := r.listen()
	if err != nil {
		return err
	}
	streamListener, err := net.Listen("tcp", r.cfg.StreamAddr)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for streams: %w", err), listener.Close())
	}
	r.streams.setAddress(streamListener.Addr())
	server := grpc.NewServer(grpc.MaxRecvMsgSize(16<<20), grpc.MaxSendMsgSize(16<<20+1<<16))
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	runtimeapi.RegisterImageServiceServer(server, &imageService{r: r})
	server.RegisterService(&loaderDesc, r)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Serve(listener) })
	g.Go(func() error { return r.streams.serve(streamListener) })
	g.Go(func() error { return r.ensureBuiltins(ctx) })
	g.Go(func() error {
		<-ctx.Done()
		r.events.close()
		server.Stop()
		return r.streams.close()
	})
	r.log.Info("container runtime serves CRI", "socket", r.cfg.SocketPath, "streams", streamListener.Addr().String())
	err = g.Wait()
	close(r.stop)
	r.watching.Wait()
	return err
}

// tryMapping makes a user namespace and has the layers mapped by it.
func (r *Runtime) tryMapping() error {
	dir := filepath.Join(r.cfg.StateDir, "probe")
	one := []sandbox.Mapping{{Container: 0, Host: 65536, Length: 65536}}
	cfg := sandbox.Config{Dir: dir, UIDs: one, GIDs: one, Pause: r.monitor}
	if err := sandbox.Remove(dir); err != nil { // of a start that was killed
		return err
	}
	err := sandbox.Create(cfg)
	if err == nil {
		err = r.layers.Mappable(sandbox.Layout(cfg).User)
	}
	return errors.Join(err, sandbox.Remove(dir))
}

// maxSocketPath is what fits into sun_path with its final zero.
const maxSocketPath = 107

// listen takes the socket over from a runtime that is gone, not from one that lives.
func (r *Runtime) listen() (net.Listener, error) {
	if n := len(r.cfg.SocketPath); n > maxSocketPath {
		return nil, fmt.Errorf("socketPath: %s has %d bytes, the kernel takes %d: choose a shorter directory", r.cfg.SocketPath, n, maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(r.cfg.SocketPath), 0o700); err != nil {
		return nil, fmt.Errorf("make socket directory: %w", err)
	}
	if c, err := net.Dial("unix", r.cfg.SocketPath); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("socket %s: another runtime serves it", r.cfg.SocketPath)
	}
	if err := os.Remove(r.cfg.SocketPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	l, err := net.Listen("unix", r.cfg.SocketPath)
	if err != nil {
		return nil, fmt.Errorf("listen for CRI: %w", err)
	}
	if err := os.Chmod(r.cfg.SocketPath, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect socket: %w", err), l.Close())
	}
	return l, nil
}

// ensureBuiltins puts the images that skiff carries into the store.
func (r *Runtime) ensureBuiltins(ctx context.Context) error {
	made := false
	for _, tag := range image.HelloTags {
		if _, err := r.images.Get(image.HelloRepository + ":" + tag); err == nil {
			continue
		}
		made = true
		_, err := r.images.Ensure(ctx, image.HelloRepository+":"+tag)
		if err != nil && ctx.Err() == nil {
			r.log.Warn("built-in image not available", "image", image.HelloRepository+":"+tag, "err", err)
		}
	}
	if made {
		// The first start leaves megabytes that no later moment needs.
		debug.FreeOSMemory()
	}
	return nil
}
