package garbagecollector

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	discoveryfake "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

var (
	gvrs = map[string]schema.GroupVersionResource{
		"Deployment": {Group: "apps", Version: "v1", Resource: "deployments"},
		"ReplicaSet": {Group: "apps", Version: "v1", Resource: "replicasets"},
		"Pod":        {Version: "v1", Resource: "pods"},
		"Widget":     {Group: "example.com", Version: "v1", Resource: "widgets"},
	}
	lists = []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: all}, {Name: "events", Kind: "Event", Namespaced: true, Verbs: all}}},
		{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment", Namespaced: true, Verbs: all}, {Name: "replicasets", Kind: "ReplicaSet", Namespaced: true, Verbs: all}}},
		{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: "widgets", Kind: "Widget", Verbs: all}}},
	}
	all = metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}
)

func object(kind, name string, owners ...*metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	gvr := gvrs[kind]
	o := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: gvr.GroupVersion().String(), Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)},
	}
	if kind == "Widget" {
		o.Namespace = ""
	}
	for _, w := range owners {
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{APIVersion: w.APIVersion, Kind: w.Kind, Name: w.Name, UID: w.UID, BlockOwnerDeletion: ptr.To(true)})
	}
	return o
}

type flow struct {
	t      *testing.T
	client *metadatafake.FakeMetadataClient
}

func start(t *testing.T, objs ...*metav1.PartialObjectMetadata) flow {
	return startWith(t, func(*metadatafake.FakeMetadataClient) {}, objs...)
}

func startWith(t *testing.T, prepare func(*metadatafake.FakeMetadataClient), objs ...*metav1.PartialObjectMetadata) flow {
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var list []runtime.Object
	for _, o := range objs {
		list = append(list, o)
	}
	client := metadatafake.NewSimpleMetadataClient(scheme, list...)
	prepare(client)
	kube := fake.NewClientset()
	disco := kube.Discovery().(*discoveryfake.FakeDiscovery)
	disco.Resources = lists
	c, err := New(controller.Config{
		Client: kube, Metadata: client, Discovery: disco, Events: record.NewFakeRecorder(100),
		Clock: clock.RealClock{}, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	f := flow{t, client}
	f.settle()
	return f
}

func (f flow) settle() {
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

func (f flow) delete(kind, name string) {
	f.t.Helper()
	o := object(kind, name)
	if err := f.client.Tracker().Delete(gvrs[kind], o.Namespace, name); err != nil {
		f.t.Fatal(err)
	}
	f.settle()
}

// terminate marks an object as being deleted with a finalizer, as the API server does
// for foreground deletion and orphaning.
func (f flow) terminate(kind, name, finalizer string) {
	f.t.Helper()
	o := f.get(kind, name).DeepCopy()
	o.DeletionTimestamp = ptr.To(metav1.Now())
	o.Finalizers = append(o.Finalizers, finalizer)
	if err := f.client.Tracker().Update(gvrs[kind], o, o.Namespace); err != nil {
		f.t.Fatal(err)
	}
	f.settle()
}

func (f flow) get(kind, name string) *metav1.PartialObjectMetadata {
	o, err := f.client.Tracker().Get(gvrs[kind], object(kind, name).Namespace, name)
	if err != nil {
		return nil
	}
	return o.(*metav1.PartialObjectMetadata)
}

func (f flow) want(kind, name string, there bool) {
	f.t.Helper()
	if got := f.get(kind, name) != nil; got != there {
		f.t.Errorf("%s %s there: %v, want %v", kind, name, got, there)
	}
}

func TestBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := object("Deployment", "d")
		rs := object("ReplicaSet", "rs", d)
		other := object("ReplicaSet", "other")
		f := start(t, d, rs, other, object("Pod", "p1", rs), object("Pod", "p2", rs), object("Pod", "shared", rs, other), object("Pod", "free"))
		for _, p := range []string{"p1", "p2", "shared", "free"} {
			f.want("Pod", p, true)
		}
		f.delete("Deployment", "d")
		f.want("ReplicaSet", "rs", false)
		f.want("Pod", "p1", false)
		f.want("Pod", "p2", false)
		f.want("Pod", "free", true)
		if p := f.get("Pod", "shared"); p == nil || len(p.OwnerReferences) != 1 || p.OwnerReferences[0].UID != "other" {
			t.Errorf("shared pod %+v", p)
		}
	})
}

func TestOwnerNeverSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := object("ReplicaSet", "gone")
		reborn := object("ReplicaSet", "reborn")
		stale := object("Pod", "stale", reborn)
		reborn.UID = "another"
		cluster := object("Widget", "w")
		f := start(t, reborn, stale, object("Pod", "p", gone), cluster, object("Pod", "q", cluster))
		f.want("Pod", "p", false)
		f.want("Pod", "stale", false)
		f.want("Pod", "q", true)
		f.delete("Widget", "w")
		f.want("Pod", "q", false)
	})
}

func TestForeground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := object("Deployment", "d")
		rs := object("ReplicaSet", "rs", d)
		held := object("Pod", "held", d)
		held.Finalizers = []string{"example.com/hold"}
		held.DeletionTimestamp = ptr.To(metav1.Now())
		f := start(t, d, rs, held)
		f.terminate("Deployment", "d", metav1.FinalizerDeleteDependents)
		f.want("ReplicaSet", "rs", false)
		if o := f.get("Deployment", "d"); o == nil || !slices.Contains(o.Finalizers, metav1.FinalizerDeleteDependents) {
			t.Fatal("the owner did not wait for its blocking dependent")
		}
		f.delete("Pod", "held")
		if o := f.get("Deployment", "d"); o == nil || len(o.Finalizers) > 0 {
			t.Errorf("finalizers %v", o.Finalizers)
		}
	})
}

func TestOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := object("Deployment", "d")
		rs := object("ReplicaSet", "rs", d)
		f := start(t, d, rs, object("Pod", "p", rs))
		f.terminate("Deployment", "d", metav1.FinalizerOrphanDependents)
		if o := f.get("ReplicaSet", "rs"); o == nil || len(o.OwnerReferences) > 0 {
			t.Fatalf("dependent %+v", o)
		}
		if o := f.get("Deployment", "d"); len(o.Finalizers) > 0 {
			t.Errorf("finalizers %v", o.Finalizers)
		}
		f.delete("Deployment", "d")
		f.want("ReplicaSet", "rs", true)
		f.want("Pod", "p", true)
	})
}

// A dependent that the watch has not told of is let go with the others.
func TestOrphanOfWhomTheWatchIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := object("Deployment", "d")
		var live atomic.Bool // lists tell all
		f := startWith(t, func(client *metadatafake.FakeMetadataClient) {
			client.PrependReactor("list", "replicasets", func(clienttesting.Action) (bool, runtime.Object, error) {
				if live.Load() {
					return false, nil, nil
				}
				return true, &metav1.List{Items: []runtime.RawExtension{{Object: object("ReplicaSet", "known", d)}}}, nil
			})
			client.PrependWatchReactor("replicasets", func(a clienttesting.Action) (bool, watch.Interface, error) {
				w, err := client.Tracker().Watch(gvrs["ReplicaSet"], "", a.(clienttesting.WatchActionImpl).ListOptions)
				if err != nil {
					return true, nil, err
				}
				return true, watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
					o, ok := e.Object.(*metav1.PartialObjectMetadata)
					return e, !ok || o.Name != "late"
				}), nil
			})
		}, d, object("ReplicaSet", "known", d), object("ReplicaSet", "late", d))
		live.Store(true)
		f.terminate("Deployment", "d", metav1.FinalizerOrphanDependents)
		for _, name := range []string{"known", "late"} {
			if o := f.get("ReplicaSet", name); o == nil || len(o.OwnerReferences) > 0 {
				t.Errorf("dependent %s: %+v", name, o)
			}
		}
		if o := f.get("Deployment", "d"); len(o.Finalizers) > 0 {
			t.Errorf("finalizers %v", o.Finalizers)
		}
	})
}
