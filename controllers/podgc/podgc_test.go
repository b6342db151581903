package podgc

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
)

func pod(name, node string, phase corev1.PodPhase, deleted bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
	if deleted {
		now := metav1.Now()
		p.DeletionTimestamp = &now
	}
	return p
}

func TestRemoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		off := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "off"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}}}
		e := controllertest.New(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, off,
			pod("fine", "n", corev1.PodRunning, false), pod("stopping", "n", corev1.PodRunning, true),
			pod("orphan", "gone", corev1.PodRunning, false), pod("unscheduled", "", corev1.PodPending, true),
			pod("pending", "", corev1.PodPending, false), pod("off", "off", corev1.PodRunning, true))
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
			slices.Sort(all)
			return strings.Join(all, " ")
		}
		if got := names(); got != "fine orphan pending stopping" {
			t.Errorf("at once: %s left", got)
		}
		e.After(2 * time.Minute)
		if got := names(); got != "fine pending stopping" {
			t.Errorf("after the quarantine: %s left", got)
		}
	})
}

func TestThreshold(t *testing.T) {
	var pods []*corev1.Pod
	for i, name := range []string{"young", "middle", "old"} {
		p := pod(name, "n", corev1.PodSucceeded, false)
		p.CreationTimestamp = metav1.NewTime(time.Unix(int64(1000-i), 0))
		pods = append(pods, p)
	}
	evicted := pod("evicted", "n", corev1.PodFailed, false)
	evicted.Status.Reason = "Evicted"
	evicted.CreationTimestamp = metav1.NewTime(time.Unix(5000, 0))
	f := sort(append(pods, evicted), func(string) *corev1.Node { return &corev1.Node{} }, 2)
	if len(f.ended) != 2 || f.ended[0].Name != "evicted" || f.ended[1].Name != "old" {
		t.Errorf("removed %v", f.ended)
	}
}
