package aggregator_test

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/aggregator"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/crd"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/component"
	"k8s.io/utils/clock"
)

// registered is a server with custom resources and a registrar that can be started over.
type registered struct {
	t      *testing.T
	ctx    context.Context
	server *servertest.Server
	caches cacher.Set
	apis   dynamic.ResourceInterface
}

func newRegistered(t *testing.T) *registered {
	r := &registered{t: t}
	var caches *cacher.Caches
	r.server = servertest.New(t, func(c *apiserver.Config) {
		caches = c.Caches.(*cacher.Caches)
		c.Hooks = append(c.Hooks, crd.Hooks(clock.RealClock{}))
	})
	r.caches = caches
	definitions, err := crd.New(crd.Config{Caches: caches, Registry: r.server.Registry()})
	if err != nil {
		t.Fatal(err)
	}
	r.ctx = t.Context()
	r.start(definitions)
	r.apis = dynamic.NewForConfigOrDie(r.server.Config()).Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	return r
}

// start runs a component until the returned function is called, at the latest until the test ends.
func (r *registered) start(c component.Component) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
	r.t.Cleanup(stop)
	return stop
}

func (r *registered) registrar() (stop func()) {
	g, err := aggregator.NewRegistrar(aggregator.RegistrarConfig{Caches: r.caches.(*cacher.Caches), Served: r.server.Registry()})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.start(g)
}

// await watches an APIService until its state is right; nil: it is not there.
func (r *registered) await(name, what string, right func(*unstructured.Unstructured) bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	w, err := r.apis.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		r.t.Fatal(err)
	}
	defer w.Stop()
	o, err := r.apis.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		o = nil
	}
	for !right(o) {
		e, ok := <-w.ResultChan()
		if !ok {
			r.t.Fatalf("%s: %s: still %v", name, what, o)
		}
		if o = e.Object.(*unstructured.Unstructured); e.Type == "DELETED" {
			o = nil
		}
	}
}

func local(managed string) func(*unstructured.Unstructured) bool {
	return func(o *unstructured.Unstructured) bool {
		if o == nil || o.GetLabels()["kube-aggregator.kubernetes.io/automanaged"] != managed {
			return false
		}
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		return len(conditions) == 1 && conditions[0].(map[string]any)["reason"] == "Local"
	}
}

func gone(o *unstructured.Unstructured) bool { return o == nil }

func TestRegistrar(t *testing.T) {
	r := newRegistered(t)
	stop := r.registrar()
	r.await("v1.apps", "written at start", local("onstart"))
	r.await("v1.", "written at start", local("onstart"))
	r.await("v2.autoscaling", "written at start", local("onstart"))
	if list, err := r.apis.List(r.ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	} else if slices.ContainsFunc(list.Items, func(o unstructured.Unstructured) bool { return o.GetName() == "v1.apiregistration.k8s.io" }) {
		t.Error("the group of APIServices themselves must have none, as upstream")
	}

	definitions := dynamic.NewForConfigOrDie(r.server.Config()).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	version := func(name string, stored bool) any {
		return map[string]any{"name": name, "served": true, "storage": stored, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}
	}
	_, err := definitions.Create(r.ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "boats.example.com"},
		"spec": map[string]any{"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "boats", "singular": "boat", "kind": "Boat", "listKind": "BoatList"},
			"versions": []any{version("v1", true), version("v1beta1", false)}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.await("v1.example.com", "a custom resource", local("true"))
	r.await("v1beta1.example.com", "its other version", local("true"))
	if err := r.apis.Delete(r.ctx, "v1.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.await("v1.example.com", "made again", local("true"))

	// What a user takes over stays his, what he deletes of the built-in ones stays away until the next start.
	takeOver := []byte(`{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":null}},"spec":{"groupPriorityMinimum":19000}}`)
	if _, err := r.apis.Patch(r.ctx, "v1.batch", types.MergePatchType, takeOver, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.apis.Delete(r.ctx, "v1.policy", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := definitions.Delete(r.ctx, "boats.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.await("v1.example.com", "deleted with its definition", gone)
	r.await("v1beta1.example.com", "deleted with its definition", gone)
	r.await("v1.policy", "left away by this process", gone)

	// A group that is no longer served was registered by an earlier version of the server.
	stop()
	_, err = r.apis.Create(r.ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1beta1.batch", "labels": map[string]any{"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
		"spec":     map[string]any{"group": "batch", "version": "v1beta1", "groupPriorityMinimum": int64(17400), "versionPriority": int64(9)},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.registrar()
	r.await("v1beta1.batch", "deleted at start", gone)
	r.await("v1.policy", "written by the next start", local("onstart"))
	r.await("v1.batch", "the user's", func(o *unstructured.Unstructured) bool {
		p, _, _ := unstructured.NestedInt64(o.Object, "spec", "groupPriorityMinimum")
		return o.GetLabels()["kube-aggregator.kubernetes.io/automanaged"] == "" && p == 19000
	})
}
