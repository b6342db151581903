package replicaset_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
	"github.com/skiff-k8s/skiff/controllers/replicaset"
)

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func newSet(n int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "rs", Namespace: "ns"},
		Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(n), MinReadySeconds: 10, Template: template(),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
	}
}

func start(t *testing.T, objs ...runtime.Object) *controllertest.Env {
	e := controllertest.New(t, objs...)
	c, err := replicaset.New(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	rc, err := replicaset.NewReplicationController(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	e.Start(c, rc)
	return e
}

func get(t *testing.T, e *controllertest.Env) *appsv1.ReplicaSet {
	t.Helper()
	rs, err := e.Client.AppsV1().ReplicaSets("ns").Get(t.Context(), "rs", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func TestKeepsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		if _, err := e.Client.AppsV1().ReplicaSets("ns").Create(t.Context(), newSet(20), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		if got := len(e.Pods("ns", "")); got != 20 {
			t.Fatalf("%d pods, want 20", got)
		}
		e.SetPods("ns", "", controllertest.MakeReady)
		e.Settle()
		if st := get(t, e).Status; st.Replicas != 20 || st.ReadyReplicas != 20 || st.AvailableReplicas != 0 || st.FullyLabeledReplicas != 20 {
			t.Errorf("status %+v", st)
		}
		e.After(12 * time.Second)
		if st := get(t, e).Status; st.AvailableReplicas != 20 {
			t.Errorf("after minReadySeconds: %+v", st)
		}

		// A pod whose labels no longer match is released and replaced.
		p := e.Pods("ns", "")[0]
		p.Labels = map[string]string{"a": "other"}
		if _, err := e.Client.CoreV1().Pods("ns").Update(t.Context(), &p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		// A failed one is replaced and kept.
		q := e.Pods("ns", "a=b")[1]
		q.Status.Phase = corev1.PodFailed
		if _, err := e.Client.CoreV1().Pods("ns").UpdateStatus(t.Context(), &q, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		if got := len(e.Pods("ns", "")); got != 22 {
			t.Errorf("%d pods, want 20 + 1 released + 1 failed", got)
		}
		for _, p := range e.Pods("ns", "a=other") {
			if len(p.OwnerReferences) != 0 {
				t.Errorf("still owned: %v", p.OwnerReferences)
			}
		}

		// Shrinking takes the unready ones first.
		rs := get(t, e)
		rs.Spec.Replicas = ptr.To[int32](18)
		if _, err := e.Client.AppsV1().ReplicaSets("ns").Update(t.Context(), rs, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		for _, p := range e.Pods("ns", "a=b") {
			if p.Status.Phase == "" {
				t.Error("an unready pod outlived a ready one")
			}
		}
	})
}

func TestAdoptsOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "o", Namespace: "ns", UID: "o", Labels: map[string]string{"a": "b"}}}
		e := start(t, orphan)
		if _, err := e.Client.AppsV1().ReplicaSets("ns").Create(t.Context(), newSet(2), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		pods := e.Pods("ns", "")
		if len(pods) != 2 {
			t.Fatalf("%d pods, want the orphan and one more", len(pods))
		}
		for _, p := range pods {
			if !metav1.IsControlledBy(&p, get(t, e)) {
				t.Errorf("pod %s has owners %v", p.Name, p.OwnerReferences)
			}
		}
	})
}

func TestQuotaIsNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		tries := 0
		e.Client.PrependReactor("create", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			tries++
			return true, nil, errors.New("exceeded quota")
		})
		if _, err := e.Client.AppsV1().ReplicaSets("ns").Create(t.Context(), newSet(500), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		if tries > 12 {
			t.Errorf("%d tries in a second", tries)
		}
		conds := get(t, e).Status.Conditions
		if len(conds) != 1 || conds[0].Type != appsv1.ReplicaSetReplicaFailure || conds[0].Reason != "FailedCreate" {
			t.Errorf("conditions %+v", conds)
		}
	})
}

func TestReplicationController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		tpl := template()
		rc := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "rc", Namespace: "ns"},
			Spec: corev1.ReplicationControllerSpec{Replicas: ptr.To[int32](3), Selector: map[string]string{"a": "b"}, Template: &tpl}}
		if _, err := e.Client.CoreV1().ReplicationControllers("ns").Create(t.Context(), rc, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		e.SetPods("ns", "", controllertest.MakeReady)
		e.Settle()
		got, err := e.Client.CoreV1().ReplicationControllers("ns").Get(t.Context(), "rc", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if st := got.Status; st.Replicas != 3 || st.AvailableReplicas != 3 || st.ObservedGeneration != got.Generation {
			t.Errorf("status %+v", st)
		}
		if p := e.Pods("ns", "")[0]; p.OwnerReferences[0].Kind != "ReplicationController" || p.OwnerReferences[0].APIVersion != "v1" {
			t.Errorf("owner %v", p.OwnerReferences)
		}
	})
}
