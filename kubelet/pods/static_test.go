package pods

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const manifest = `apiVersion: v1
kind: Pod
metadata:
  name: static
  namespace: ns
spec:
  containers:
  - name: c
    image: img:1
`

func TestStaticPod(t *testing.T) {
	h := newHarness(t)
	h.manifests = t.TempDir()
	path := filepath.Join(h.manifests, "a.yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.manifests, "broken.yaml"), []byte("kind: Pot"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	mirror := h.waitPod("static-node", "ready mirror", ready)
	if mirror.Annotations[mirrorAnnotation] == "" || mirror.Status.ContainerStatuses[0].State.Running == nil || mirror.Spec.NodeName != "node" {
		t.Errorf("%+v", mirror)
	}
	if p := h.m.Find("ns", "static-node", mirror.UID); p == nil || p.UID == mirror.UID {
		t.Errorf("the mirror does not lead to its static pod: %v", p)
	}
	run := h.rt.Containers("c")[0]

	// A deleted mirror comes back; the pod does not notice.
	if err := h.client.CoreV1().Pods("ns").Delete(context.Background(), "static-node", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.waitPod("static-node", "mirror again", func(p *corev1.Pod) bool { return ready(p) })
	if !h.rt.Running(run) {
		t.Error("deleting the mirror ended the pod")
	}

	// A kubelet restart changes nothing.
	h.stop()
	n := h.rt.Calls("CreateContainer")
	h.start()
	h.wait("taken over", func() bool { return len(h.m.Pods()) == 1 && h.m.Pods()[0].Status.Phase == corev1.PodRunning })
	if h.rt.Calls("CreateContainer") != n || !h.rt.Running(run) {
		t.Error("the container was restarted")
	}

	// Another manifest is another pod; none is none.
	if err := os.WriteFile(path, []byte(manifest+"    env: [{name: A, value: b}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.wait("replaced", func() bool { return !h.rt.Running(run) && len(h.rt.Containers("c")) == 1 })
	h.waitPod("static-node", "new mirror", ready)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	h.wait("gone", func() bool { return h.get("static-node") == nil && h.rt.Sandboxes() == 0 && len(h.m.Pods()) == 0 })
}

func TestStaticPodManifest(t *testing.T) {
	p, err := staticPod([]byte(manifest), "/m/a.yaml", "Node")
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "static-node" || p.Spec.RestartPolicy != corev1.RestartPolicyAlways || p.Spec.Containers[0].TerminationMessagePath == "" || !isStatic(p) || isMirror(p) {
		t.Errorf("%+v", p)
	}
	q, _ := staticPod([]byte(manifest), "/m/b.yaml", "Node")
	if p.UID == q.UID || len(p.UID) != 32 {
		t.Errorf("uids %s %s", p.UID, q.UID)
	}
	for _, bad := range []string{"", "kind: Pod\napiVersion: v1\n", "kind: Service\napiVersion: v1\n", ":"} {
		if _, err := staticPod([]byte(bad), "x", "n"); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func FuzzStaticPod(f *testing.F) {
	f.Add([]byte(manifest))
	f.Fuzz(func(t *testing.T, raw []byte) { _, _ = staticPod(raw, "x", "n") })
}
