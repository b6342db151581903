// Package eviction ends pods before the node runs out of memory, disk or process
// ids, and pods that outgrow their own limits of local storage.
//
// What to evict is decided purely (rank, overLimit); pods end through the pod
// manager.
package eviction

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/skiff-k8s/skiff/kubelet/node"
	"github.com/skiff-k8s/skiff/kubelet/pods"
)

// Hard thresholds, as upstream's defaults.
const (
	every           = 10 * time.Second
	minMemory       = 100 << 20
	minDiskPercent  = 10
	minInodePercent = 5
	// pressure is reported for that long after it was seen last.
	calm = 5 * time.Minute
)

// Pods is what the manager needs of the pod manager.
type Pods interface {
	Pods() []*corev1.Pod
	Evict(uid types.UID, e pods.Eviction) bool
}

// Stats tells what is used: by the node, which costs little, and by all pods.
type Stats interface {
	Node() statsapi.NodeStats
	Summary(ctx context.Context) (*statsapi.Summary, error)
}

// Config of a Manager.
type Config struct {
	Pods   Pods
	Stats  Stats
	PodDir func(types.UID) string
	// FreeImages makes room before pods have to go.
	FreeImages func(context.Context) error
	// Changed is called when the pressure changed.
	Changed  func()
	Recorder record.EventRecorder
	Node     *corev1.ObjectReference
	Logger   *slog.Logger
}

// Manager watches the node's resources.
type Manager struct {
	cfg Config

	mu   sync.Mutex
	seen map[corev1.NodeConditionType]time.Time
}

// New makes a manager; Run runs it.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, seen: map[corev1.NodeConditionType]time.Time{}}
}

// Pressure is what the node's conditions tell.
func (m *Manager) Pressure() node.Pressure {
	m.mu.Lock()
	defer m.mu.Unlock()
	recent := func(t corev1.NodeConditionType) bool {
		at, ok := m.seen[t]
		return ok && time.Since(at) < calm
	}
	return node.Pressure{Memory: recent(corev1.NodeMemoryPressure), Disk: recent(corev1.NodeDiskPressure), PID: recent(corev1.NodePIDPressure)}
}

// Run looks every 10 s until the context ends.
func (m *Manager) Run(ctx context.Context) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			m.look(ctx)
		}
	}
}

func (m *Manager) look(ctx context.Context) {
	active := m.active()
	m.evictOverLimit(active)
	before := m.Pressure()
	signals := pressing(m.cfg.Stats.Node(), pidUse())
	for _, sig := range signals {
		m.mu.Lock()
		m.seen[sig.condition] = time.Now()
		m.mu.Unlock()
	}
	if m.Pressure() != before && m.cfg.Changed != nil {
		m.cfg.Changed()
	}
	if len(signals) == 0 {
		return
	}
	sig := signals[0]
	m.cfg.Logger.Warn("the node runs out of a resource", "resource", sig.resource, "available", sig.available.String(), "threshold", sig.threshold.String())
	if m.cfg.Recorder != nil {
		m.cfg.Recorder.Event(m.cfg.Node, corev1.EventTypeWarning, "EvictionThresholdMet", fmt.Sprintf("Attempting to reclaim %s", sig.resource))
	}
	if sig.condition == corev1.NodeDiskPressure && m.cfg.FreeImages != nil {
		if err := m.cfg.FreeImages(ctx); err != nil {
			m.cfg.Logger.Warn("free images", "error", err)
		}
		if !still(pressing(m.cfg.Stats.Node(), pidUse()), sig) {
			return
		}
	}
	s, err := m.cfg.Stats.Summary(ctx)
	if err != nil {
		m.cfg.Logger.Warn("read stats for eviction", "error", err)
		return
	}
	used := usage(s, sig.resource)
	if sig.resource == corev1.ResourceEphemeralStorage {
		for _, p := range active {
			used[p.UID] += m.diskUse(p)
		}
	}
	for _, p := range rank(active, used, sig.resource) {
		if critical(p) {
			continue
		}
		msg := fmt.Sprintf("The node was low on resource: %s. Threshold quantity: %s, available: %s. ", sig.resource, sig.threshold.String(), sig.available.String())
		for _, c := range p.Spec.Containers {
			req := c.Resources.Requests[sig.resource]
			msg += fmt.Sprintf("Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name, resource.NewQuantity(int64(used[p.UID]), resource.BinarySI).String(), req.String(), sig.resource)
		}
		if m.evict(p, msg, int64p(0)) {
			return // one at a time: see what it brings
		}
	}
}

// active are the pods that can be evicted.
func (m *Manager) active() []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range m.cfg.Pods.Pods() {
		if p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			out = append(out, p)
		}
	}
	return out
}

func (m *Manager) evict(p *corev1.Pod, msg string, grace *int64) bool {
	if m.cfg.Recorder != nil {
		m.cfg.Recorder.Event(&corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID}, corev1.EventTypeWarning, "Evicted", msg)
	}
	m.cfg.Logger.Warn("evicting pod", "pod", p.Namespace+"/"+p.Name, "message", msg)
	return m.cfg.Pods.Evict(p.UID, pods.Eviction{Reason: "Evicted", Message: msg, Grace: grace, Reclaim: true, Condition: &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: msg,
		ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second)),
	}})
}

// evictOverLimit ends pods whose volumes or files exceed their own limits.
func (m *Manager) evictOverLimit(active []*corev1.Pod) {
	for _, p := range active {
		if !limitsDisk(p) {
			continue
		}
		if msg := overLimit(p, func(volume string) uint64 {
			return treeSize(filepath.Join(m.cfg.PodDir(p.UID), "volumes", "kubernetes.io~empty-dir", volume))
		}); msg != "" {
			m.evict(p, msg, int64p(1))
		}
	}
}

func limitsDisk(p *corev1.Pod) bool {
	for i := range p.Spec.Volumes {
		if v := p.Spec.Volumes[i].EmptyDir; v != nil && v.SizeLimit != nil && !v.SizeLimit.IsZero() {
			return true
		}
	}
	for i := range p.Spec.Containers {
		if _, ok := p.Spec.Containers[i].Resources.Limits[corev1.ResourceEphemeralStorage]; ok {
			return true
		}
	}
	return false
}

// overLimit says which limit a pod exceeds; "": none.
func overLimit(p *corev1.Pod, size func(volume string) uint64) string {
	total := uint64(0)
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.EmptyDir == nil {
			continue
		}
		used := size(v.Name)
		if v.EmptyDir.Medium == corev1.StorageMediumDefault {
			total += used
		}
		if l := v.EmptyDir.SizeLimit; l != nil && l.Sign() > 0 && used > uint64(l.Value()) {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, l.String())
		}
	}
	limit, all := resource.Quantity{}, len(p.Spec.Containers) > 0
	for i := range p.Spec.Containers {
		q, ok := p.Spec.Containers[i].Resources.Limits[corev1.ResourceEphemeralStorage]
		all = all && ok
		limit.Add(q)
	}
	if all && total > uint64(limit.Value()) {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	return ""
}

func (m *Manager) diskUse(p *corev1.Pod) uint64 {
	return treeSize(filepath.Join(m.cfg.PodDir(p.UID), "volumes", "kubernetes.io~empty-dir"))
}

// treeSize is the disk space of a tree.
func treeSize(root string) uint64 {
	total := uint64(0)
	_ = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // vanished meanwhile
		}
		if fi, err := d.Info(); err == nil && !d.IsDir() {
			if st, ok := fi.Sys().(*syscall.Stat_t); ok {
				total += uint64(st.Blocks) * 512
			}
		}
		return nil
	})
	return total
}

func int64p(n int64) *int64 { return &n }

func critical(p *corev1.Pod) bool {
	if s := p.Annotations["kubernetes.io/config.source"]; s != "" && s != "api" {
		return true
	}
	return p.Spec.Priority != nil && *p.Spec.Priority >= 2000000000
}

// signal is a resource that runs out.
type signal struct {
	condition            corev1.NodeConditionType
	resource             corev1.ResourceName
	available, threshold resource.Quantity
}

func pressing(n statsapi.NodeStats, pids [2]uint64) []signal {
	var out []signal
	q := func(n uint64) resource.Quantity { return *resource.NewQuantity(int64(n), resource.BinarySI) }
	if mem := n.Memory; mem != nil && mem.AvailableBytes != nil && *mem.AvailableBytes < minMemory {
		out = append(out, signal{corev1.NodeMemoryPressure, corev1.ResourceMemory, q(*mem.AvailableBytes), q(minMemory)})
	}
	if f := n.Fs; f != nil && f.CapacityBytes != nil && f.AvailableBytes != nil {
		if min := *f.CapacityBytes * minDiskPercent / 100; *f.AvailableBytes < min {
			out = append(out, signal{corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage, q(*f.AvailableBytes), q(min)})
		} else if f.Inodes != nil && f.InodesFree != nil && *f.Inodes > 0 && *f.InodesFree < *f.Inodes*minInodePercent/100 {
			out = append(out, signal{corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage, q(*f.InodesFree), q(*f.Inodes * minInodePercent / 100)})
		}
	}
	if used, most := pids[0], pids[1]; most > 0 && used > most-most/100 {
		out = append(out, signal{corev1.NodePIDPressure, "pids", q(most - used), q(most / 100)})
	}
	return out
}

func still(list []signal, s signal) bool {
	for _, x := range list {
		if x.condition == s.condition {
			return true
		}
	}
	return false
}

// pidUse is how many tasks there are and how many there can be.
func pidUse() [2]uint64 {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return [2]uint64{}
	}
	f := strings.Fields(string(raw))
	if len(f) < 4 {
		return [2]uint64{}
	}
	_, total, _ := strings.Cut(f[3], "/")
	n, _ := strconv.ParseUint(total, 10, 64)
	raw, err = os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return [2]uint64{}
	}
	most, _ := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
	return [2]uint64{n, most}
}

func usage(s *statsapi.Summary, res corev1.ResourceName) map[types.UID]uint64 {
	out := map[types.UID]uint64{}
	for i := range s.Pods {
		p := &s.Pods[i]
		uid := types.UID(p.PodRef.UID)
		switch res {
		case corev1.ResourceMemory:
			if p.Memory != nil && p.Memory.WorkingSetBytes != nil {
				out[uid] = *p.Memory.WorkingSetBytes
			}
		case corev1.ResourceEphemeralStorage:
			for _, c := range p.Containers {
				if c.Rootfs != nil && c.Rootfs.UsedBytes != nil {
					out[uid] += *c.Rootfs.UsedBytes
				}
			}
		}
	}
	return out
}

// rank orders pods by who goes first: those above their requests, then lower
// priority, then the most above the request.
func rank(list []*corev1.Pod, used map[types.UID]uint64, res corev1.ResourceName) []*corev1.Pod {
	over := func(p *corev1.Pod) int64 {
		var req int64
		for i := range p.Spec.Containers {
			q := p.Spec.Containers[i].Resources.Requests[res]
			req += q.Value()
		}
		return int64(used[p.UID]) - req
	}
	prio := func(p *corev1.Pod) int32 {
		if p.Spec.Priority == nil {
			return 0
		}
		return *p.Spec.Priority
	}
	out := append([]*corev1.Pod(nil), list...)
	sort.SliceStable(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if x, y := over(a) > 0, over(b) > 0; x != y {
			return x
		}
		if prio(a) != prio(b) {
			return prio(a) < prio(b)
		}
		return over(a) > over(b)
	})
	return out
}
