// Package pods makes the pods of a node run: it takes them from the API server
// and from manifest files, decides what each needs (computeActions, makeStatus:
// pure), carries it out over CRI and reports back.
//
// Every pod has a worker, one goroutine that does everything to this pod, one step
// after the other, woken by whatever may matter. Steps are level-driven: they
// compare what should be with what the runtime has, so a kubelet that was killed
// at any point goes on where it was. Nothing here polls; the one relist a minute
// is a safety net under the runtime's events.
package pods

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/skiff-k8s/skiff/host/cgroup"
	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
	"github.com/skiff-k8s/skiff/kubelet/images"
	"github.com/skiff-k8s/skiff/kubelet/objects"
	"github.com/skiff-k8s/skiff/kubelet/probes"
	"github.com/skiff-k8s/skiff/kubelet/volumes"
)

// Config of a Manager. All fields are required unless they say otherwise.
type Config struct {
	NodeName string
	// Client is nil in a stand-alone kubelet, which runs manifests only.
	Client   kubernetes.Interface
	CRI      *cri.Client
	Images   *images.Puller
	Volumes  *volumes.Manager
	Objects  *objects.Cache
	Services *objects.Services
	// Cgroups holds the groups of pods; nil: none are made.
	Cgroups *cgroup.Tree
	// CgroupParent of kubepods; empty: the root.
	CgroupParent string
	// PodPidsLimit: processes per pod; 0: no limit.
	PodPidsLimit int64
	// CRINode are the node's current facts for CRI configurations.
	CRINode func() *criconfig.Node
	// HostIPs of the node, primary first.
	HostIPs func() []string
	// Node is the node's API object as last seen; nil while unknown.
	Node func() *corev1.Node
	// Allocatable is what pods may request in all.
	Allocatable func() corev1.ResourceList
	// NetworkReady says why pods with a network of their own can't start; nil: they can.
	NetworkReady func() error
	// Runtime is how the runtime was when last asked; nil: ready, and all can be had.
	Runtime func() cri.Conditions
	// AppArmor is why the host enforces no AppArmor profiles; nil: it does.
	AppArmor error
	// RuntimeName is the scheme of container ids in the API.
	RuntimeName func() string
	// Recorder takes the events of pods.
	Recorder record.EventRecorder
	// ContainerLogsDir gets a link to every container's log; empty: none are made.
	PodLogsDir, ContainerLogsDir string
	// ManifestDir, a directory or file, and ManifestURL hold static pods; empty: none.
	ManifestDir, ManifestURL string
	ManifestURLHeader        http.Header
	// Dead says which containers that have ended are kept.
	Dead   DeadPolicy
	Logger *slog.Logger
}

// Manager runs all pods of the node.
type Manager struct {
	cfg    Config
	probes *probes.Manager
	writer *writer
	log    *slog.Logger

	mu       sync.Mutex
	ctx      context.Context // of Run; nil before
	workers  map[types.UID]*worker
	api      map[types.UID]*corev1.Pod // as the API server has them, mirrors included
	static   map[types.UID]*corev1.Pod
	apiReady bool
	fileDone bool // all sources of static pods were read
	sources  map[string]bool
	failed   map[string]map[string]string // manifests that can't be used, by source
	admitted map[types.UID]*corev1.Pod
	wg       sync.WaitGroup

	users  userTable
	relist chan struct{}
	seen   map[types.UID]string // fingerprint of what the runtime had
}

// New makes a manager; Run runs it.
func New(cfg Config) (*Manager, error) {
	switch {
	case cfg.NodeName == "":
		return nil, fmt.Errorf("pods: node name is empty")
	case cfg.CRI == nil || cfg.Images == nil || cfg.Volumes == nil || cfg.Objects == nil || cfg.Services == nil:
		return nil, fmt.Errorf("pods: CRI, Images, Volumes, Objects and Services are required")
	}
	m := &Manager{
		cfg: cfg, log: cfg.Logger, workers: map[types.UID]*worker{}, api: map[types.UID]*corev1.Pod{}, static: map[types.UID]*corev1.Pod{},
		admitted: map[types.UID]*corev1.Pod{}, relist: make(chan struct{}, 1), seen: map[types.UID]string{},
	}
	m.probes = probes.New(probes.Config{
		Run:     probes.Runner(m.exec),
		Changed: m.Wake,
		Unhealthy: func(pod *corev1.Pod, c *corev1.Container, message string) {
			m.containerEvent(pod, c, corev1.EventTypeWarning, "Unhealthy", message)
		},
		Logger: cfg.Logger,
	})
	m.writer = newWriter(cfg.Client, cfg.Logger, m.apiPod)
	return m, nil
}

// Run runs pods until the context ends. Containers are left as they are: a later
// kubelet takes them over.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	var wg sync.WaitGroup
	run := func(f func(context.Context)) {
		wg.Add(1)
		go func() { defer wg.Done(); f(ctx) }()
	}
	run(m.probes.Run)
	run(m.writer.run)
	run(m.watchRuntime)
	run(m.watchManifests)
	run(m.watchURL)
	if m.cfg.Client != nil {
		run(m.cfg.Services.Run)
		run(m.watchAPI)
	} else {
		m.mu.Lock()
		m.apiReady = true
		m.mu.Unlock()
	}
	<-ctx.Done()
	wg.Wait()
	m.wg.Wait()
	return nil
}

// Wake makes the pod's worker look at it soon.
func (m *Manager) Wake(uid types.UID) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w != nil {
		w.kick()
	}
}

// WakeAll makes all workers look.
func (m *Manager) WakeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.workers {
		w.kick()
	}
}

// ObjectChanged wakes the pods that refer to a ConfigMap or Secret.
func (m *Manager) ObjectChanged(r objects.Ref) {
	for _, uid := range m.cfg.Objects.Users(r) {
		m.Wake(uid)
	}
}

// Pods are the pods that this node should run, with their latest statuses.
func (m *Manager) Pods() []*corev1.Pod {
	m.mu.Lock()
	ws := make([]*worker, 0, len(m.workers))
	for _, w := range m.workers {
		ws = append(ws, w)
	}
	m.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range ws {
		if p := w.view(); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// Find returns a pod by name (uid may narrow it down), with its latest status.
// Mirror pods lead to their static pods.
func (m *Manager) Find(namespace, name string, uid types.UID) *corev1.Pod {
	var found *corev1.Pod
	for _, p := range m.Pods() {
		if p.Namespace != namespace || p.Name != name {
			continue
		}
		if uid != "" && p.UID != uid && m.mirrorOf(p) != uid {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&p.CreationTimestamp) {
			found = p
		}
	}
	return found
}

// Eviction is a local decision to end a pod for good.
type Eviction struct {
	Reason, Message string
	// Grace in seconds; nil: the pod's own.
	Grace *int64
	// Condition, if any, tells controllers that this was a disruption.
	Condition *corev1.PodCondition

	// Reclaim: what its containers and logs take is freed at once.
	Reclaim bool

	refused bool // it never ran
}

// Evict ends a pod; it will be Failed. It tells whether the pod was there.
func (m *Manager) Evict(uid types.UID, e Eviction) bool {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w == nil {
		return false
	}
	w.evict(e)
	return true
}

func (m *Manager) apiPod(pod *corev1.Pod) *corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !isStatic(pod) {
		return m.api[pod.UID]
	}
	for _, p := range m.api {
		if p.Namespace == pod.Namespace && p.Name == pod.Name && p.Annotations[mirrorAnnotation] != "" {
			return p
		}
	}
	return nil
}

func (m *Manager) mirrorOf(pod *corev1.Pod) types.UID {
	if isStatic(pod) {
		if p := m.apiPod(pod); p != nil {
			return p.UID
		}
	}
	return ""
}

// worker makes sure that the pod has one and tells it of the pod. Must hold mu.
func (m *Manager) worker(pod *corev1.Pod) *worker {
	w := m.workers[pod.UID]
	if w == nil {
		w = newWorker(m, pod)
		m.workers[pod.UID] = w
		ctx := m.ctx
		m.wg.Add(1)
		go func() {
			defer m.wg.Done()
			w.run(ctx)
		}()
	}
	return w
}

// finished forgets a worker whose pod is no more.
func (m *Manager) finished(w *worker) {
	m.mu.Lock()
	if m.workers[w.uid] == w {
		delete(m.workers, w.uid)
		delete(m.admitted, w.uid)
		if m.ctx.Err() == nil {
			m.startStatic()
		}
	}
	m.mu.Unlock()
	m.requestRelist()
}

func (m *Manager) requestRelist() {
	select {
	case m.relist <- struct{}{}:
	default:
	}
}

const relistEvery = time.Minute
