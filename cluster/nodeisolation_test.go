package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A node that has joined sees and writes what its own pods need, and nothing of another's:
// a machine that is broken into gives away no more than what runs on it.
func TestJoinedNodesAreIsolated(t *testing.T) {
	s := newServer(t, nil)
	a, b := s.join(t, "a"), s.join(t, "b")
	a.register(t)
	b.register(t)
	ctx, core := t.Context(), s.client.CoreV1()
	for _, n := range []string{"a", "b"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "of-" + n}, StringData: map[string]string{"k": "v"}}
		if _, err := core.Secrets("default").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + n}, Spec: corev1.PodSpec{
			NodeName:   n,
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes:    []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "of-" + n}}}},
		}}
		eventually(t, "a pod is made", func() error { // once its ServiceAccount is there
			_, err := core.Pods("default").Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	}
	own := a.client.CoreV1()
	eventually(t, "a node reads the secret of its own pod", func() error {
		_, err := own.Secrets("default").Get(ctx, "of-a", metav1.GetOptions{})
		return err
	})
	label := []byte(`{"metadata":{"labels":{"x":"y"}}}`)
	ready := []byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	for what, try := range map[string]func() error{
		"read the secret of another's pod": func() error {
			_, err := own.Secrets("default").Get(ctx, "of-b", metav1.GetOptions{})
			return err
		},
		"list secrets": func() error { _, err := own.Secrets("default").List(ctx, metav1.ListOptions{}); return err },
		"label another node": func() error {
			_, err := own.Nodes().Patch(ctx, "b", types.StrategicMergePatchType, label, metav1.PatchOptions{})
			return err
		},
		"write another node's status": func() error { _, err := own.Nodes().PatchStatus(ctx, "b", ready); return err },
		"make another node": func() error {
			_, err := own.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
			return err
		},
		"delete another node": func() error { return own.Nodes().Delete(ctx, "b", metav1.DeleteOptions{}) },
		"take another node's lease": func() error {
			_, err := a.client.CoordinationV1().Leases("kube-node-lease").Patch(ctx, "b", types.StrategicMergePatchType, label, metav1.PatchOptions{})
			return err
		},
		"write the status of another's pod": func() error {
			_, err := own.Pods("default").Patch(ctx, "on-b", types.StrategicMergePatchType, []byte(`{"status":{"message":"m"}}`), metav1.PatchOptions{}, "status")
			return err
		},
		"delete another's pod": func() error { return own.Pods("default").Delete(ctx, "on-b", metav1.DeleteOptions{}) },
		"make a pod for another node": func() error {
			_, err := own.Pods("default").Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "mirror", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}},
				Spec:       corev1.PodSpec{NodeName: "b", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}, metav1.CreateOptions{})
			return err
		},
		"give itself a role's label": func() error {
			_, err := own.Nodes().Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}`), metav1.PatchOptions{})
			return err
		},
		"read bootstrap tokens": func() error { _, err := own.Secrets("kube-system").List(ctx, metav1.ListOptions{}); return err },
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("a node may %s (%v)", what, err)
		}
	}
	// What its proxy and its pod network read.
	if _, err := a.client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := own.Services("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := own.Nodes().List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}
