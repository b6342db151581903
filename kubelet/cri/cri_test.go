package cri_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"
)

func TestSnapshot(t *testing.T) {
	s := fakecri.Start(t)
	s.AddImage("img", nil, "")
	messages := 0
	c, err := cri.New(cri.Config{RuntimeEndpoint: s.Endpoint(), TerminationMessage: func(*runtimeapi.ContainerStatus) string { messages++; return "bye" }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "p", Namespace: "ns"}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](7)}}
	spec := &corev1.Container{Name: "c", Image: "img", Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}}
	sb, err := c.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Uid: "u"}, Labels: cri.PodLabels(pod)}})
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan types.UID, 100)
	watching := make(chan struct{})
	wctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- c.Watch(wctx, func() { close(watching) }, func(uid types.UID) { events <- uid }) }()
	<-watching
	ct, err := c.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "img"}, Labels: cri.ContainerLabels(pod, spec), Annotations: cri.ContainerAnnotations(pod, spec, 4),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: ct.ContainerId}); err != nil {
		t.Fatal(err)
	}
	get := func() *cri.Container {
		t.Helper()
		p, err := c.PodStatus(ctx, "u")
		if err != nil {
			t.Fatal(err)
		}
		return p.Find("c")
	}
	run := get()
	if run.State != cri.StateRunning || run.RestartCount != 4 || run.Hash != cri.HashContainer(spec) || run.StartedAt.IsZero() {
		t.Errorf("%+v", run)
	}
	grace, orphan := cri.OrphanSpec(run)
	if *grace != 7 || orphan.Lifecycle.PreStop.Sleep.Seconds != 3 {
		t.Errorf("what annotations say: %v %+v", grace, orphan)
	}
	// Nothing changed: nothing is asked again.
	n := s.Calls("ContainerStatus") + s.Calls("PodSandboxStatus")
	get()
	if got := s.Calls("ContainerStatus") + s.Calls("PodSandboxStatus"); got != n {
		t.Errorf("%d needless calls", got-n)
	}
	s.Exit(s.Containers("c")[0], 3, "")
	for range 3 {
		if run = get(); run.State != cri.StateExited || run.ExitCode != 3 || run.Message != "bye" {
			t.Errorf("%+v", run)
		}
	}
	if messages != 1 {
		t.Errorf("the message was read %d times", messages)
	}
	select {
	case uid := <-events:
		if uid != "u" {
			t.Errorf("event of pod %q", uid)
		}
	case <-time.After(time.Minute):
		t.Error("no event")
	}
	stop()
	if err := <-done; err == nil {
		t.Error("the watch ended without saying why")
	}
}

// The value is upstream's for the same container: nodes can change kubelets.
func TestHashIsStable(t *testing.T) {
	if a, b := cri.HashContainer(&corev1.Container{Name: "a", Image: "x"}), cri.HashContainer(&corev1.Container{Name: "a", Image: "y"}); a == b {
		t.Error("the image does not count")
	}
	if got := cri.HashContainer(&corev1.Container{Name: "test_container", Image: "foo/image:v1"}); got != 0x8e45cbd0 {
		t.Errorf("hash %#x", got)
	}
}
