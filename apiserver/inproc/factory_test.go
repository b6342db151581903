package inproc

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/store/mem"
)

func TestInformersShareObjects(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	caches, err := cacher.New(cacher.Config{Store: mem.New(mem.Config{}), Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := caches.Add("pods", &api.Resource{
		Version: "v1", Kind: "Pod", Plural: "pods", Namespaced: true, StoragePath: "pods",
		New:     func() api.Object { return &corev1.Pod{} },
		NewList: func() runtime.Object { return &corev1.PodList{} },
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- caches.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	pods, _ := caches.Resource("pods")
	if err := pods.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	}
	if _, err := pods.Create(ctx, pod("before"), 0); err != nil {
		t.Fatal(err)
	}

	// No client: nothing may fall back to it.
	f := NewInformerFactory(caches, nil, 0)
	informer := f.Core().V1().Pods().Informer()
	generic, err := f.ForResource(schema.GroupVersionResource{Version: "v1", Resource: "pods"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := generic.Informer().GetIndexer(), informer.GetIndexer(); got != want {
		t.Error("ForResource made another informer")
	}
	events := make(chan string, 10)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { events <- "add " + obj.(*corev1.Pod).Name },
		UpdateFunc: func(_, obj any) { events <- "update " + obj.(*corev1.Pod).Name },
		DeleteFunc: func(obj any) { events <- "delete " + obj.(*corev1.Pod).Name },
	}); err != nil {
		t.Fatal(err)
	}
	f.StartWithContext(ctx)
	defer f.Shutdown()
	defer cancel()
	if res := f.WaitForCacheSyncWithContext(ctx); res.Err != nil {
		t.Fatal(res.Err)
	}
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-events:
			if got != want {
				t.Fatalf("event %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no event, want %q", want)
		}
	}
	expect("add before")
	created, err := pods.Create(ctx, pod("after"), 0)
	if err != nil {
		t.Fatal(err)
	}
	expect("add after")
	got, err := f.Core().V1().Pods().Lister().Pods("ns").Get("after")
	if err != nil {
		t.Fatal(err)
	}
	if runtime.Object(got) != created.Runtime() {
		t.Error("the informer holds a copy of the cache's object")
	}
	if _, err := pods.Update(ctx, "ns", "after", false, cacher.Preconditions{}, func(cur cacher.Object) (runtime.Object, time.Duration, error) {
		p := cur.Runtime().(*corev1.Pod).DeepCopy()
		p.Labels = map[string]string{"a": "b"}
		return p, 0, nil
	}); err != nil {
		t.Fatal(err)
	}
	expect("update after")
	if _, err := pods.Delete(ctx, "ns", "before", cacher.Preconditions{}, nil); err != nil {
		t.Fatal(err)
	}
	expect("delete before")
	list, err := f.Core().V1().Pods().Lister().List(labels.Everything())
	if err != nil || len(list) != 1 || list[0].Labels["a"] != "b" {
		t.Errorf("lister has %v, %v", list, err)
	}
}
