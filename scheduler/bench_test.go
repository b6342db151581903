package scheduler

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/skiff-k8s/skiff/scheduler/framework"
)

// BenchmarkCycle is everything the loop does for one pod but for the API calls: news of
// the pod, queue, filter, score, assume, and news of the binding.
func BenchmarkCycle(b *testing.B) {
	for _, nodes := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(nodes, "nodes"), func(b *testing.B) {
			s := benchScheduler(b, nodes)
			now := time.Now()
			b.ReportAllocs()
			pods := make([]*corev1.Pod, b.N)
			for i := range pods {
				pods[i] = testPod(fmt.Sprint("p", i), "1m", "1Mi")
			}
			b.ResetTimer()
			for i := range b.N {
				p := pods[i]
				s.podChanged(nil, p, now)
				it := s.queue.Pop(now)
				s.snap.Order()
				n, f := s.find(&framework.Cycle{Pod: it.Pod, Snap: s.snap, Now: now}, s.profiles[corev1.DefaultSchedulerName])
				if f != nil {
					b.Fatal(f.message())
				}
				s.snap.Assume(it.Pod, n.Name())
				bound := p.DeepCopy()
				bound.Spec.NodeName = n.Name()
				s.podChanged(p, bound, now)
				if i%1000 == 999 { // keep the cluster from filling up
					b.StopTimer()
					for j := i - 999; j <= i; j++ {
						s.snap.RemovePod(types.UID(fmt.Sprint("p", j)))
					}
					b.StartTimer()
				}
			}
		})
	}
}

func benchScheduler(b *testing.B, nodes int) *Scheduler {
	client := fake.NewClientset()
	s, err := New(Config{Client: client, Informers: informers.NewSharedInformerFactory(client, 0),
		Events: events.NewFakeRecorder(1), Logger: slog.New(slog.DiscardHandler), Seed: 1})
	if err != nil {
		b.Fatal(err)
	}
	for i := range nodes {
		s.nodeChanged(nil, testNode(fmt.Sprint("node", i), func(n *corev1.Node) {
			n.Labels[corev1.LabelTopologyZone] = fmt.Sprint("zone", i%3)
		}), time.Now())
	}
	return s
}
