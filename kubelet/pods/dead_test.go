package pods

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// The oldest earlier runs go, the latest of a container never, young ones neither.
func TestSurplus(t *testing.T) {
	base := time.Unix(1000, 0)
	run := func(id, name string, age int, s cri.State) *cri.Container {
		return &cri.Container{ID: id, Name: name, State: s, CreatedAt: base.Add(-time.Duration(age) * time.Second)}
	}
	pods := map[types.UID]*cri.Pod{
		"a": {Containers: []*cri.Container{run("a3", "c", 1, cri.StateRunning), run("a2", "c", 20, cri.StateExited), run("a1", "c", 30, cri.StateExited)}},
		"b": {Containers: []*cri.Container{run("b2", "c", 5, cri.StateExited), run("b1", "c", 25, cri.StateExited)}},
		"c": {Containers: []*cri.Container{run("c1", "x", 90, cri.StateExited), run("c2", "y", 90, cri.StateExited)}},
	}
	for _, tt := range []struct {
		limit, minAge int
		want          string
	}{{6, 0, ""}, {5, 0, "a1 "}, {4, 0, "a1 b1 "}, {0, 0, "a1 b1 a2 "}, {0, 22, "a1 b1 "}} {
		got := ""
		for _, c := range surplus(pods, tt.limit, func(c *cri.Container) bool { return base.Sub(c.CreatedAt) >= time.Duration(tt.minAge)*time.Second }) {
			got += c.ID + " "
		}
		if got != tt.want {
			t.Errorf("limit %d, age %d: %q, want %q", tt.limit, tt.minAge, got, tt.want)
		}
	}
}

// An evicted pod's containers are gone at once, its status tells of them still, and does so
// after a restart of the kubelet.
func TestEvictedPodIsReclaimed(t *testing.T) {
	h := newHarness(t, newPod("p", nil))
	h.start()
	defer func() { h.stop() }()
	h.wait("running", func() bool { return h.get("p").Status.Phase == corev1.PodRunning })
	h.m.Evict(h.get("p").UID, Eviction{Reason: "Evicted", Message: "full", Grace: new(int64), Reclaim: true})
	h.wait("failed and without containers", func() bool {
		return h.get("p").Status.Phase == corev1.PodFailed && len(h.rt.Containers("c")) == 0
	})
	before := h.get("p").Status
	if s := before.ContainerStatuses; len(s) != 1 || s[0].State.Terminated == nil || before.Reason != "Evicted" {
		t.Errorf("%+v", before)
	}
	h.stop()
	h.start()
	h.create(newPod("q", nil))
	h.wait("at work", func() bool { return h.get("q").Status.Phase == corev1.PodRunning })
	if after := h.get("p").Status; after.Reason != "Evicted" || len(after.ContainerStatuses) != 1 || after.ContainerStatuses[0].State.Terminated == nil ||
		after.ContainerStatuses[0].State.Terminated.ExitCode != before.ContainerStatuses[0].State.Terminated.ExitCode {
		t.Errorf("after a restart %+v", after)
	}
}
