package tainteviction

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
)

func taint(key string) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
}

func tolerates(key string, seconds ...int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}

func TestBearable(t *testing.T) {
	const ever = -1
	for _, tt := range []struct {
		name        string
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		want        time.Duration
	}{
		{"no taint", nil, nil, ever},
		{"no toleration", []corev1.Taint{taint("a")}, nil, 0},
		{"another's toleration", []corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("b")}, 0},
		{"for ever", []corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("a")}, ever},
		{"for a while", []corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("a", 30)}, 30 * time.Second},
		{"for nothing", []corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("a", 0)}, 0},
		{"for less than nothing", []corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("a", -5)}, 0},
		{"the shortest of several taints", []corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{tolerates("a", 30), tolerates("b", 10)}, 10 * time.Second},
		{"one for ever, one for a while", []corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{tolerates("a"), tolerates("b", 10)}, 10 * time.Second},
		{"one of two not at all", []corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{tolerates("a")}, 0},
		{"the first of several tolerations", []corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("a"), tolerates("a", 10)}, ever},
		{"whichever is the longer", []corev1.Taint{taint("a")}, []corev1.Toleration{tolerates("a", 40), tolerates("a", 10)}, 40 * time.Second},
		{"everything", []corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, ever},
	} {
		if got := Bearable(tt.taints, tt.tolerations); got != tt.want && (tt.want != ever || got >= 0) {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestEviction: pods go when they can bear no more, and stay when the taint goes before.
func TestEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := func(name string, tolerations ...corev1.Toleration) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "n", Tolerations: tolerations}}
		}
		pods := []*corev1.Pod{pod("none"), pod("short", tolerates("a", 30)), pod("long", tolerates("a", 300)), pod("ever", tolerates("a")), pod("done")}
		pods[4].Status.Phase = corev1.PodSucceeded
		e := controllertest.New(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, pods[0], pods[1], pods[2], pods[3], pods[4])
		c, err := New(e.Config)
		if err != nil {
			t.Fatal(err)
		}
		e.Start(c)
		names := func() string {
			var all []string
			for _, p := range e.Pods("ns", "") {
				all = append(all, p.Name)
			}
			return strings.Join(all, " ")
		}
		set := func(taints ...corev1.Taint) {
			t.Helper()
			n, err := e.Client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			n = n.DeepCopy()
			n.Spec.Taints = taints
			if _, err := e.Client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			e.Settle()
		}
		if got := names(); got != "done ever long none short" {
			t.Fatalf("pods %s", got)
		}
		set(corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoSchedule})
		if got := names(); got != "done ever long none short" {
			t.Fatalf("NoSchedule evicts: %s are left", got)
		}
		now := metav1.NewTime(time.Now())
		set(corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoExecute, TimeAdded: &now})
		if got := names(); got != "done ever long short" {
			t.Fatalf("at once: %s", got)
		}
		e.After(28 * time.Second)
		if got := names(); got != "done ever long short" {
			t.Fatalf("too early: %s", got)
		}
		e.After(3 * time.Second)
		if got := names(); got != "done ever long" {
			t.Fatalf("after 30 s: %s", got)
		}
		set()
		e.After(time.Hour)
		if got := names(); got != "done ever long" {
			t.Fatalf("the taint is gone: %s", got)
		}
		if events := strings.Join(e.DrainEvents(), "\n"); !strings.Contains(events, "Cancelling deletion of Pod ns/long") || !strings.Contains(events, "Marking for deletion Pod ns/short") {
			t.Errorf("events %s", events)
		}
		// It begins anew with the next taint.
		now = metav1.NewTime(time.Now())
		set(corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoExecute, TimeAdded: &now})
		e.After(290 * time.Second)
		if got := names(); got != "done ever long" {
			t.Fatalf("too early: %s", got)
		}
		e.After(20 * time.Second)
		if got := names(); got != "done ever" {
			t.Fatalf("after 300 s: %s", got)
		}
	})
}

// TestRestart: what a pod has borne before this controller began counts.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		added, started := metav1.NewTime(time.Now().Add(-20*time.Second)), metav1.NewTime(time.Now().Add(-time.Hour))
		old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "old", UID: "o"}, Spec: corev1.PodSpec{NodeName: "n", Tolerations: []corev1.Toleration{tolerates("a", 30)}}, Status: corev1.PodStatus{StartTime: &started}}
		young := old.DeepCopy()
		young.Name, young.UID, young.Status.StartTime = "young", "y", ptr.To(metav1.Now())
		e := controllertest.New(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}}}}, old, young)
		c, err := New(e.Config)
		if err != nil {
			t.Fatal(err)
		}
		e.Start(c)
		e.After(12 * time.Second)
		if pods := e.Pods("ns", ""); len(pods) != 1 || pods[0].Name != "young" {
			t.Errorf("%d pods after 13 s", len(pods))
		}
		e.After(20 * time.Second)
		if pods := e.Pods("ns", ""); len(pods) != 0 {
			t.Errorf("%d pods after 33 s", len(pods))
		}
	})
}
