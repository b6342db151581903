// Package node is the kubelet's own object in the API: it registers the node,
// renews its Lease, reports capacity and conditions, and follows what others write
// to it. It knows nothing of single pods.
package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/objects"
)

// Intervals as upstream: the status is computed every 10 s, written when it
// changed and every 5 min in any case; the Lease shows life in between.
const (
	statusEvery  = 10 * time.Second
	reportEvery  = 5 * time.Minute
	runtimeEvery = 5 * time.Second
	leaseSeconds = 40
	leaseEvery   = 10 * time.Second
)

// Pressure is what the eviction manager sees.
type Pressure struct{ Memory, Disk, PID bool }

// Config of a Node.
type Config struct {
	Name     string
	Hostname string
	// Client writes the node; HeartbeatClient (default: Client) its Lease and status.
	Client, HeartbeatClient kubernetes.Interface
	CRI                     *cri.Client
	IPs                     []string
	Labels                  map[string]string
	Taints                  []corev1.Taint
	Unschedulable           bool
	ProviderID              string
	// ExternalCloud has a cloud-controller-manager initialize the node and say its addresses. Provided
	// are those that the kubelet was told (--node-ip), which it is to choose.
	ExternalCloud bool
	Provided      []string
	// Capacity overrides what the machine has, for a node that is a share of one.
	Capacity corev1.ResourceList
	// Reserved is taken off the capacity.
	Reserved corev1.ResourceList
	// Share is how many nodes the machine is divided among, which may change; nil: it is this one's alone.
	Share    func() int64
	MaxPods  int64
	Port     int32
	RootDir  string
	Version  string
	Pressure func() Pressure
	Recorder record.EventRecorder
	// Changed is called when the runtime's readiness changed.
	Changed func()
	Logger  *slog.Logger
}

// Node is this node.
type Node struct {
	cfg     Config
	machine corev1.ResourceList
	info    corev1.NodeSystemInfo
	kick    chan struct{}
	look    chan struct{} // at the runtime
	ready   chan struct{}
	once    sync.Once

	mu         sync.Mutex
	share      int64
	capacity   corev1.ResourceList
	alloc      corev1.ResourceList
	object     *corev1.Node // as the API server has it
	conditions cri.Conditions
	runtimeErr error
	runtime    string // its name
	podCIDR    string // as told to the runtime
	lastWrite  time.Time
	images     []corev1.ContainerImage
	imagesAt   time.Time
}

// New looks at the machine; Run registers the node.
func New(cfg Config) (*Node, error) {
	if cfg.Name == "" {
		return nil, fmt.Errorf("node: name is empty")
	}
	if cfg.HeartbeatClient == nil {
		cfg.HeartbeatClient = cfg.Client
	}
	n := &Node{cfg: cfg, kick: make(chan struct{}, 1), look: make(chan struct{}, 1), ready: make(chan struct{}), runtimeErr: fmt.Errorf("container runtime status check may not have completed yet")}
	var err error
	if n.machine, err = capacity(cfg); err != nil {
		return nil, err
	}
	n.takeShare()
	n.info = systemInfo(cfg.Version)
	return n, nil
}

// Capacity of the node; callers must not change it.
func (n *Node) Capacity() corev1.ResourceList {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.capacity
}

// Allocatable is what pods can have; callers must not change it.
func (n *Node) Allocatable() corev1.ResourceList {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.alloc
}

// takeShare follows the number of nodes that the machine is divided among.
func (n *Node) takeShare() {
	share := int64(1)
	if n.cfg.Share != nil {
		share = n.cfg.Share()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if share == n.share {
		return
	}
	n.share, n.capacity = share, divide(n.machine, share)
	n.alloc = allocatable(n.capacity, n.cfg.Reserved)
}

// Object is the node as last seen in the API; nil before it was.
func (n *Node) Object() *corev1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.object
}

// RuntimeName is the runtime's own name, the scheme of container ids.
func (n *Node) RuntimeName() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.runtime
}

// NetworkReady says why pods can't have networks; nil: they can.
func (n *Node) NetworkReady() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.runtimeErr != nil {
		return n.runtimeErr
	}
	if !n.conditions.Network {
		return fmt.Errorf("container runtime network not ready: NetworkReady=false %s", n.conditions.NetworkReason)
	}
	return nil
}

// RuntimeConditions are the runtime's as last asked.
func (n *Node) RuntimeConditions() cri.Conditions {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.conditions
}

// Ready is closed once the API server was told that the node is ready.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Kick has the status written soon.
func (n *Node) Kick() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// Run watches the runtime, registers the node and reports until the context ends.
func (n *Node) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	run := func(f func(context.Context)) {
		wg.Add(1)
		go func() { defer wg.Done(); f(ctx) }()
	}
	run(n.watchRuntime)
	if n.cfg.Client != nil {
		if n.register(ctx) {
			run(n.follow)
			run(n.report)
			run(n.renewLease)
		}
	}
	wg.Wait()
	return nil
}

func (n *Node) renewLease(ctx context.Context) {
	lease.NewController(clock.RealClock{}, n.cfg.HeartbeatClient, n.cfg.Name, leaseSeconds, n.Kick, leaseEvery, n.cfg.Name, corev1.NamespaceNodeLease,
		func(l *coordinationv1.Lease) error {
			if o := n.Object(); o != nil && len(l.OwnerReferences) == 0 {
				l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: o.Name, UID: o.UID}}
			}
			return nil
		}).Run(ctx)
}

// watchRuntime asks the runtime how it is: often until it answers, then every 5 s.
func (n *Node) watchRuntime(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-n.look:
		}
		st, err := n.cfg.CRI.Status(ctx)
		if ctx.Err() != nil {
			return
		}
		name, version := "", ""
		if err == nil && n.RuntimeName() == "" {
			name, version, err = n.version(ctx)
		}
		n.mu.Lock()
		changed := (err == nil) != (n.runtimeErr == nil) || st.Runtime != n.conditions.Runtime || st.Network != n.conditions.Network || st.NetworkReason != n.conditions.NetworkReason
		n.runtimeErr = err
		if err == nil {
			n.conditions = st
		}
		if name != "" {
			n.runtime, n.info.ContainerRuntimeVersion = name, name+"://"+version
		}
		settled := err == nil && st.Runtime && st.Network
		cidr := ""
		if n.object != nil && err == nil && n.object.Spec.PodCIDR != n.podCIDR {
			cidr = n.object.Spec.PodCIDR
		}
		n.mu.Unlock()
		if cidr != "" {
			if err := n.tellCIDR(ctx, cidr); err != nil {
				n.cfg.Logger.Warn("tell the runtime the pods' network", "cidr", cidr, "error", err)
				settled = false
			}
		}
		if changed {
			n.Kick()
			if n.cfg.Changed != nil {
				n.cfg.Changed()
			}
		}
		if settled {
			timer.Reset(runtimeEvery)
		} else {
			timer.Reset(200 * time.Millisecond)
		}
	}
}

// follow keeps Object current.
func (n *Node) follow(ctx context.Context) {
	api := n.cfg.Client.CoreV1().Nodes()
	sel := fields.OneTermEqualSelector("metadata.name", n.cfg.Name).String()
	src := objects.Source{
		Client: n.cfg.Client,
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = sel
			return api.List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = sel
			return api.Watch(ctx, o)
		},
	}
	set := func(o *corev1.Node) {
		if o.Name == n.cfg.Name {
			n.saw(o)
		}
	}
	objects.Follow(ctx, n.cfg.Logger, src, &corev1.Node{}, objects.Feed[*corev1.Node]{
		Replaced: func(all []*corev1.Node) {
			for _, o := range all {
				set(o)
			}
		},
		Changed: set,
		Deleted: func(o *corev1.Node) {
			if o.Name == n.cfg.Name && ctx.Err() == nil {
				n.cfg.Logger.Warn("the node was deleted from the API; registering it again")
				n.register(ctx)
			}
		},
	})
}
