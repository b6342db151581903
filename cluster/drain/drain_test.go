package drain

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

func pod(name, owner string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "n"}}
	if owner != "" {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "o", Controller: &yes}}
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// world is an API whose evictions do what the test says; nil deletes the pod.
func world(evict func(name string) error, pods ...*corev1.Pod) *fake.Clientset {
	objects := []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
	for _, p := range pods {
		objects = append(objects, p)
	}
	c := fake.NewClientset(objects...)
	c.PrependReactor("create", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		e := a.(ktesting.CreateAction).GetObject().(*policyv1.Eviction)
		if err := evict(e.Name); err != nil {
			return true, nil, err
		}
		return true, nil, c.Tracker().Delete(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, e.Namespace, e.Name)
	})
	return c
}

func allow(string) error { return nil }

func names(t *testing.T, c *fake.Clientset) string {
	t.Helper()
	list, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range list.Items {
		out = append(out, p.Name)
	}
	return strings.Join(out, " ")
}

func TestWhoLeaves(t *testing.T) {
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	done := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	for _, c := range []struct {
		name  string
		pods  []*corev1.Pod
		force bool
		left  string
		err   string
	}{
		{name: "nothing there"},
		{name: "what controllers make again", pods: []*corev1.Pod{pod("a", "ReplicaSet"), pod("b", "StatefulSet"), pod("c", "Job")}},
		{name: "the node's own stay", pods: []*corev1.Pod{pod("a", "ReplicaSet"), pod("d", "DaemonSet"), pod("m", "Node", mirror)}, left: "d m"},
		{name: "bare pods are in the way", pods: []*corev1.Pod{pod("a", "ReplicaSet"), pod("b", "")}, left: "a b", err: "ns/b"},
		{name: "bare pods, by force", pods: []*corev1.Pod{pod("b", "")}, force: true},
		{name: "bare pods that are done", pods: []*corev1.Pod{pod("b", "", done)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := world(allow, c.pods...)
			err := Run(t.Context(), Config{Client: api, Node: "n", Force: c.force, Progress: &strings.Builder{}, RetryEvery: time.Millisecond})
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("error %v, want %q", err, c.err)
			}
			if got := names(t, api); got != c.left {
				t.Errorf("left: %q, want %q", got, c.left)
			}
			node, err := api.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if node.Spec.Unschedulable != (c.err == "") {
				t.Errorf("cordoned: %v", node.Spec.Unschedulable)
			}
		})
	}
}

func refusal() error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods"})
	return err
}

func TestBudgetsAreAwaited(t *testing.T) {
	tries := map[string]int{}
	api := world(func(name string) error {
		if tries[name]++; name == "b" && tries[name] < 3 {
			return refusal()
		}
		return nil
	}, pod("a", "ReplicaSet"), pod("b", "ReplicaSet"))
	var said strings.Builder
	if err := Run(t.Context(), Config{Client: api, Node: "n", Progress: &said, RetryEvery: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if tries["a"] != 1 || tries["b"] != 3 {
		t.Errorf("evictions: %v", tries)
	}
	if got := said.String(); strings.Count(got, "ns/b stays for now") != 1 || !strings.Contains(got, "budget web") || !strings.Contains(got, "ns/b evicted") {
		t.Errorf("said:\n%s", got)
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	api := world(func(string) error {
		cancel()
		return refusal()
	}, pod("a", "ReplicaSet"))
	err := Run(ctx, Config{Client: api, Node: "n", Progress: &strings.Builder{}, RetryEvery: time.Hour})
	if err == nil || !strings.Contains(err.Error(), "ns/a") || !strings.Contains(err.Error(), "budget web") || !strings.Contains(err.Error(), "uncordon n") {
		t.Errorf("interrupted: %v", err)
	}
}

func TestANodeThatNeverRegistered(t *testing.T) {
	if err := Run(t.Context(), Config{Client: fake.NewClientset(), Node: "n", Progress: &strings.Builder{}}); err != nil {
		t.Error(err)
	}
}
