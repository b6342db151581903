package lookup_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
)

type names struct {
	mu  sync.Mutex
	set map[string]bool
}

func (n *names) Replace(objs []cacher.Object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.set = map[string]bool{}
	for _, o := range objs {
		n.set[o.Meta().GetName()] = true
	}
}

func (n *names) Set(o cacher.Object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.set[o.Meta().GetName()] = true
}

func (n *names) Delete(o cacher.Object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.set, o.Meta().GetName())
}

func (n *names) is(want ...string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	var have []string
	for s := range n.set {
		have = append(have, s)
	}
	slices.Sort(have)
	return slices.Equal(have, want)
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

func TestFollower(t *testing.T) {
	caches := lookuptest.New(t, configMap("a"), configMap("b"))
	n := &names{}
	f := lookup.NewFollower(caches.Of(&corev1.ConfigMap{}), n, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	<-f.Synced()
	if !n.is("a", "b") {
		t.Fatalf("after the initial events: %v", n.set)
	}
	caches.Create(configMap("c"))
	caches.Delete(configMap("a"))
	for deadline := time.Now().Add(time.Minute); !n.is("b", "c"); {
		if time.Now().After(deadline) {
			t.Fatalf("after create and delete: %v", n.set)
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestReads(t *testing.T) {
	caches := lookuptest.New(t, configMap("a"))
	ctx := t.Context()
	gr := schema.GroupResource{Resource: "configmaps"}
	if cm, err := lookup.Cached[*corev1.ConfigMap](ctx, caches, gr, "ns", "a"); err != nil || cm.Name != "a" {
		t.Fatalf("Cached: %v, %v", cm, err)
	}
	if _, err := lookup.CachedOrFresh[*corev1.ConfigMap](ctx, caches, gr, "ns", "x"); !apierrors.IsNotFound(err) {
		t.Fatalf("CachedOrFresh of a missing object: %v", err)
	}
	if _, err := lookup.Fresh[*corev1.Pod](ctx, caches, gr, "ns", "a"); !apierrors.IsInternalError(err) {
		t.Fatalf("wrong type: %v", err)
	}
	if l, err := lookup.FreshList[*corev1.ConfigMap](ctx, caches, gr, "other"); err != nil || len(l) != 0 {
		t.Fatalf("list of an empty namespace: %v, %v", l, err)
	}
	if _, err := lookup.Cached[*corev1.Pod](ctx, caches, schema.GroupResource{Resource: "nothings"}, "", "a"); !apierrors.IsInternalError(err) {
		t.Fatalf("unknown resource: %v", err)
	}
}
