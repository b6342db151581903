package daemonset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func newSet(change ...func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
	s := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "ds", Namespace: "ns", UID: "ds"},
		Spec: appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromInt32(1)), MaxSurge: ptr.To(intstr.FromInt32(0))}}}}
	for _, c := range change {
		c(s)
	}
	return s
}

// scene reads "a b:cordoned c:full" for nodes and "a:new b:old,sick" for pods.
func scene(nodeText, podText string) (nodes []*corev1.Node, pods []*corev1.Pod) {
	for _, f := range strings.Fields(nodeText) {
		name, marks, _ := strings.Cut(f, ":")
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node": name}}}
		for _, m := range strings.Split(marks, ",") {
			switch m {
			case "cordoned":
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
			case "dead":
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})
			case "special":
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "special", Effect: corev1.TaintEffectNoSchedule})
			case "drain":
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "drain", Effect: corev1.TaintEffectNoExecute})
			}
		}
		nodes = append(nodes, n)
	}
	for i, f := range strings.Fields(podText) {
		name, marks, _ := strings.Cut(f, ":")
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s%d", name, i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{},
			CreationTimestamp: metav1.NewTime(time.Unix(int64(i), 0))}, Spec: corev1.PodSpec{NodeName: name},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
		for _, m := range strings.Split(marks, ",") {
			switch m {
			case "new", "old":
				p.Labels[appsv1.ControllerRevisionHashLabelKey] = m
			case "sick":
				p.Status.Conditions = nil
			case "failed":
				p.Status.Phase = corev1.PodFailed
			case "gone":
				p.DeletionTimestamp = ptr.To(metav1.Now())
			}
		}
		pods = append(pods, p)
	}
	return nodes, pods
}

func TestDecide(t *testing.T) {
	surge := func(s *appsv1.DaemonSet) {
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1))}
	}
	onDelete := func(s *appsv1.DaemonSet) {
		s.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	}
	onlyA := func(s *appsv1.DaemonSet) { s.Spec.Template.Spec.NodeSelector = map[string]string{"node": "a"} }
	tests := []struct {
		name        string
		set         *appsv1.DaemonSet
		nodes, pods string
		want        string // "+a" make on a, "-a0" remove
	}{
		{"one on each", newSet(), "a b", "", "+a +b"},
		{"cordoned and dead nodes too", newSet(), "a:cordoned b:dead", "", "+a +b"},
		{"not where a taint forbids it", newSet(), "a b:special", "", "+a"},
		{"stays where it was", newSet(), "a:special", "a:new", ""},
		{"but not against NoExecute", newSet(), "a:drain", "a:new", "-a0"},
		{"selected nodes", newSet(onlyA), "a b", "b:new", "+a -b0"},
		{"one too many", newSet(), "a", "a:new a:new", "-a1"},
		{"failed is replaced", newSet(), "a", "a:new,failed", "-a0"},
		{"going is waited for", newSet(), "a", "a:new,gone", ""},
		{"update one", newSet(), "a b c", "a:old b:old c:old", "-a0"},
		{"update waits", newSet(), "a b c", "a:new,sick b:old c:old", ""},
		{"the sick are no loss", newSet(), "a b c", "a:old b:old,sick c:old", "-b1"},
		{"on delete", newSet(onDelete), "a b", "a:old b:old", ""},
		{"surge: a new one beside", newSet(surge), "a b", "a:old b:old", "+a"},
		{"surge: waits for it", newSet(surge), "a b", "a:old a:new,sick b:old", ""},
		{"surge: the old one goes", newSet(surge), "a b", "a:old a:new b:old", "-a0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			nodes, pods := scene(tt.nodes, tt.pods)
			p := decide(state{set: tt.set, nodes: nodes, pods: pods, hash: "new", now: time.Now(), retry: func(string) time.Duration { return 0 }})
			var got []string
			for _, n := range p.create {
				got = append(got, "+"+n)
			}
			for _, pod := range p.remove {
				got = append(got, "-"+pod.Name)
			}
			slices.Sort(got)
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("%q, want %q", s, tt.want)
			}
		})
	}
}

func TestNewPod(t *testing.T) {
	s := newSet(func(s *appsv1.DaemonSet) { s.Spec.Template.Labels = map[string]string{"app": "x"} })
	p := newPod(s, "a", "h")
	if nodeOf(p) != "a" || p.Labels[appsv1.ControllerRevisionHashLabelKey] != "h" || len(p.Spec.Tolerations) != 6 || s.Spec.Template.Labels[appsv1.ControllerRevisionHashLabelKey] != "" {
		t.Errorf("node %s, labels %v, %d tolerations", nodeOf(p), p.Labels, len(p.Spec.Tolerations))
	}
}
