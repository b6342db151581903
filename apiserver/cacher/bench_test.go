package cacher

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// typicalPod is about 2 KB of protobuf, as pods of a Deployment are.
func typicalPod(namespace, name string) *corev1.Pod {
	p := pod(namespace, name)
	p.Labels = map[string]string{"app": "web", "pod-template-hash": "5d4f8c7b9"}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d4f8c7b9", UID: "3f1c"}}
	c := &p.Spec.Containers[0]
	c.Image = "registry.example.com/team/web:v1.2.3"
	for i := range 8 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", i), Value: strings.Repeat("v", 40)})
	}
	c.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: quantity.MustParse("100m"), corev1.ResourceMemory: quantity.MustParse("128Mi"),
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-x", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:env":{},"f:image":{}}}}}` + strings.Repeat(" ", 400))},
	}}
	return p
}

func fill(b *testing.B, w *world, n int) {
	b.Helper()
	for i := range n {
		p := typicalPod(fmt.Sprintf("ns%d", i%50), fmt.Sprintf("web-%05d", i))
		p.Spec.NodeName = fmt.Sprintf("node-%d", i%100)
		w.create(b, p)
	}
	w.consistent(b)
}

// BenchmarkList5000 lists as the API server does: items' encodings are joined.
func BenchmarkList5000(b *testing.B) {
	w := start(b, func(c *Config) { c.Budget = 128 << 20 })
	fill(b, w, 5000)
	for _, test := range []struct {
		name   string
		encode func(Object) ([]byte, error)
		o      ListOptions
	}{
		{"json", Object.JSON, ListOptions{}},
		{"protobuf", Object.RawProto, ListOptions{}},
		{"namespace", Object.RawProto, ListOptions{Selection: Selection{Namespace: "ns7"}}},
		{"node", Object.RawProto, ListOptions{Selection: Selection{Fields: fields.OneTermEqualSelector("spec.nodeName", "node-7")}}},
		{"page", Object.RawProto, ListOptions{Limit: 500}},
	} {
		b.Run(test.name, func(b *testing.B) {
			size := 0
			var out []byte
			for b.Loop() {
				l, err := w.pods.List(b.Context(), test.o)
				if err != nil {
					b.Fatal(err)
				}
				out = out[:0]
				for _, o := range l.Items {
					enc, err := test.encode(o)
					if err != nil {
						b.Fatal(err)
					}
					out = append(out, enc...)
				}
				size = len(out)
			}
			b.ReportMetric(float64(size), "bytes/list")
		})
	}
}

// BenchmarkListCold lists what nobody has read since it was stored.
func BenchmarkListCold(b *testing.B) {
	w := start(b)
	fill(b, w, 5000)
	b.ResetTimer()
	for b.Loop() {
		b.StopTimer()
		set := runCaches(b, w.store, func(c *Config) { c.Logger = slog.New(slog.DiscardHandler) })
		r, _ := set.Resource("pods")
		if err := r.WaitReady(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		l, err := r.List(b.Context(), ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		for _, o := range l.Items {
			if _, err := o.RawProto(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	w := start(b)
	i := 0
	for b.Loop() {
		i++
		w.create(b, typicalPod("ns", fmt.Sprintf("web-%d", i)))
	}
}

func BenchmarkUpdate(b *testing.B) {
	w := start(b)
	w.create(b, typicalPod("ns", "a"))
	i := 0
	for b.Loop() {
		i++
		w.relabel(b, "ns", "a", fmt.Sprint(i))
	}
}

func BenchmarkGet(b *testing.B) {
	w := start(b)
	fill(b, w, 1000)
	for b.Loop() {
		if _, err := w.pods.Get(b.Context(), "ns7", "web-00007", ""); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWatchFanout: one writer, many watches of everything that encode each event.
func BenchmarkWatchFanout(b *testing.B) {
	for _, watchers := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(watchers), func(b *testing.B) {
			w := start(b)
			w.create(b, typicalPod("ns", "a"))
			w.consistent(b)
			now, err := w.pods.current()
			if err != nil {
				b.Fatal(err)
			}
			var seen atomic.Int64
			for range watchers {
				go drain(b, open(b, w, WatchOptions{ResourceVersion: fmt.Sprint(now.rev)}), &seen)
			}
			n := int64(0)
			for b.Loop() {
				n++
				w.relabel(b, "ns", "a", fmt.Sprint(n))
				for seen.Load() < n*int64(watchers) {
					time.Sleep(10 * time.Microsecond)
				}
			}
		})
	}
}

// BenchmarkWatchNodes: as many watches as nodes, each of the pods of one node.
func BenchmarkWatchNodes(b *testing.B) {
	w := start(b)
	const nodes = 1000
	var seen atomic.Int64
	for i := range nodes {
		go drain(b, open(b, w, WatchOptions{ResourceVersion: "0", Selection: Selection{
			Fields: fields.OneTermEqualSelector("spec.nodeName", fmt.Sprintf("node-%d", i)),
		}}), &seen)
	}
	p := typicalPod("ns", "a")
	p.Spec.NodeName = "node-7"
	w.create(b, p)
	n := int64(1)
	for b.Loop() {
		n++
		w.relabel(b, "ns", "a", fmt.Sprint(n))
		for seen.Load() < n {
			time.Sleep(10 * time.Microsecond)
		}
	}
}

func drain(b *testing.B, w Watcher, seen *atomic.Int64) {
	for e := range w.Events() {
		if e.Type == watch.Error {
			b.Error(e.Err)
			return
		}
		if _, err := e.Object.JSON(); err != nil {
			b.Error(err)
			return
		}
		seen.Add(1)
	}
}

// BenchmarkDecode is the price of one object that is read the first time.
func BenchmarkDecode(b *testing.B) {
	w := start(b)
	e := w.create(b, typicalPod("ns", "a")).(*entry)
	raw := *e.raw.Load()
	b.ReportMetric(float64(len(raw)), "bytes")
	for b.Loop() {
		if _, err := w.pods.codec.decode(raw, 1); err != nil {
			b.Fatal(err)
		}
	}
}
