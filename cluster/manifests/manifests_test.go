package manifests

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// bed is a directory whose manifests a real API server gets.
type bed struct {
	*testing.T
	dir, status string
	client      dynamic.Interface
	discovery   discovery.DiscoveryInterface
}

func newBed(t *testing.T) *bed {
	server := servertest.Full(t)
	client, err := dynamic.NewForConfig(server.Admin())
	if err != nil {
		t.Fatal(err)
	}
	disc, err := discovery.NewDiscoveryClientForConfig(server.Admin())
	if err != nil {
		t.Fatal(err)
	}
	return &bed{t, filepath.Join(t.TempDir(), "manifests"), filepath.Join(t.TempDir(), "run", "manifests.json"), client, disc}
}

func (b *bed) run() (stop func()) {
	b.Helper()
	m, err := New(Config{Dir: b.dir, StatusFile: b.status, Client: b.client, Discovery: b.discovery, Tooling: "skiff/test",
		Interval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	b.Cleanup(stop)
	return stop
}

func (b *bed) write(name, text string) {
	b.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) remove(name string) {
	b.Helper()
	if err := os.Remove(filepath.Join(b.dir, name)); err != nil {
		b.Fatal(err)
	}
}

// states awaits what is told, as "file state applied/objects" and the errors.
func (b *bed) states(want ...string) {
	b.Helper()
	var got []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		all, err := ReadStatus(b.status)
		if err != nil {
			b.Fatal(err)
		}
		got = nil
		for _, s := range all {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %d/%d %s", s.File, s.State, s.Applied, s.Objects, strings.Join(s.Errors, "; "))))
		}
		ok := len(got) == len(want)
		for i := range got {
			ok = ok && strings.HasPrefix(got[i], want[i])
		}
		if ok {
			return
		}
	}
	b.Fatalf("states\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

func (b *bed) get(resource, namespace, name string) *unstructured.Unstructured {
	b.Helper()
	gvr := schema.GroupVersionResource{Version: "v1", Resource: resource}
	if r, group, ok := strings.Cut(resource, "."); ok {
		gvr = schema.GroupVersionResource{Group: group, Version: "v1", Resource: r}
	}
	u, err := b.client.Resource(gvr).Namespace(namespace).Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return u
}

// await waits until an object is there or not.
func (b *bed) await(resource, namespace, name string, there bool) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if u := b.get(resource, namespace, name); (u != nil && u.GetDeletionTimestamp() == nil) == there {
			return
		}
	}
	b.Fatalf("%s %s/%s: there should be %v", resource, namespace, name, there)
}

func configMap(name, value string) string {
	return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata: {k: \"" + value + "\"}\n"
}

func TestAppliedChangedPruned(t *testing.T) {
	b := newBed(t)
	stop := b.run() // without a directory
	b.write("a.yaml", configMap("one", "1")+configMap("two", "1"))
	b.write("sub/b.json", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"kube-system"}}`)
	b.write("notes.txt", "not a manifest")
	b.write(".a.yaml.swp", "{")
	b.states("a.yaml Applied 2/2", "sub/b.json Applied 1/1")
	u := b.get("configmaps", "default", "one")
	if u.GetLabels()[partOfLabel] != ownID || u.GetAnnotations()[fileNote] != "a.yaml" {
		t.Errorf("labels %v, annotations %v", u.GetLabels(), u.GetAnnotations())
	}
	parent := b.get("configmaps", "kube-system", parentName)
	if parent.GetLabels()[idLabel] != ownID || parent.GetAnnotations()[kindsNote] != "ConfigMap,Secret" || parent.GetAnnotations()[spacesNote] != "default" || parent.GetAnnotations()[toolingNote] != "skiff/test" {
		t.Errorf("parent %v %v", parent.GetLabels(), parent.GetAnnotations())
	}
	// Another's object of the same kind is nobody's business.
	other := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "mine"}}}
	if _, err := b.client.Resource(configMaps).Namespace("default").Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// An object that leaves its file goes; a bad file keeps what it had.
	b.write("a.yaml", configMap("one", "2"))
	b.await("configmaps", "default", "two", false)
	b.states("a.yaml Applied 1/1", "sub/b.json Applied 1/1")
	if v, _, _ := unstructured.NestedString(b.get("configmaps", "default", "one").Object, "data", "k"); v != "2" {
		t.Errorf("value %q", v)
	}
	b.write("a.yaml", configMap("one", "3")+"---\nkind: [\n")
	b.remove("sub/b.json")
	b.await("secrets", "kube-system", "s", false)
	b.states("a.yaml Invalid 0/0 a.yaml:")
	b.await("configmaps", "default", "one", true)

	// What is removed while nobody looks goes at the next start.
	stop()
	b.remove("a.yaml")
	b.run()
	b.await("configmaps", "default", "one", false)
	b.await("configmaps", "default", "mine", true)
	b.states()
	if kinds := b.get("configmaps", "kube-system", parentName).GetAnnotations()[kindsNote]; kinds != "" {
		t.Errorf("the set still has %s", kinds)
	}
}

const definition = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {oars: {type: integer}}}}}}}
`

// TestOrder: whatever the order of files, what others need comes first, or they are tried again.
func TestOrder(t *testing.T) {
	b := newBed(t)
	b.write("1-boat.yaml", "apiVersion: example.com/v1\nkind: Boat\nmetadata: {name: skiff, namespace: harbour}\nspec: {oars: 2}\n")
	b.write("2-definition.yaml", definition)
	b.write("3-namespace.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: harbour}\n")
	b.run()
	b.states("1-boat.yaml Applied 1/1", "2-definition.yaml Applied 1/1", "3-namespace.yaml Applied 1/1")
	b.await("boats.example.com", "harbour", "skiff", true)
	for _, f := range []string{"1-boat.yaml", "2-definition.yaml", "3-namespace.yaml"} {
		b.remove(f)
	}
	b.await("boats.example.com", "harbour", "skiff", false)
	b.await("namespaces", "", "harbour", false)
	b.states()
}

// TestErrors: each is one line with its place, and stops nobody else.
func TestErrors(t *testing.T) {
	b := newBed(t)
	b.write("a.yaml", configMap("good", "1")+"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 1, replica: 2}\n")
	b.write("b.yaml", "apiVersion: example.org/v1\nkind: Nothing\nmetadata: {name: nn}\n")
	b.write("c.yaml", configMap("good", "2"))
	b.write("d.yaml", configMap("elsewhere", "1")+"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: missing}\n")
	b.write("e.yaml", configMap("fine", "1"))
	b.run()
	b.states(`a.yaml Failed 1/2 a.yaml:7: Deployment d: `,
		"b.yaml Failed 0/1 b.yaml:1: Nothing nn: the cluster has no kind Nothing in example.org/v1 (yet)",
		"c.yaml Failed 0/1 c.yaml:2: ConfigMap good: is in a.yaml:2 too",
		`d.yaml Failed 1/2 d.yaml:7: ConfigMap missing/x: namespaces "missing" not found`,
		"e.yaml Applied 1/1")
	all, err := ReadStatus(b.status)
	if err != nil || !strings.Contains(all[0].Errors[0], "replica") {
		t.Errorf("%v, %v", all, err)
	}
	// What was missing comes: it is tried again without a change of the file.
	b.write("f.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: missing}\n")
	b.remove("a.yaml")
	b.states("b.yaml Failed", "c.yaml Applied 1/1", "d.yaml Applied 2/2", "e.yaml Applied", "f.yaml Applied")
	if v, _, _ := unstructured.NestedString(b.get("configmaps", "default", "good").Object, "data", "k"); v != "2" {
		t.Errorf("value %q: the second file's object is not there", v)
	}
}
