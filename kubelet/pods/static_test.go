package pods

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
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

func onePod(t *testing.T, raw, path string) (*corev1.Pod, error) {
	t.Helper()
	list, err := staticPods([]byte(raw), origin{fileSource, path, "Node"})
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

func TestStaticPodManifest(t *testing.T) {
	p, err := onePod(t, manifest, "/m/a.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "static-node" || p.Spec.RestartPolicy != corev1.RestartPolicyAlways || p.Spec.Containers[0].TerminationMessagePath == "" || !isStatic(p) || isMirror(p) {
		t.Errorf("%+v", p)
	}
	q, err := onePod(t, "# by hand\n---\n"+manifest+"---\n# no more\n", "/m/b.yaml")
	if err != nil || p.UID == q.UID || len(p.UID) != 32 {
		t.Errorf("uids %s %s, %v", p.UID, q.UID, err)
	}
	for bad, want := range map[string]string{
		"": "kind", "kind: Pod\napiVersion: v1\n": "metadata.name", "kind: Service\napiVersion: v1\n": "Service", ":": "parse",
		manifest + "---\n" + manifest:                                   "several documents",
		strings.Replace(manifest, "name: static", "name: Not_So", 1):    "metadata.name",
		strings.Replace(manifest, "namespace: ns", "namespace: n.s", 1): "metadata.namespace",
		strings.Replace(manifest, "    image: img:1", "", 1):            "spec.containers[0].image",
		strings.Replace(manifest, "name: c", "name: C", 1):              "spec.containers[0].name",
		manifest + "  - name: c\n    image: x\n":                        "another container",
		manifest + "  serviceAccountName: x\n":                          "service account",
		manifest + "  volumes: [{name: v, configMap: {name: x}}]\n":     "spec.volumes[0]",
		manifest + "    envFrom: [{configMapRef: {name: x}}]\n":         "spec.containers[0].envFrom",
		"kind: PodList\napiVersion: v1\nitems: []\n":                    "PodList",
	} {
		if _, err := onePod(t, bad, "x"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", bad, err, want)
		}
	}
}

// Of two manifests with one name the one that runs goes on; the other takes its place once
// that has gone, and not before its containers have ended.
func TestStaticPodsOfOneName(t *testing.T) {
	h := newHarness(t)
	h.manifests = t.TempDir()
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(h.manifests, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("b.yaml", manifest)
	h.start()
	h.waitPod("static-node", "ready", ready)
	run := h.rt.Containers("c")[0]
	write("a.yaml", strings.Replace(manifest, "name: c", "name: other", 1))
	h.wait("the conflict is told", func() bool { return h.m.StaticErrors() == 1 })
	if !h.rt.Running(run) || len(h.rt.Containers("other")) != 0 {
		t.Error("the second took the place of the first")
	}
	if err := os.Remove(filepath.Join(h.manifests, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	h.wait("the second follows", func() bool {
		if len(h.rt.Containers("other")) > 0 && h.rt.Running(run) {
			t.Error("both ran at a time")
		}
		return len(h.rt.Containers("other")) == 1
	})
	h.waitPod("static-node", "ready", func(p *corev1.Pod) bool { return ready(p) && p.Spec.Containers[0].Name == "other" })
	if n := h.m.StaticErrors(); n != 0 {
		t.Errorf("%d errors are left", n)
	}
	// The same pod by another name of its file.
	if err := os.Rename(filepath.Join(h.manifests, "a.yaml"), filepath.Join(h.manifests, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	h.wait("it is another pod", func() bool { return len(h.rt.Containers("other")) == 1 && len(h.m.Pods()) == 1 })
}

// A URL holds pods as files do; as long as it fails they go on.
func TestStaticPodsFromURL(t *testing.T) {
	var mu sync.Mutex
	text, status := "", http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("X-Token") != "t" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text))
	}))
	defer srv.Close()
	header := http.Header{"X-Token": {"t"}}
	get := func() ([]*corev1.Pod, error) {
		return fetchManifest(context.Background(), srv.Client(), srv.URL, header, "n")
	}
	if _, err := get(); err == nil {
		t.Error("an empty answer is taken")
	}
	item := "- metadata: {name: %s}\n  spec: {containers: [{name: c, image: i}]}\n"
	text = "apiVersion: v1\nkind: PodList\nitems:\n" + fmt.Sprintf(item, "one") + fmt.Sprintf(item, "two")
	list, err := get()
	if err != nil || len(list) != 2 || list[1].Name != "two-n" || list[1].Annotations[sourceAnnotation] != httpSource || list[0].UID == list[1].UID {
		t.Errorf("%v %v", list, err)
	}
	status = http.StatusInternalServerError
	if _, err := get(); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("%v", err)
	}
	header = nil
	if _, err := get(); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("%v", err)
	}
}

func FuzzStaticPod(f *testing.F) {
	f.Add([]byte(manifest))
	f.Fuzz(func(t *testing.T, raw []byte) { _, _ = staticPods(raw, origin{httpSource, "x", "n"}) })
}
