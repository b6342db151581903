package eviction

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/kubelet/pods"
)

type world struct {
	pods    []*corev1.Pod
	evicted map[types.UID]pods.Eviction
	summary statsapi.Summary
}

func (w *world) Pods() []*corev1.Pod { return w.pods }
func (w *world) Evict(uid types.UID, e pods.Eviction) bool {
	w.evicted[uid] = e
	return true
}
func (w *world) Node() statsapi.NodeStats                           { return w.summary.Node }
func (w *world) Summary(context.Context) (*statsapi.Summary, error) { return &w.summary, nil }

func pod(name string, prio int32, request string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Priority: &prio, Containers: []corev1.Container{{Name: "c"}}}}
	if request != "" {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)}
	}
	return p
}

func TestRank(t *testing.T) {
	list := []*corev1.Pod{pod("within", 0, "100Mi"), pod("important", 10, ""), pod("over-little", 0, "10Mi"), pod("over-much", 0, "")}
	used := map[types.UID]uint64{"within": 50 << 20, "important": 500 << 20, "over-little": 20 << 20, "over-much": 60 << 20}
	var got []string
	for _, p := range rank(list, used, corev1.ResourceMemory) {
		got = append(got, p.Name)
	}
	if want := "over-much over-little important within"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

func TestMemoryPressure(t *testing.T) {
	avail := uint64(50 << 20)
	w := &world{evicted: map[types.UID]pods.Eviction{}, pods: []*corev1.Pod{pod("a", 0, ""), pod("critical", 2000001000, "")}}
	w.summary.Node.Memory = &statsapi.MemoryStats{AvailableBytes: &avail}
	for _, u := range []struct {
		uid  string
		used uint64
	}{{"a", 10}, {"critical", 1 << 30}} {
		w.summary.Pods = append(w.summary.Pods, statsapi.PodStats{PodRef: statsapi.PodReference{UID: u.uid}, Memory: &statsapi.MemoryStats{WorkingSetBytes: &u.used}})
	}
	told := 0
	m := New(Config{Pods: w, Stats: w, PodDir: func(types.UID) string { return t.TempDir() }, Changed: func() { told++ }, Logger: slog.New(slog.DiscardHandler)})
	m.look(context.Background())
	e, ok := w.evicted["a"]
	if !ok || len(w.evicted) != 1 {
		t.Fatalf("evicted %v", w.evicted)
	}
	if e.Reason != "Evicted" || !strings.HasPrefix(e.Message, "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ") || e.Condition.Type != corev1.DisruptionTarget {
		t.Errorf("%+v", e)
	}
	if !m.Pressure().Memory || m.Pressure().Disk || told != 1 {
		t.Errorf("pressure %+v, told %d times", m.Pressure(), told)
	}
}

func TestOverLimit(t *testing.T) {
	p := pod("a", 0, "")
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Mi"))}}}}
	if msg := overLimit(p, func(string) uint64 { return 1 << 20 }); msg != "" {
		t.Errorf("at the limit: %s", msg)
	}
	if msg := overLimit(p, func(string) uint64 { return 1<<20 + 1 }); msg != `Usage of EmptyDir volume "v" exceeds the limit "1Mi". ` {
		t.Errorf("over the limit: %s", msg)
	}
	p.Spec.Volumes[0].EmptyDir.SizeLimit = nil
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}
	if msg := overLimit(p, func(string) uint64 { return 2 << 20 }); !strings.HasPrefix(msg, "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi") {
		t.Errorf("over the containers' limit: %s", msg)
	}
}

func TestEmptyDirIsMeasured(t *testing.T) {
	dir := t.TempDir()
	vol := filepath.Join(dir, "volumes", "kubernetes.io~empty-dir", "v")
	if err := os.MkdirAll(vol, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(vol, "f"), make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	p := pod("a", 0, "")
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Mi"))}}}}
	w := &world{evicted: map[types.UID]pods.Eviction{}, pods: []*corev1.Pod{p}}
	m := New(Config{Pods: w, Stats: w, PodDir: func(types.UID) string { return dir }, Logger: slog.New(slog.DiscardHandler)})
	m.look(context.Background())
	if len(w.evicted) != 1 {
		t.Error("a volume above its limit was not noticed")
	}
}
