// Package node is the kubelet's own object in the API: it registers the node,
// renews its Lease, reports capacity and conditions, and follows what others write
// to it. It knows nothing of single pods.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/apimachinery/lease"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
	// Capacity overrides what the machine has, for a node that is a share of one.
	Capacity corev1.ResourceList
	// Reserved is taken off the capacity.
	Reserved corev1.ResourceList
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
	cfg      Config
	capacity corev1.ResourceList
	alloc    corev1.ResourceList
	info     corev1.NodeSystemInfo
	kick     chan struct{}
	look     chan struct{} // at the runtime
	ready    chan struct{}
	once     sync.Once

	mu         sync.Mutex
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
	if n.capacity, err = capacity(cfg); err != nil {
		return nil, err
	}
	n.alloc = allocatable(n.capacity, cfg.Reserved)
	n.info = systemInfo(cfg.Version)
	return n, nil
}

// Capacity and Allocatable of the node; callers must not change them.
func (n *Node) Capacity() corev1.ResourceList    { return n.capacity }
func (n *Node) Allocatable() corev1.ResourceList { return n.alloc }

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

// register creates the node or takes over the one that is there; false: the
// context ended first.
func (n *Node) register(ctx context.Context) bool {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 7*time.Second) {
		err := n.tryRegister(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		n.cfg.Logger.Warn("register node", "error", err, "retry", wait)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false
		}
	}
}

func (n *Node) tryRegister(ctx context.Context) error {
	api := n.cfg.Client.CoreV1().Nodes()
	want := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.cfg.Name, Labels: defaultLabels(n.cfg.Hostname), Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
		Spec:       corev1.NodeSpec{Taints: n.cfg.Taints, Unschedulable: n.cfg.Unschedulable, ProviderID: n.cfg.ProviderID},
	}
	for k, v := range n.cfg.Labels {
		want.Labels[k] = v
	}
	want.Status = n.status(ctx, &corev1.NodeStatus{})
	got, err := api.Create(ctx, want, metav1.CreateOptions{})
	if err == nil {
		n.saw(got)
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create node %s: %w", n.cfg.Name, err)
	}
	got, err = api.Get(ctx, n.cfg.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", n.cfg.Name, err)
	}
	n.saw(got)
	labels := map[string]string{}
	for k, v := range want.Labels {
		if got.Labels[k] != v {
			labels[k] = v
		}
	}
	if len(labels) == 0 {
		return nil
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	got, err = api.Patch(ctx, n.cfg.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("reconcile labels of node %s: %w", n.cfg.Name, err)
	}
	n.saw(got)
	return nil
}

func (n *Node) saw(o *corev1.Node) {
	n.mu.Lock()
	n.object = o
	news := o.Spec.PodCIDR != "" && o.Spec.PodCIDR != n.podCIDR
	n.mu.Unlock()
	if news {
		select {
		case n.look <- struct{}{}:
		default:
		}
	}
}

// tellCIDR hands the range of pod addresses that the node was given to the runtime.
func (n *Node) tellCIDR(ctx context.Context, cidr string) error {
	_, err := n.cfg.CRI.Runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}}})
	if err != nil && !cri.Unimplemented(err) {
		return err
	}
	n.mu.Lock()
	n.podCIDR = cidr
	n.mu.Unlock()
	return nil
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

// report writes the status.
func (n *Node) report(ctx context.Context) {
	failures := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.kick:
		case <-timer.C:
		}
		if err := n.write(ctx); err != nil && ctx.Err() == nil {
			n.cfg.Logger.Warn("write node status", "error", err)
			failures++
			timer.Reset(min(200*time.Millisecond<<min(failures, 6), statusEvery))
			continue
		}
		failures = 0
		timer.Reset(statusEvery)
	}
}

func (n *Node) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	old := n.Object()
	if old == nil {
		return fmt.Errorf("the node is not registered yet")
	}
	next := n.status(ctx, &old.Status)
	n.mu.Lock()
	recent := time.Since(n.lastWrite) < reportEvery
	n.mu.Unlock()
	if recent && !changed(&old.Status, &next) {
		return nil
	}
	before, err := json.Marshal(&corev1.Node{Status: old.Status})
	if err != nil {
		return err
	}
	after, err := json.Marshal(&corev1.Node{Status: next})
	if err != nil {
		return err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return fmt.Errorf("compute patch of node status: %w", err)
	}
	// Addresses of one type differ in the address only: the list's merge key would
	// fold them.
	if patch, err = replaceAddresses(patch, next.Addresses); err != nil {
		return err
	}
	got, err := n.cfg.HeartbeatClient.CoreV1().Nodes().Patch(ctx, n.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		n.register(ctx)
		return fmt.Errorf("patch status of node %s: %w", n.cfg.Name, err)
	}
	if err != nil {
		return fmt.Errorf("patch status of node %s: %w", n.cfg.Name, err)
	}
	wasReady, isReady := isTrue(&old.Status), isTrue(&next)
	n.mu.Lock()
	n.lastWrite, n.object = time.Now(), got
	n.mu.Unlock()
	if isReady {
		n.once.Do(func() { close(n.ready) })
	}
	if wasReady != isReady && n.cfg.Recorder != nil {
		reason := "NodeNotReady"
		if isReady {
			reason = "NodeReady"
		}
		n.cfg.Recorder.Event(n.Ref(), corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", n.cfg.Name, reason))
	}
	return nil
}

// Ref refers to the node in events.
func (n *Node) Ref() *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.cfg.Name, UID: types.UID(n.cfg.Name)}
}

func isTrue(s *corev1.NodeStatus) bool {
	c := condition(s, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// changed compares statuses but for heartbeat times.
func changed(a, b *corev1.NodeStatus) bool {
	x, y := a.DeepCopy(), b.DeepCopy()
	for _, s := range []*corev1.NodeStatus{x, y} {
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	}
	return !apiequality.Semantic.DeepEqual(x, y)
}

// replaceAddresses makes a status patch replace the list of addresses as a whole.
func replaceAddresses(patch []byte, addrs []corev1.NodeAddress) ([]byte, error) {
	var m map[string]any
	if err := json.Unmarshal(patch, &m); err != nil {
		return nil, fmt.Errorf("read patch of node status: %w", err)
	}
	st, ok := m["status"].(map[string]any)
	if !ok {
		return patch, nil
	}
	if _, ok := st["addresses"]; !ok {
		return patch, nil
	}
	list := []any{}
	for _, a := range addrs {
		list = append(list, map[string]any{"type": a.Type, "address": a.Address})
	}
	st["addresses"] = append(list, map[string]any{"$patch": "replace"})
	delete(st, "$setElementOrder/addresses")
	return json.Marshal(m)
}
