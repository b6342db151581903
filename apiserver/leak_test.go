package apiserver_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// TestNothingStaysOfWhatIsGone: resources that came and went, and watches that were opened and
// closed, leave no goroutines, and no memory once history is old.
func TestNothingStaysOfWhatIsGone(t *testing.T) {
	s := servertest.Full(t)
	d, err := dynamic.NewForConfig(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.NewForConfig(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cycle func(t *testing.T, i int)
		// heap is what a cycle may leave, in bytes: the revisions of its changes, which the
		// store in memory keeps for good.
		heap int
	}{
		"custom resources": {func(t *testing.T, i int) { customResource(t, d, i) }, 25_000},
		"watches":          {func(t *testing.T, _ int) { watches(t, k) }, 4_000},
		"objects":          {func(t *testing.T, i int) { objects(t, k, i) }, 8_000},
	} {
		t.Run(name, func(t *testing.T) {
			const warm, cycles = 10, 60
			for i := range warm {
				c.cycle(t, i)
			}
			inUse := func() int {
				for range 2 { // what was used before the first goes with the second
					s.Caches.Tidy(time.Now().Add(time.Hour))
				}
				return heapInUse()
			}
			goroutines, heap := runtime.NumGoroutine(), inUse()
			for i := range cycles {
				c.cycle(t, warm+i)
			}
			grown := func() (int, int) { return runtime.NumGoroutine() - goroutines, (inUse() - heap) / cycles }
			err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
				g, h := grown()
				return g <= 5 && h <= c.heap, nil
			})
			g, h := grown()
			t.Logf("%d goroutines, %d bytes of heap a cycle", g, h)
			if err != nil {
				t.Errorf("after %d cycles there are %d more goroutines and %d more bytes of heap a cycle; want 5 and %d at most", cycles, g, h, c.heap)
			}
		})
	}
}

func heapInUse() int {
	runtime.GC()
	runtime.GC() // the second frees what finalizers and pools held in the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func customResource(t *testing.T, d dynamic.Interface, i int) {
	t.Helper()
	group := fmt.Sprintf("g%d.example.com", i)
	schemaOf := map[string]any{"type": "object", "properties": map[string]any{"spec": map[string]any{"type": "object", "properties": map[string]any{
		"replicas": map[string]any{"type": "integer", "minimum": int64(0), "x-kubernetes-validations": []any{map[string]any{"rule": "self < 100"}}},
		"image":    map[string]any{"type": "string", "default": "i"},
	}}}}
	crds := d.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	name := "things." + group
	_, err := crds.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"group": group, "scope": "Namespaced", "names": map[string]any{"plural": "things", "kind": "Thing"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": schemaOf}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	things := d.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "things"}).Namespace("default")
	thing := &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/v1", "kind": "Thing", "metadata": map[string]any{"name": "x"}, "spec": map[string]any{"replicas": int64(1)}}}
	until(t, func(ctx context.Context) (bool, error) {
		_, err := things.Create(ctx, thing, metav1.CreateOptions{})
		return err == nil, nil
	})
	w, err := things.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-w.ResultChan()
	if _, err := things.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := crds.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for range w.ResultChan() { // it ends with the resource
	}
	until(t, func(ctx context.Context) (bool, error) {
		_, err := crds.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

func watches(t *testing.T, k kubernetes.Interface) {
	t.Helper()
	for _, o := range []metav1.ListOptions{{}, {FieldSelector: "metadata.name=a"}, {LabelSelector: "a=b", AllowWatchBookmarks: true}} {
		w, err := k.CoreV1().Pods("").Watch(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		w.Stop()
	}
}

func objects(t *testing.T, k kubernetes.Interface, i int) {
	t.Helper()
	maps := k.CoreV1().ConfigMaps("default")
	name := fmt.Sprintf("o%d", i)
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, done func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, done); err != nil {
		t.Fatal(err)
	}
}
