package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
)

// env is a scheduler against the fake clientset.
type env struct {
	t      *testing.T
	client *fake.Clientset
	events *events.FakeRecorder
}

func start(t *testing.T, cfg Config, objs ...runtime.Object) *env {
	e := &env{t: t, client: fake.NewClientset(objs...), events: events.NewFakeRecorder(1000)}
	e.client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		b := a.(k8stesting.CreateAction).GetObject().(*corev1.Binding)
		gvr := corev1.SchemeGroupVersion.WithResource("pods")
		o, err := e.client.Tracker().Get(gvr, a.GetNamespace(), b.Name)
		if err != nil {
			return true, nil, err
		}
		p := o.(*corev1.Pod).DeepCopy()
		if p.Spec.NodeName != "" {
			return true, nil, errors.New("already bound")
		}
		p.Spec.NodeName = b.Target.Name
		return true, b, e.client.Tracker().Update(gvr, p, p.Namespace)
	})
	factory := informers.NewSharedInformerFactory(e.client, 0)
	cfg.Client, cfg.Informers, cfg.Events, cfg.Seed = e.client, factory, e.events, 1
	cfg.Logger = slog.New(slog.DiscardHandler)
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})
	e.settle()
	return e
}

func (e *env) settle() {
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
}

func (e *env) add(p *corev1.Pod) *corev1.Pod {
	e.t.Helper()
	if _, err := e.client.CoreV1().Pods(p.Namespace).Create(e.t.Context(), p, metav1.CreateOptions{}); err != nil {
		e.t.Fatal(err)
	}
	e.settle()
	return e.pod(p.Name)
}

func (e *env) pod(name string) *corev1.Pod {
	e.t.Helper()
	p, err := e.client.CoreV1().Pods("ns").Get(e.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	return p
}

func (e *env) update(n *corev1.Node) {
	e.t.Helper()
	if _, err := e.client.CoreV1().Nodes().Update(e.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		e.t.Fatal(err)
	}
	e.settle()
}

func (e *env) addNode(n *corev1.Node) {
	e.t.Helper()
	if _, err := e.client.CoreV1().Nodes().Create(e.t.Context(), n, metav1.CreateOptions{}); err != nil {
		e.t.Fatal(err)
	}
	e.settle()
}

func (e *env) remove(name string) {
	e.t.Helper()
	if err := e.client.CoreV1().Pods("ns").Delete(e.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		e.t.Fatal(err)
	}
	e.settle()
}

func message(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

func testNode(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
		}},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func testPod(name, cpu, mem string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name), CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "c", Image: "i",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if cpu != "" {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if mem != "" {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse(mem)
	}
	for _, c := range change {
		c(p)
	}
	return p
}
