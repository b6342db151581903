// Package kubelet is the node's agent: it registers the node with the API server,
// runs the pods that are bound to it on a CRI runtime, reports their state and
// serves the kubelet's HTTPS API.
//
// This package composes; the parts are below it: node/ (the node object), pods/
// (workers, decisions, statuses), probes/, volumes/, images/, logs/, stats/,
// eviction/, server/, objects/ (ConfigMaps, Secrets, Services), and, pure,
// environ/ and criconfig/. It reaches containers over the CRI socket only.
package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/host/apparmor"
	"github.com/skiff-k8s/skiff/host/cgroup"
	"github.com/skiff-k8s/skiff/host/mount"
	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
	"github.com/skiff-k8s/skiff/kubelet/environ"
	"github.com/skiff-k8s/skiff/kubelet/eviction"
	"github.com/skiff-k8s/skiff/kubelet/images"
	"github.com/skiff-k8s/skiff/kubelet/logs"
	"github.com/skiff-k8s/skiff/kubelet/node"
	"github.com/skiff-k8s/skiff/kubelet/objects"
	"github.com/skiff-k8s/skiff/kubelet/pods"
	"github.com/skiff-k8s/skiff/kubelet/server"
	"github.com/skiff-k8s/skiff/kubelet/stats"
	"github.com/skiff-k8s/skiff/kubelet/volumes"
)

// Config of a Kubelet. Zero values stand for upstream's defaults where a comment
// names one.
type Config struct {
	NodeName string
	// HostnameOverride is the node's kubernetes.io/hostname; default: NodeName.
	HostnameOverride string
	// Client is the API as the node's user; nil: stand-alone, manifests only.
	// HeartbeatClient (default: Client) writes Lease and node status, so that they
	// don't queue behind other requests.
	Client, HeartbeatClient kubernetes.Interface

	// RuntimeEndpoint is the CRI socket (unix:///…); ImageEndpoint defaults to it.
	RuntimeEndpoint, ImageEndpoint string
	// Owner marks this kubelet's pods on a runtime that others use too; empty: pods without
	// a mark are this kubelet's.
	Owner string

	RootDir          string // /var/lib/kubelet
	PodLogsDir       string // /var/log/pods
	ContainerLogsDir string // links for log collectors, /var/log/containers; "-": none
	ManifestDir      string // static pods, a directory or file; empty: none
	// ManifestURL serves static pods too, to requests with that header; empty: none.
	ManifestURL       string
	ManifestURLHeader http.Header

	NodeIPs    []string // primary first
	ListenAddr string   // :10250
	Listener   net.Listener
	// GetCertificate is the serving certificate; ClientCA verifies clients.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	ClientCA       *x509.CertPool

	ClusterDNS    []string
	ClusterDomain string // cluster.local
	ResolvConf    string // /etc/resolv.conf; "-": none

	CgroupMount  string // /sys/fs/cgroup; "-": no groups are made
	CgroupRoot   string // group above kubepods; empty: the root
	CgroupDriver string // cgroupfs, the only one

	MaxPods      int64 // 110
	PodPidsLimit int64 // per pod; 0: none
	// MaxParallelPulls of images; 0: no limit.
	MaxParallelPulls int
	ImageGC          images.Policy
	DeadContainers   pods.DeadPolicy
	Labels           map[string]string
	Taints           []corev1.Taint
	Unschedulable    bool
	ProviderID       string
	// ExternalCloud has a cloud-controller-manager initialize the node (--cloud-provider=external);
	// ProvidedIPs are NodeIPs that were asked for, not found.
	ExternalCloud bool
	ProvidedIPs   []string
	// Capacity overrides what is found, for a node that is a share of a machine;
	// Reserved is taken off it.
	Capacity, Reserved corev1.ResourceList
	// Share is how many nodes the machine is divided among, which may change; nil: it is this one's alone.
	Share   func() int64
	Version string // v1.37.2

	// Recorder of events; nil: one that writes to the API.
	Recorder record.EventRecorder
	Mounts   mount.Table // the kernel's
	Logger   *slog.Logger
	// Profiling serves profiles of the process to those who may proxy to the node.
	Profiling bool
}

// Kubelet is a node's agent.
type Kubelet struct {
	cfg      Config
	log      *slog.Logger
	cri      *cri.Client
	node     *node.Node
	objects  *objects.Cache
	pods     *pods.Manager
	server   *server.Server
	eviction *eviction.Manager
	puller   *images.Puller
	gc       *images.Collector
	rotator  *logs.Rotator
	recorder record.EventRecorder
	events   record.EventBroadcaster

	mu      sync.Mutex
	dns     criconfig.DNS
	dnsFrom time.Time // the resolver file's modification time
}

func (c *Config) setDefaults() {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&c.HostnameOverride, c.NodeName)
	def(&c.RootDir, "/var/lib/kubelet")
	def(&c.PodLogsDir, "/var/log/pods")
	def(&c.ContainerLogsDir, "/var/log/containers")
	def(&c.ListenAddr, ":10250")
	def(&c.ClusterDomain, "cluster.local")
	def(&c.ResolvConf, "/etc/resolv.conf")
	def(&c.CgroupMount, "/sys/fs/cgroup")
	def(&c.CgroupDriver, "cgroupfs")
	def(&c.Version, "v1.37.2")
	if c.MaxPods == 0 {
		c.MaxPods = 110
	}
	if c.ContainerLogsDir == "-" {
		c.ContainerLogsDir = ""
	}
	if c.Mounts == nil {
		c.Mounts = mount.Kernel{}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// New builds a kubelet and starts nothing.
func New(cfg Config) (*Kubelet, error) {
	cfg.setDefaults()
	switch {
	case cfg.NodeName == "":
		return nil, fmt.Errorf("kubelet: NodeName is empty: give the node a name")
	case len(cfg.NodeIPs) == 0:
		return nil, fmt.Errorf("kubelet: NodeIPs is empty: name the address at which the node is reached")
	case cfg.CgroupDriver != "cgroupfs":
		return nil, fmt.Errorf("kubelet: cgroup driver %q is not supported: use cgroupfs", cfg.CgroupDriver)
	}
	if err := errors.Join(cfg.ImageGC.Check(), cfg.DeadContainers.Check()); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	k := &Kubelet{cfg: cfg, log: cfg.Logger}
	var err error
	if k.cri, err = cri.New(cri.Config{RuntimeEndpoint: cfg.RuntimeEndpoint, ImageEndpoint: cfg.ImageEndpoint, Owner: cfg.Owner, TerminationMessage: pods.ReadTerminationMessage}); err != nil {
		return nil, err
	}
	var groups *cgroup.Tree
	if cfg.CgroupMount != "-" {
		if groups, err = cgroup.Open(cfg.CgroupMount); err != nil {
			return nil, errors.Join(err, k.cri.Close())
		}
	}
	k.recorder = cfg.Recorder
	if k.recorder == nil {
		k.events = record.NewBroadcaster()
		scheme := runtime.NewScheme()
		k.recorder = k.events.NewRecorder(scheme, corev1.EventSource{Component: "kubelet", Host: cfg.NodeName})
	}
	fail := func(err error) (*Kubelet, error) { return nil, errors.Join(err, k.cri.Close()) }

	k.objects = objects.New(objects.Config{Client: cfg.Client, Logger: cfg.Logger, Changed: func(r objects.Ref) { k.pods.ObjectChanged(r) }})
	port := 10250
	if a, err := net.ResolveTCPAddr("tcp", cfg.ListenAddr); err == nil && a.Port != 0 {
		port = a.Port
	}
	if cfg.Listener != nil {
		if a, ok := cfg.Listener.Addr().(*net.TCPAddr); ok {
			port = a.Port
		}
	}
	if k.node, err = node.New(node.Config{
		Name: cfg.NodeName, Hostname: cfg.HostnameOverride, Client: cfg.Client, HeartbeatClient: cfg.HeartbeatClient, CRI: k.cri, IPs: cfg.NodeIPs,
		Labels: cfg.Labels, Taints: cfg.Taints, Unschedulable: cfg.Unschedulable, ProviderID: cfg.ProviderID, ExternalCloud: cfg.ExternalCloud, Provided: cfg.ProvidedIPs, Capacity: cfg.Capacity, Reserved: cfg.Reserved, Share: cfg.Share,
		MaxPods: cfg.MaxPods, Port: int32(port), RootDir: cfg.RootDir, Version: cfg.Version, Recorder: k.recorder, Logger: cfg.Logger,
		Pressure: func() node.Pressure { return k.eviction.Pressure() },
		Changed:  func() { k.pods.WakeAll() },
	}); err != nil {
		return fail(err)
	}
	memory := k.node.Capacity()[corev1.ResourceMemory]
	k.puller = images.New(images.Config{CRI: k.cri, RootDir: cfg.RootDir, MaxParallel: cfg.MaxParallelPulls, Logger: cfg.Logger})
	vols := volumes.New(volumes.Config{
		RootDir: cfg.RootDir, Mounts: cfg.Mounts, Objects: k.objects, Client: cfg.Client, Logger: cfg.Logger,
		Downward: func() environ.Downward {
			return environ.Downward{HostIPs: cfg.NodeIPs, Allocatable: k.node.Allocatable()}
		},
	})
	if k.pods, err = pods.New(pods.Config{
		NodeName: cfg.NodeName, Client: cfg.Client, CRI: k.cri, Images: k.puller, Volumes: vols, Objects: k.objects,
		Services: objects.NewServices(cfg.Client, cfg.Logger), Cgroups: groups, CgroupParent: cfg.CgroupRoot, PodPidsLimit: cfg.PodPidsLimit,
		CRINode: k.criNode(memory.Value()), HostIPs: func() []string { return cfg.NodeIPs }, Node: k.node.Object, Allocatable: k.node.Allocatable,
		NetworkReady: k.node.NetworkReady, Runtime: k.node.RuntimeConditions, RuntimeName: k.node.RuntimeName, Recorder: k.recorder,
		PodLogsDir: cfg.PodLogsDir, ContainerLogsDir: cfg.ContainerLogsDir, ManifestDir: cfg.ManifestDir, ManifestURL: cfg.ManifestURL, ManifestURLHeader: cfg.ManifestURLHeader, Dead: cfg.DeadContainers, Logger: cfg.Logger,
		AppArmor: apparmor.This().Check(),
	}); err != nil {
		return fail(err)
	}
	st := stats.New(stats.Config{
		NodeName: cfg.NodeName, CRI: k.cri, RootDir: cfg.RootDir, Cgroups: groups, Group: cfg.CgroupRoot,
		// A node that is a share of a machine uses what its pods use; another all that is used.
		Shared: func() bool { return len(cfg.Capacity) > 0 || cfg.Share != nil && cfg.Share() > 1 },
		MemoryCapacity: func() uint64 {
			memory := k.node.Capacity()[corev1.ResourceMemory]
			return uint64(memory.Value())
		},
	})
	k.gc = images.NewCollector(k.cri, cfg.ImageGC, cfg.Logger)
	k.gc.Listed = k.puller.Keep
	k.eviction = eviction.New(eviction.Config{
		Pods: k.pods, Stats: st, PodDir: vols.PodDir, FreeImages: k.gc.Free, Changed: k.node.Kick, Recorder: k.recorder, Node: k.node.Ref(), Logger: cfg.Logger,
	})
	if cfg.GetCertificate != nil {
		if k.server, err = server.New(server.Config{
			NodeName: cfg.NodeName, Listener: cfg.Listener, Addr: cfg.ListenAddr, GetCertificate: cfg.GetCertificate, ClientCA: cfg.ClientCA, Client: cfg.Client,
			Pods: k.pods, CRI: k.cri, LogDir: filepath.Dir(cfg.PodLogsDir), Profiling: cfg.Profiling, Logger: cfg.Logger,
			Stats:   func(ctx context.Context) (any, error) { return st.Summary(ctx) },
			Metrics: st.Metrics, Own: k.metrics,
		}); err != nil {
			return fail(err)
		}
	}
	k.rotator = &logs.Rotator{MaxSize: 10 << 20, MaxFiles: 5, Running: k.runningLogs, Logger: cfg.Logger, Reopen: func(ctx context.Context, id string) error {
		_, err := k.cri.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		return err
	}}
	return k, nil
}

// Ready is closed once the API server was told that the node is ready.
func (k *Kubelet) Ready() <-chan struct{} { return k.node.Ready() }

// Run runs the kubelet until the context ends or a part of it fails for good.
// Containers go on without it.
func (k *Kubelet) Run(ctx context.Context) error {
	for _, d := range []string{k.cfg.RootDir, filepath.Join(k.cfg.RootDir, "pods"), k.cfg.PodLogsDir, k.cfg.ContainerLogsDir} {
		if d == "" {
			continue
		}
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make the kubelet's directories: %w", err)
		}
	}
	if err := k.pods.EnsureRoots(); err != nil {
		return fmt.Errorf("make the control groups of pods: %w", err)
	}
	if k.events != nil {
		if k.cfg.Client != nil {
			k.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: k.cfg.Client.CoreV1().Events("")})
		}
		defer k.events.Shutdown()
	}
	k.recorder.Event(k.node.Ref(), corev1.EventTypeNormal, "Starting", "Starting kubelet.")

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make(chan error, 16)
	run := func(f func(context.Context) error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(ctx); err != nil {
				errs <- err
				cancel()
			}
		}()
	}
	forever := func(f func(context.Context)) func(context.Context) error {
		return func(ctx context.Context) error { f(ctx); return nil }
	}
	run(k.node.Run)
	run(k.pods.Run)
	if k.server != nil {
		run(k.server.Run)
	}
	run(forever(k.rotator.Run))
	run(forever(k.eviction.Run))
	run(forever(k.gc.Run))
	wg.Wait()
	k.objects.Close()
	err := k.cri.Close()
	close(errs)
	var all []error
	for e := range errs {
		all = append(all, e)
	}
	return errors.Join(append(all, err)...)
}

// criNode gathers what CRI configurations need to know of the node.
func (k *Kubelet) criNode(memory int64) func() *criconfig.Node {
	sizes := hugePageSizes()
	return func() *criconfig.Node {
		rro := false
		for _, h := range k.node.RuntimeConditions().Handlers {
			rro = rro || h.Name == "" && h.Features != nil && h.Features.RecursiveReadOnlyMounts
		}
		return &criconfig.Node{
			PodLogsDir: k.cfg.PodLogsDir, SeccompDir: filepath.Join(k.cfg.RootDir, "seccomp"), CgroupParent: k.cfg.CgroupRoot,
			ClusterDNS: k.cfg.ClusterDNS, ClusterDomain: k.cfg.ClusterDomain, HostDNS: k.hostDNS(), MemoryCapacity: memory,
			HugePageSizes: sizes, CPUQuota: true, RecursiveReadOnly: rro,
		}
	}
}

// hostDNS reads the node's resolver configuration again when it changed.
func (k *Kubelet) hostDNS() criconfig.DNS {
	if k.cfg.ResolvConf == "-" {
		return criconfig.DNS{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	fi, err := os.Stat(k.cfg.ResolvConf)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			k.log.Warn("read the node's resolver configuration", "error", err)
		}
		return k.dns
	}
	if fi.ModTime().Equal(k.dnsFrom) {
		return k.dns
	}
	f, err := os.Open(k.cfg.ResolvConf)
	if err != nil {
		k.log.Warn("read the node's resolver configuration", "error", err)
		return k.dns
	}
	defer f.Close()
	d, err := criconfig.ParseResolvConf(f)
	if err != nil {
		k.log.Warn("read the node's resolver configuration", "path", k.cfg.ResolvConf, "error", err)
		return k.dns
	}
	k.dns, k.dnsFrom = d, fi.ModTime()
	return d
}

func (k *Kubelet) runningLogs(ctx context.Context) (map[string]string, error) {
	all, err := k.cri.Pods(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, p := range all {
		for _, c := range p.Containers {
			if c.State == cri.StateRunning && filepath.IsAbs(c.LogPath) {
				out[c.ID] = c.LogPath
			}
		}
	}
	return out, nil
}

// hugePageSizes as the hugetlb controller spells them; none without the controller.
func hugePageSizes() []string {
	var out []string
	for _, pattern := range []string{"/sys/fs/cgroup/hugetlb/hugetlb.*.limit_in_bytes", "/sys/fs/cgroup/kubepods/hugetlb.*.max"} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			parts := strings.Split(filepath.Base(f), ".")
			if len(parts) == 3 && parts[1] != "" {
				out = append(out, parts[1])
			}
		}
	}
	return out
}
