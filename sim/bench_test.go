package sim

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkBind schedules pods on nodes without kubelets and reports the CPU of the whole
// control plane per pod, from its creation to its binding.
func BenchmarkBind(b *testing.B) {
	c := start(b, 0)
	ctx := b.Context()
	const nodes = 1000
	for i := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{corev1.LabelHostname: fmt.Sprint("n", i)}}}
		made, err := c.Admin.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		made.Spec.Taints = nil
		if made, err = c.Admin.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
		q := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("250")}
		made.Status.Capacity, made.Status.Allocatable = q, q
		made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
		if _, err := c.Admin.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	before := cpu(b)
	b.ResetTimer()
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < b.N; i += 16 {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)}, Spec: template(nil).Spec}
				if _, err := c.Admin.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for {
		list, err := c.Admin.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=", Limit: 1})
		if err != nil {
			b.Fatal(err)
		}
		if len(list.Items) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.ReportMetric(float64(cpu(b)-before)/1e6/float64(b.N), "CPU-ms/pod")
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
