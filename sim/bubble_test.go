package sim

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// bubble runs f with a cluster in virtual time. Whatever the control plane leaves running
// after its context ended fails the test.
func bubble(t *testing.T, nodes int, f func(t *testing.T, c *Cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(nodes, logger(t))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		if err := c.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		f(t, c)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestNodeDies follows a machine that is switched off to where its pods run again.
func TestNodeDies(t *testing.T) {
	bubble(t, 3, func(t *testing.T, c *Cluster) {
		ctx := t.Context()
		l := map[string]string{"app": "web"}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](6), Selector: &metav1.LabelSelector{MatchLabels: l}, Template: template(l)}}
		if _, err := c.Admin.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		running := func() (on map[string]int, ready int) {
			pods, err := c.Admin.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			on = map[string]int{}
			for _, p := range pods.Items {
				if p.DeletionTimestamp != nil {
					continue
				}
				on[p.Spec.NodeName]++
				for _, cond := range p.Status.Conditions {
					if cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue {
						ready++
					}
				}
			}
			return on, ready
		}
		if on, ready := running(); on["node-0"] != 2 || on["node-1"] != 2 || on["node-2"] != 2 || ready != 6 {
			t.Fatalf("pods by node %v, %d ready", on, ready)
		}
		c.PowerOff("node-1")
		status := func() string {
			n, err := c.Admin.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, cond := range n.Status.Conditions {
				if cond.Type == corev1.NodeReady {
					return fmt.Sprintf("%s, %d taints", cond.Status, len(n.Spec.Taints))
				}
			}
			return ""
		}
		time.Sleep(35 * time.Second)
		if got := status(); got != "True, 0 taints" {
			t.Errorf("within the grace period: %s", got)
		}
		time.Sleep(30 * time.Second)
		if got := status(); got != "Unknown, 2 taints" {
			t.Errorf("after it: %s", got)
		}
		if _, ready := running(); ready != 4 {
			t.Errorf("%d pods are still called ready", ready)
		}
		time.Sleep(310 * time.Second) // the default tolerationSeconds
		if on, ready := running(); on["node-1"] != 0 || on["node-0"]+on["node-2"] != 6 || ready != 6 {
			t.Errorf("pods by node %v, %d ready", on, ready)
		}
	})
}

// TestQuietDay lets a day pass in which nothing happens: all there is to write are the
// leases of the nodes and of the API server.
func TestQuietDay(t *testing.T) {
	if testing.Short() {
		t.Skip("a virtual day takes some 15 s of CPU")
	}
	const nodes = 2
	bubble(t, nodes, func(t *testing.T, c *Cluster) {
		revision := func() int {
			list, err := c.Admin.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.Atoi(list.ResourceVersion)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := revision()
		time.Sleep(24 * time.Hour)
		if writes, leases := revision()-before, (nodes+1)*int(24*time.Hour/heartbeat); writes > leases+100 {
			t.Errorf("%d writes on a quiet day, of which %d renew leases", writes, leases)
		}
	})
}
