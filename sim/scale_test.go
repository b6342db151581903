package sim

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// BenchmarkRollout makes a Deployment of b.N pods with a Service and reports what the
// whole control plane, hollow nodes included, takes until all are ready.
func BenchmarkRollout(b *testing.B) {
	c := start(b, 1+b.N/100)
	ctx := b.Context()
	eventually(b, "nodes are ready", func() string { return unready(b, c, 1+b.N/100) })
	l := map[string]string{"app": "web"}
	if _, err := c.Admin.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Selector: l, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	revision := func() int {
		list, err := c.Admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			b.Fatal(err)
		}
		n, err := strconv.Atoi(list.ResourceVersion)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	before, writes := cpu(b), revision()
	b.ResetTimer()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(b.N)), Selector: &metav1.LabelSelector{MatchLabels: l}, Template: template(l)}}
	if _, err := c.Admin.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	for {
		d, err := c.Admin.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if d.Status.AvailableReplicas == int32(b.N) {
			break
		}
		if b.Elapsed() > 5*time.Minute {
			b.Fatalf("%+v", d.Status)
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.ReportMetric(float64(cpu(b)-before)/1e6/float64(b.N), "CPU-ms/pod")
	b.ReportMetric(float64(revision()-writes)/float64(b.N), "writes/pod")
}

// unready says which of the n nodes are not there or not ready; nothing if all are.
func unready(b *testing.B, c *Cluster, n int) string {
	list, err := c.Admin.CoreV1().Nodes().List(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	ready := 0
	for i := range list.Items {
		for _, cond := range list.Items[i].Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	if ready < n {
		return fmt.Sprintf("%d of %d nodes are ready", ready, n)
	}
	return ""
}
