package scheduler

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
)

// TestNominationLasts: while its victims end one after the other, a pod keeps the room that
// they leave, whatever asks for it in between.
func TestNominationLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, Config{}, testNode("a"))
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		// As kubelets do, it takes victims their time to end.
		e.client.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
			o, err := e.client.Tracker().Get(pods, a.GetNamespace(), a.(k8stesting.DeleteAction).GetName())
			if err != nil {
				return true, nil, err
			}
			p := o.(*corev1.Pod).DeepCopy()
			now := metav1.Now()
			p.DeletionTimestamp = &now
			return true, nil, e.client.Tracker().Update(pods, p, p.Namespace)
		})
		ended := func(name string) {
			if err := e.client.Tracker().Delete(pods, "ns", name); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute) // all have backed off
			e.settle()
		}
		prio := func(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }
		e.add(testPod("low-1", "2", "", prio(1)))
		e.add(testPod("low-2", "2", "", prio(1)))
		if high := e.add(testPod("high", "4", "", prio(100))); high.Status.NominatedNodeName != "a" {
			t.Fatalf("nominated %q, want a: %s", high.Status.NominatedNodeName, message(high))
		}
		e.add(testPod("small", "2", "", prio(1)))
		ended("low-1")
		if n := e.pod("small").Spec.NodeName; n != "" {
			t.Errorf("small took the room on %s that is meant for high", n)
		}
		if high := e.pod("high"); high.Status.NominatedNodeName != "a" {
			t.Errorf("nomination is now %q: %s", high.Status.NominatedNodeName, message(high))
		}
		ended("low-2")
		if high := e.pod("high"); high.Spec.NodeName != "a" {
			t.Errorf("high is on %q: %s", high.Spec.NodeName, message(high))
		}
	})
}
