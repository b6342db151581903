package cacher

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/mem"
)

func podResource() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "Pod", Plural: "pods", Namespaced: true, StoragePath: "pods",
		New:     func() api.Object { return &corev1.Pod{} },
		NewList: func() runtime.Object { return &corev1.PodList{} },
		Default: func(obj runtime.Object) {
			if p := obj.(*corev1.Pod); p.Spec.RestartPolicy == "" {
				p.Spec.RestartPolicy = corev1.RestartPolicyAlways
			}
		},
		Fields: func(obj runtime.Object) fields.Set {
			return fields.Set{"spec.nodeName": obj.(*corev1.Pod).Spec.NodeName}
		},
	}
}

func configMapResource() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "ConfigMap", Plural: "configmaps", Namespaced: true, StoragePath: "configmaps",
		New:     func() api.Object { return &corev1.ConfigMap{} },
		NewList: func() runtime.Object { return &corev1.ConfigMapList{} },
	}
}

func widgetResource() *api.Resource {
	return &api.Resource{
		Group: "example.com", Version: "v1", Kind: "Widget", Plural: "widgets", StoragePath: "example.com/widgets",
		New: func() api.Object {
			u := &unstructured.Unstructured{}
			u.SetAPIVersion("example.com/v1")
			u.SetKind("Widget")
			return u
		},
		NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
	}
}

func testScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := corev1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// world is a set of caches that runs over a store in memory.
type world struct {
	store *mem.Store
	set   *Caches
	pods  *resource
}

func start(t testing.TB, mend ...func(*Config)) *world {
	t.Helper()
	w := &world{store: mem.New(mem.Config{})}
	w.set = runCaches(t, w.store, mend...)
	w.pods = w.cache(t, "pods")
	return w
}

func runCaches(t testing.TB, s store.Store, mend ...func(*Config)) *Caches {
	t.Helper()
	c := Config{Store: s, Scheme: testScheme(t), Logger: slog.New(slog.DiscardHandler),
		CheckMutations: 1, OnMutation: func(err error) { t.Error(err) }}
	for _, f := range mend {
		f(&c)
	}
	set, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*api.Resource{podResource(), configMapResource(), widgetResource()} {
		if err := set.Add(Key(r), r); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return set
}

func (w *world) cache(t testing.TB, key string) *resource {
	t.Helper()
	r, ok := w.set.Resource(key)
	if !ok {
		t.Fatalf("no resource %s", key)
	}
	if err := r.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r.(*resource)
}

func pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u-" + "1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func (w *world) create(t testing.TB, p *corev1.Pod) Object {
	t.Helper()
	o, err := w.pods.Create(t.Context(), p, 0)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// relabel updates a pod's label a.
func (w *world) relabel(t testing.TB, namespace, name, value string) Object {
	t.Helper()
	o, err := w.pods.Update(t.Context(), namespace, name, false, Preconditions{}, func(cur Object) (runtime.Object, time.Duration, error) {
		p := cur.Runtime().(*corev1.Pod).DeepCopy()
		p.Labels = map[string]string{"a": value}
		return p, 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (w *world) remove(t testing.TB, namespace, name string) Object {
	t.Helper()
	o, err := w.pods.Delete(t.Context(), namespace, name, Preconditions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func next(t testing.TB, w Watcher) Event {
	t.Helper()
	select {
	case e, ok := <-w.Events():
		if !ok {
			t.Fatal("the watch has ended")
		}
		return e
	case <-time.After(time.Minute):
		t.Fatal("no event")
	}
	panic("unreachable")
}

func expect(t testing.TB, w Watcher, kind watch.EventType, name string) Event {
	t.Helper()
	e := next(t, w)
	got := string(e.Type) + " "
	if e.Object != nil {
		got += e.Object.Meta().GetName()
	}
	if want := string(kind) + " " + name; got != want {
		t.Fatalf("event %s (error %v), want %s", got, e.Err, want)
	}
	return e
}

func names(l *List) string {
	s := ""
	for _, o := range l.Items {
		s += o.Meta().GetName() + " "
	}
	return s
}

func TestCreateGetUpdateDelete(t *testing.T) {
	w := start(t)
	ctx := t.Context()
	o := w.create(t, pod("ns", "a"))
	p := o.Runtime().(*corev1.Pod)
	if p.Kind != "Pod" || p.APIVersion != "v1" || p.ResourceVersion != fmt.Sprint(o.Revision()) {
		t.Errorf("created object has type %q %q and resourceVersion %q at revision %d", p.APIVersion, p.Kind, p.ResourceVersion, o.Revision())
	}
	if p.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Error("defaults were not filled on read")
	}
	if _, err := w.pods.Create(ctx, pod("ns", "a"), 0); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
	got, err := w.pods.Get(ctx, "ns", "a", "")
	if err != nil {
		t.Fatal(err)
	}
	if got.Runtime() != o.Runtime() {
		t.Error("the cache holds another copy than create returned")
	}
	u := w.relabel(t, "ns", "a", "1")
	if u.Revision() <= o.Revision() {
		t.Error("update did not advance the revision")
	}
	if again := w.relabel(t, "ns", "a", "1"); again.Revision() != u.Revision() {
		t.Error("an update that changes nothing was written")
	}
	d := w.remove(t, "ns", "a")
	if d.Revision() <= u.Revision() || d.Meta().GetResourceVersion() != fmt.Sprint(d.Revision()) {
		t.Errorf("deleted object has resourceVersion %s, revision %d", d.Meta().GetResourceVersion(), d.Revision())
	}
	if _, err := w.pods.Get(ctx, "ns", "a", ""); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v", err)
	}
}

func TestWatchTransitions(t *testing.T) {
	w := start(t)
	o := w.create(t, pod("ns", "a"))
	sel := Selection{Namespace: "ns", Labels: mustSelector(t, "a=1")}
	watcher, err := w.pods.Watch(t.Context(), WatchOptions{Selection: sel, ResourceVersion: fmt.Sprint(o.Revision())})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	w.relabel(t, "ns", "a", "1")
	w.relabel(t, "ns", "a", "2")
	w.relabel(t, "ns", "a", "1")
	w.remove(t, "ns", "a")
	expect(t, watcher, watch.Added, "a")
	gone := expect(t, watcher, watch.Deleted, "a")
	if gone.Object.Meta().GetLabels()["a"] != "1" || gone.Object.Meta().GetResourceVersion() != fmt.Sprint(gone.Revision) {
		t.Errorf("deleted by transition: %v", gone.Object.Meta())
	}
	expect(t, watcher, watch.Added, "a")
	expect(t, watcher, watch.Deleted, "a")
}
