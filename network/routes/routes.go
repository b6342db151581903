// Package routes leads packets to the pods of other nodes: by a route where the node is on one of
// this machine's links, else in VXLAN (RFC 7348) with entries that are known beforehand, so that nothing
// is flooded or learned.
//
// What is wanted follows from Node objects and this machine's links and routes; the kernel is changed
// by the difference only, and put right when others change it. Nodes agree through an annotation on
// each one's own Node. Everything stays when the process ends, and the next one takes it up.
//
// Owns: routes of Protocol to destinations in the cluster's pod CIDRs, and the VXLAN links. Must not:
// know pods or Services; touch routes, links and entries that it did not make.
package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// Protocol marks the routes that skiff makes (rtnetlink(7): 4 to 255 say what users like).
const Protocol = 83

const (
	// DefaultPort is the UDP port that Linux and flannel use for VXLAN; IANA's is 4789.
	DefaultPort = 8472
	// DefaultVNI is the number of the VXLAN network: another than flannel's and Cilium's, so that
	// their links can be on the same machine.
	DefaultVNI = 0x534b46
)

// Config configures a Router.
type Config struct {
	NodeName string
	// ClusterID tells clusters apart.
	ClusterID string
	// ClusterCIDRs are all pods' addresses; only routes into them are made.
	ClusterCIDRs []netip.Prefix
	// Nodes holds all nodes; the caller starts it, best with Transform.
	Nodes cache.SharedIndexInformer
	// PodLink is the link that this node's pods are behind.
	PodLink string
	// Link begins the names of the VXLAN links, at most 11 bytes.
	Link string
	Mode Mode
	// VNI and Port of VXLAN; 0: the default. All nodes must have the same.
	VNI  uint32
	Port uint16
	// Publish writes the annotation to the own Node; empty takes it away.
	Publish func(ctx context.Context, annotation string) error
	// MTU is told what MTU pods' links should have. May be nil.
	MTU func(int)
	// ProcSys is where sysctls are; empty is /proc/sys.
	ProcSys string
	Logger  *slog.Logger
}

// Router keeps the routes.
type Router struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	changed map[string]*peer // since the last turn; nil is gone
	dirty   bool             // the kernel may have changed
	kick    chan struct{}

	nodes      *nodes
	registered bool // the own Node is there
	kernel     *kernel
	// have is what the kernel holds of ours, as far as is known.
	have table
	told map[string]string // the last error of each action

	first     chan struct{} // closed after the first turn
	firstOnce sync.Once
	publish   chan string
}

const maxLinkName = 15

// New checks the configuration.
func New(cfg Config) (*Router, error) {
	if cfg.VNI == 0 {
		cfg.VNI = DefaultVNI
	}
	if cfg.Port == 0 {
		cfg.Port = DefaultPort
	}
	if cfg.ProcSys == "" {
		cfg.ProcSys = "/proc/sys"
	}
	switch {
	case cfg.NodeName == "" || cfg.Nodes == nil || cfg.Publish == nil:
		return nil, errors.New("routes need a node name, an informer of nodes and a way to publish")
	case cfg.Link == "" || len(linkName(cfg.Link, 4)) > maxLinkName:
		return nil, fmt.Errorf("VXLAN link name %q must have 1 to %d bytes", cfg.Link, maxLinkName-len(linkName("", 4)))
	case cfg.Mode != Auto && cfg.Mode != Always && cfg.Mode != Never:
		return nil, fmt.Errorf("mode %q of the pod network: must be %q, %q or empty", cfg.Mode, Always, Never)
	case cfg.VNI > maxVNI:
		return nil, fmt.Errorf("VXLAN network %d: must be at most %d", cfg.VNI, maxVNI)
	}
	own := self{clusterCIDRs: cfg.ClusterCIDRs, mode: cfg.Mode, tunnel: tunnel{VNI: cfg.VNI, Port: cfg.Port, MAC: macOf(cfg.ClusterID, cfg.NodeName)}}
	own.name = cfg.NodeName
	return &Router{
		cfg: cfg, log: cfg.Logger, changed: map[string]*peer{}, dirty: true, kick: make(chan struct{}, 1),
		nodes: newNodes(own), have: newTable(), told: map[string]string{}, first: make(chan struct{}), publish: make(chan string, 1),
	}, nil
}

// First is closed once all nodes that there were at the start have been looked at.
func (r *Router) First() <-chan struct{} { return r.first }

const (
	// settle is how long changes of links and routes are waited for to end, as they come in bursts.
	settle = 50 * time.Millisecond
	// retryAfter is when what failed is tried again.
	retryAfter = 2 * time.Second
)

// Run blocks until ctx ends. It works in the network namespace of the calling goroutine's thread.
func (r *Router) Run(ctx context.Context) error {
	k, err := openKernel(r.cfg)
	if err != nil {
		return err
	}
	defer k.close()
	r.kernel = k
	watch, err := netlink.Watch()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	defer watch.Close()
	defer cancel()
	var watchErr error
	group.Go(func() {
		watchErr = watch.Run(r.kernelChanged)
		cancel()
	})
	group.Go(func() { r.publisher(ctx) })
	registration, err := r.cfg.Nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: r.nodeChanged, UpdateFunc: func(_, o any) { r.nodeChanged(o) }, DeleteFunc: r.nodeGone,
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	defer func() {
		if err := r.cfg.Nodes.RemoveEventHandler(registration); err != nil {
			r.log.Error("stop watching nodes", "err", err)
		}
	}()
	// Nothing may be taken away before all nodes are known.
	select {
	case <-registration.HasSyncedChecker().Done():
	case <-ctx.Done():
		return watchErr
	}
	r.loop(ctx)
	watch.Close()
	group.Wait()
	return watchErr
}

func (r *Router) loop(ctx context.Context) {
	for {
		again := r.turn()
		r.firstOnce.Do(func() { close(r.first) })
		var retry <-chan time.Time
		if again {
			retry = time.After(retryAfter)
		}
		select {
		case <-ctx.Done():
			return
		case <-retry:
			r.mu.Lock()
			r.dirty = true
			r.mu.Unlock()
			continue
		case <-r.kick:
		}
		r.mu.Lock()
		wait := r.dirty
		r.mu.Unlock()
		if wait {
			select {
			case <-ctx.Done():
				return
			case <-time.After(settle):
			}
		}
	}
}

func (r *Router) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *Router) nodeChanged(o any) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return
	}
	p, errs := readPeer(n)
	for _, err := range errs {
		r.log.Warn("read node", "node", n.Name, "err", err)
	}
	r.mu.Lock()
	r.changed[n.Name] = &p
	r.mu.Unlock()
	r.wake()
}

func (r *Router) nodeGone(o any) {
	if late, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = late.Obj
	}
	n, ok := o.(*corev1.Node)
	if !ok {
		return
	}
	r.mu.Lock()
	r.changed[n.Name] = nil
	r.mu.Unlock()
	r.wake()
}

// kernelChanged is told each change of the kernel, most of them of others' making or our own.
func (r *Router) kernelChanged(c netlink.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dirty {
		return
	}
	if c.Protocol == Protocol && (c.Kind == netlink.RouteAdded || c.Kind == netlink.RouteDeleted) {
		// What we did ourselves is known by now, as have is changed under the same lock.
		if _, known := r.have.routes[c.Dst]; known == (c.Kind == netlink.RouteAdded) {
			return
		}
	}
	if c.Kind == netlink.EntryDeleted {
		u := r.kernel.underlay(c.Link)
		_, known := r.have.neighbours[neighbour{u, c.Neighbour}]
		if !c.Neighbour.IsValid() {
			_, known = r.have.remotes[remote{u, c.MAC}]
		}
		if !known {
			return
		}
	}
	r.dirty = true
	r.wake()
}
