package ownership

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestSortForDeletion(t *testing.T) {
	now := time.Now()
	pod := func(name string, change func(p *corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-1000 * time.Hour))},
			Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-900 * time.Hour))}}}}
		change(p)
		return p
	}
	want := []*corev1.Pod{
		pod("unassigned", func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending }),
		pod("pending", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		pod("unready", func(p *corev1.Pod) { p.Status.Conditions = nil }),
		pod("cheap", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "-5"} }),
		pod("crowded", func(p *corev1.Pod) { p.Spec.NodeName = "crowd" }),
		pod("just-ready", func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Minute)) }),
		pod("restarted", func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}} }),
		pod("young", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) }),
		pod("plain", func(*corev1.Pod) {}),
		pod("dear", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "10"} }),
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	SortForDeletion(got, map[string]int{"crowd": 4, "n": 1}, now)
	names := func(pods []*corev1.Pod) string {
		var all []string
		for _, p := range pods {
			all = append(all, p.Name)
		}
		return strings.Join(all, " ")
	}
	if names(got) != names(want) {
		t.Errorf("order\n%s, want\n%s", names(got), names(want))
	}
}

func TestSlowStart(t *testing.T) {
	var tries atomic.Int32
	if n, err := SlowStart(100, func(int) error { tries.Add(1); return errors.New("quota") }); n != 0 || err == nil || tries.Load() != 1 {
		t.Errorf("%d made, %v, after %d tries", n, err, tries.Load())
	}
	seen := make([]atomic.Int32, 100)
	if n, err := SlowStart(100, func(i int) error { seen[i].Add(1); return nil }); n != 100 || err != nil {
		t.Errorf("%d made, %v", n, err)
	}
	for i := range seen {
		if seen[i].Load() != 1 {
			t.Errorf("%d was tried %d times", i, seen[i].Load())
		}
	}
	if n, err := SlowStart(7, func(i int) error {
		if i == 2 {
			return errors.New("once")
		}
		return nil
	}); n != 2 || err == nil {
		t.Errorf("%d made, %v", n, err)
	}
}

// TestTemplateHash holds the hash to what upstream's controllers compute: changing it
// would roll out every Deployment.
func TestTemplateHash(t *testing.T) {
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}}},
	}
	a, b := TemplateHash(template, nil), TemplateHash(template, ptr.To[int32](1))
	if a == b || a != TemplateHash(template.DeepCopy(), nil) {
		t.Errorf("hashes %s and %s", a, b)
	}
	if a != "79bdf846cf" || b != "55b6c58994" {
		t.Errorf("hashes %s and %s have changed", a, b)
	}
	for _, h := range []string{a, b} {
		if h == "" || strings.Trim(h, "bcdfghjklmnpqrstvwxz2456789") != "" {
			t.Errorf("hash %q has letters that may make words", h)
		}
	}
}
