package node

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakeapi"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"
)

func TestNode(t *testing.T) {
	rt := fakecri.Start(t)
	rt.AddImage("img:1", nil, "")
	client := fakeapi.New()
	c, err := cri.New(cri.Config{RuntimeEndpoint: rt.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rt.Set(func() { rt.NetworkDown = true })
	n, err := New(Config{
		Name: "n1", Hostname: "host1", Client: client, CRI: c, IPs: []string{"192.0.2.1", "2001:db8::1"}, Labels: map[string]string{"a": "b"}, MaxPods: 110, Port: 10250, RootDir: t.TempDir(), Version: "v1.37.2",
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}, Recorder: record.NewFakeRecorder(100), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { n.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()

	get := func() *corev1.Node {
		o, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return o
	}
	wait := func(what string, f func(*corev1.Node) bool) *corev1.Node {
		t.Helper()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if o := get(); o != nil && f(o) {
				return o
			}
		}
		t.Fatalf("waited in vain for %s: %+v", what, get())
		return nil
	}
	o := wait("network not ready", func(o *corev1.Node) bool {
		c := condition(&o.Status, corev1.NodeReady)
		return c != nil && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "NetworkPluginNotReady")
	})
	if o.Labels[corev1.LabelHostname] != "host1" || o.Labels["a"] != "b" || o.Labels[corev1.LabelOSStable] != "linux" {
		t.Errorf("labels %v", o.Labels)
	}
	rt.Set(func() { rt.NetworkDown = false })
	o = wait("ready", func(o *corev1.Node) bool { return isTrue(&o.Status) })
	<-n.Ready()
	if q := o.Status.Capacity[corev1.ResourceCPU]; q.Value() != 1 || o.Status.NodeInfo.ContainerRuntimeVersion != "fake://1.0.0" || len(o.Status.Addresses) != 3 || o.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 {
		t.Errorf("status %+v", o.Status)
	}
	a, m := o.Status.Allocatable[corev1.ResourceMemory], o.Status.Capacity[corev1.ResourceMemory]
	if m.Value()-a.Value() < evictionMemory {
		t.Errorf("allocatable %s of %s", a.String(), m.String())
	}
	wait("lease", func(*corev1.Node) bool {
		l, err := client.CoordinationV1().Leases("kube-node-lease").Get(ctx, "n1", metav1.GetOptions{})
		return err == nil && *l.Spec.HolderIdentity == "n1" && *l.Spec.LeaseDurationSeconds == 40
	})
	// The runtime goes away and comes back.
	rt.Down()
	wait("runtime down", func(o *corev1.Node) bool {
		c := condition(&o.Status, corev1.NodeReady)
		return c.Status == corev1.ConditionFalse && strings.HasPrefix(c.Message, "container runtime is down")
	})
	if n.NetworkReady() == nil {
		t.Error("network ready without runtime")
	}
	if err := rt.Up(); err != nil {
		t.Fatal(err)
	}
	wait("healed", func(o *corev1.Node) bool { return isTrue(&o.Status) })
	// Nothing changes: nothing is written.
	client.ClearActions()
	n.Kick()
	time.Sleep(50 * time.Millisecond)
	for _, a := range client.Actions() {
		if a.GetVerb() == "patch" {
			t.Errorf("written without need: %v", a)
		}
	}
}
