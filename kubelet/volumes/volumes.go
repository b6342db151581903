// Package volumes prepares the volumes of pods below the kubelet's directory and
// says which host paths containers mount: emptyDir, configMap, secret, projected,
// downwardAPI, hostPath, and persistent volumes that are paths of the node.
//
// Set-up is level-driven and idempotent: calling it again refreshes what has
// changed, and nothing needs to be remembered across restarts of the kubelet.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/host/mount"
	"github.com/skiff-k8s/skiff/kubelet/environ"
)

// Objects reads ConfigMaps and Secrets of registered pods.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Config of a Manager.
type Config struct {
	// RootDir holds pods/<uid>/volumes and volume-subpaths.
	RootDir string
	Mounts  mount.Table
	Objects Objects
	// Client asks for service account tokens, claims and persistent volumes; nil
	// (stand-alone kubelet): those volumes fail.
	Client kubernetes.Interface
	// Downward answers downward API items of a pod.
	Downward func() environ.Downward
	Clock    clock.PassiveClock
	Logger   *slog.Logger
}

// Manager is safe for concurrent use; calls for one pod must not overlap.
type Manager struct {
	cfg          Config
	tokens       *tokens
	certificates *certificates

	mu   sync.Mutex
	pods map[types.UID]map[string]*state
}

// state is what is known of a volume that is set up.
type state struct {
	path string
	// readOnly volumes are written by the kubelet only.
	readOnly bool
	digest   uint64 // of the payload last written
	image    bool
}

// New makes a manager.
func New(cfg Config) *Manager {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	return &Manager{cfg: cfg, tokens: newTokens(cfg.Client, cfg.Clock), certificates: newCertificates(cfg.Client, cfg.Clock), pods: map[types.UID]map[string]*state{}}
}

// Error says which volume failed.
type Error struct {
	Volume string
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// PodDir is where everything of a pod is kept.
func (m *Manager) PodDir(uid types.UID) string {
	return filepath.Join(m.cfg.RootDir, "pods", string(uid))
}

func (m *Manager) volumeDir(uid types.UID, plugin, name string) string {
	return filepath.Join(m.PodDir(uid), "volumes", "kubernetes.io~"+plugin, name)
}

// Setup makes all volumes of the pod there and up to date. refresh is when it
// should be called again at the latest (zero: never by itself). Errors are of type
// *Error, joined.
func (m *Manager) Setup(ctx context.Context, pod *corev1.Pod) (refresh time.Time, err error) {
	m.mu.Lock()
	known := m.pods[pod.UID]
	if known == nil {
		known = map[string]*state{}
		m.pods[pod.UID] = known
	}
	complete := len(known) >= len(pod.Spec.Volumes)
	m.mu.Unlock()
	var mounted map[string]bool
	if !complete {
		if mounted, err = m.mountsOf(pod.UID); err != nil {
			return time.Time{}, err
		}
	}
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		st, next, err := m.setup(ctx, pod, v, known[v.Name], mounted)
		if err != nil {
			errs = append(errs, &Error{v.Name, err})
			continue
		}
		m.mu.Lock()
		known[v.Name] = st
		m.mu.Unlock()
		if !next.IsZero() && (refresh.IsZero() || next.Before(refresh)) {
			refresh = next
		}
	}
	return refresh, errors.Join(errs...)
}

func (m *Manager) mountsOf(uid types.UID) (map[string]bool, error) {
	points, err := m.cfg.Mounts.Under(m.PodDir(uid))
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, p := range points {
		out[p] = true
	}
	return out, nil
}

func (m *Manager) setup(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, old *state, mounted map[string]bool) (*state, time.Time, error) {
	var never time.Time
	switch {
	case v.EmptyDir != nil:
		st, err := m.emptyDir(pod, v, old, mounted)
		return st, never, err
	case v.HostPath != nil:
		if old != nil {
			return old, never, nil
		}
		if err := checkHostPath(v.HostPath.Path, v.HostPath.Type); err != nil {
			return nil, never, err
		}
		return &state{path: v.HostPath.Path}, never, nil
	case v.Image != nil:
		return &state{image: true, readOnly: true}, never, nil
	case v.PersistentVolumeClaim != nil:
		if old != nil {
			return old, never, nil
		}
		st, err := m.persistent(ctx, pod, v.PersistentVolumeClaim.ClaimName)
		return st, never, err
	case v.Ephemeral != nil:
		if old != nil {
			return old, never, nil
		}
		st, err := m.persistent(ctx, pod, pod.Name+"-"+v.Name)
		return st, never, err
	}
	plugin, payload, next, err := m.payload(ctx, pod, v)
	if err != nil {
		return nil, never, err
	}
	st, err := m.write(pod, v.Name, plugin, payload, old, mounted)
	return st, next, err
}

func (m *Manager) emptyDir(pod *corev1.Pod, v *corev1.Volume, old *state, mounted map[string]bool) (*state, error) {
	if old != nil {
		return old, nil
	}
	dir := m.volumeDir(pod.UID, "empty-dir", v.Name)
	_, statErr := os.Stat(dir)
	fresh := errors.Is(statErr, fs.ErrNotExist)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make volume directory: %w", err)
	}
	switch v.EmptyDir.Medium {
	case corev1.StorageMediumDefault:
	case corev1.StorageMediumMemory:
		if !mounted[dir] {
			if err := m.cfg.Mounts.Tmpfs(dir, m.memorySize(pod, v.EmptyDir)); err != nil {
				return nil, err
			}
			fresh = true
		}
	default:
		return nil, fmt.Errorf("emptyDir medium %q is not supported on this node: use \"\" or Memory", v.EmptyDir.Medium)
	}
	if fresh {
		// Containers of any user write here; the umask must not decide.
		if err := os.Chmod(dir, 0o777); err != nil {
			return nil, fmt.Errorf("open volume to all users: %w", err)
		}
		if sc := pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
			if err := setGroup(dir, *sc.FSGroup, false, sc.FSGroupChangePolicy); err != nil {
				return nil, err
			}
		}
	}
	return &state{path: dir}, nil
}

// memorySize is the least of the volume's limit, the pod's memory limit and what
// the node can allocate.
func (m *Manager) memorySize(pod *corev1.Pod, v *corev1.EmptyDirVolumeSource) int64 {
	var size int64
	if m.cfg.Downward != nil {
		if q, ok := m.cfg.Downward().Allocatable[corev1.ResourceMemory]; ok {
			size = q.Value()
		}
	}
	limit, all := int64(0), len(pod.Spec.Containers) > 0
	for i := range pod.Spec.Containers {
		q, ok := pod.Spec.Containers[i].Resources.Limits[corev1.ResourceMemory]
		all = all && ok
		limit += q.Value()
	}
	if all && limit > 0 && (size == 0 || limit < size) {
		size = limit
	}
	if v.SizeLimit != nil && v.SizeLimit.Value() > 0 && (size == 0 || v.SizeLimit.Value() < size) {
		size = v.SizeLimit.Value()
	}
	return size
}

// write puts a payload in place. Like upstream, only ConfigMaps are on disk: the
// rest may be secret and lives in memory.
func (m *Manager) write(pod *corev1.Pod, name, plugin string, payload map[string]File, old *state, mounted map[string]bool) (*state, error) {
	digest := digestOf(payload)
	if old != nil && old.digest == digest {
		return old, nil
	}
	dir := m.volumeDir(pod.UID, plugin, name)
	if old == nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make volume directory: %w", err)
		}
		if plugin != "configmap" && !mounted[dir] {
			if err := m.cfg.Mounts.Tmpfs(dir, 0); err != nil {
				return nil, err
			}
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			return nil, fmt.Errorf("open volume to all users: %w", err)
		}
	}
	var own func(string) error
	if sc := pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
		own = func(data string) error {
			if err := os.Lchown(dir, -1, int(*sc.FSGroup)); err != nil {
				return err
			}
			if err := os.Chmod(dir, fs.ModeSetgid|0o777); err != nil {
				return err
			}
			return setGroup(data, *sc.FSGroup, true, nil)
		}
	}
	if _, err := writeAtomically(dir, payload, own); err != nil {
		return nil, err
	}
	return &state{path: dir, readOnly: true, digest: digest}, nil
}

// Path is where a volume of a pod that is set up is on the host.
func (m *Manager) Path(uid types.UID, name string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := m.pods[uid][name]
	if st == nil {
		return "", fmt.Errorf("volume %q is not set up", name)
	}
	return st.path, nil
}

// Teardown takes away everything of a pod below the kubelet's directory.
func (m *Manager) Teardown(uid types.UID) error {
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	m.tokens.forget(uid)
	m.certificates.forget(uid)
	dir := m.PodDir(uid)
	points, err := m.cfg.Mounts.Under(dir)
	if err != nil {
		return err
	}
	for _, p := range points {
		if err := m.cfg.Mounts.Unmount(p); err != nil {
			return err
		}
	}
	// Never delete through a mount: what is behind it is not ours.
	if points, err = m.cfg.Mounts.Under(dir); err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("volumes of pod %s are still mounted: %s", uid, strings.Join(points, ", "))
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove directory of pod %s: %w", uid, err)
	}
	return nil
}

// Pods lists the pods that have a directory.
func (m *Manager) Pods() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(m.cfg.RootDir, "pods"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pod directories: %w", err)
	}
	var out []types.UID
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, types.UID(e.Name()))
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out, nil
}
