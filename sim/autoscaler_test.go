package sim

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
)

func autoscale(t *testing.T, c *Cluster, apiVersion, kind, name string) {
	t.Helper()
	a := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: apiVersion, Kind: kind, Name: name}, MaxReplicas: 10,
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To[int32](50)}}}},
	}}
	if _, err := c.Admin.AutoscalingV2().HorizontalPodAutoscalers("default").Create(t.Context(), a, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// status is an autoscaler's sizes and its conditions' reasons.
func status(t *testing.T, c *Cluster, name string) string {
	t.Helper()
	a, err := c.Admin.AutoscalingV2().HorizontalPodAutoscalers("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := fmt.Sprint(a.Status.CurrentReplicas, " to ", a.Status.DesiredReplicas)
	for _, cond := range a.Status.Conditions {
		out += " " + cond.Reason
	}
	return out
}

func burning(l map[string]string) corev1.PodTemplateSpec {
	p := template(l)
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	return p
}

// TestAutoscaler follows load up and, after five minutes, down, with the rights that the
// controller's own account has.
func TestAutoscaler(t *testing.T) {
	bubble(t, 2, func(t *testing.T, c *Cluster) {
		ctx := t.Context()
		l := map[string]string{"app": "web"}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: l}, Template: burning(l)}}
		if _, err := c.Admin.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if n := c.Measured(); n != 0 {
			t.Errorf("without an autoscaler, pods were measured %d times", n)
		}
		c.Load("web", 50)
		autoscale(t, c, "apps/v1", "Deployment", "web")
		expect := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			if got := status(t, c, "web"); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		expect(time.Minute, "1 to 1 ReadyForNewScale ValidMetricFound DesiredWithinRange")
		if n := c.Measured(); n < 4 || n > 5 {
			t.Errorf("in a minute pods were measured %d times", n)
		}
		c.Load("web", 300)
		expect(2*time.Minute, "6 to 6 ReadyForNewScale ValidMetricFound DesiredWithinRange NotScaledToZero")
		c.Load("web", 5000)
		expect(2*time.Minute, "10 to 10 ReadyForNewScale ValidMetricFound TooManyReplicas NotScaledToZero")
		c.Load("web", 90)
		expect(4*time.Minute, "10 to 10 ScaleDownStabilized ValidMetricFound TooManyReplicas NotScaledToZero")
		expect(3*time.Minute, "2 to 2 ReadyForNewScale ValidMetricFound DesiredWithinRange NotScaledToZero")

		if err := c.Admin.AutoscalingV2().HorizontalPodAutoscalers("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		before := c.Measured()
		time.Sleep(10 * time.Minute)
		if n := c.Measured() - before; n != 0 {
			t.Errorf("after the autoscaler was deleted, pods were measured %d times", n)
		}
	})
}

const fleets = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"fleets.example.com"},"spec":{
"group":"example.com","scope":"Namespaced","names":{"plural":"fleets","singular":"fleet","kind":"Fleet","listKind":"FleetList"},
"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.size","statusReplicasPath":".status.size","labelSelectorPath":".status.selector"}},
"schema":{"openAPIV3Schema":{"type":"object","properties":{
"spec":{"type":"object","properties":{"size":{"type":"integer"}}},"status":{"type":"object","properties":{"size":{"type":"integer"},"selector":{"type":"string"}}}}}}}]}}`

// TestAutoscalerOfCustomResource finds a target that nobody knew at build time, and says so
// while it is not there.
func TestAutoscalerOfCustomResource(t *testing.T) {
	bubble(t, 1, func(t *testing.T, c *Cluster) {
		autoscale(t, c, "example.com/v1", "Fleet", "f")
		time.Sleep(time.Minute)
		if got := status(t, c, "f"); got != "0 to 0 FailedGetScale" {
			t.Errorf("before there is such a kind: %q", got)
		}
		if _, err := raw(t, c, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", fleets); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		const path = "/apis/example.com/v1/namespaces/default/fleets"
		made, err := raw(t, c, "POST", path, `{"apiVersion":"example.com/v1","kind":"Fleet","metadata":{"name":"f"},"spec":{"size":2}}`)
		if err != nil {
			t.Fatal(err)
		}
		with := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Fleet","metadata":{"name":"f","resourceVersion":%q},"status":{"size":2,"selector":"app=f"}}`, made.GetResourceVersion())
		if _, err := raw(t, c, "PUT", path+"/f/status", with); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			p := burning(map[string]string{"app": "f"})
			if _, err := c.Admin.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("f-", i), Labels: p.Labels}, Spec: p.Spec}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		c.Load("f", 200)
		time.Sleep(6 * time.Minute)
		u, err := raw(t, c, "GET", path+"/f", "")
		if err != nil {
			t.Fatal(err)
		}
		if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "size"); n != 4 {
			t.Errorf("size %d, want 4; %s", n, status(t, c, "f"))
		}
	})
}

// TestAutoscalersOfOneTarget keep their hands off it.
func TestAutoscalersOfOneTarget(t *testing.T) {
	bubble(t, 1, func(t *testing.T, c *Cluster) {
		l := map[string]string{"app": "web"}
		for _, name := range []string{"a", "b"} {
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: l}, Template: burning(l)}}
			if _, err := c.Admin.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			autoscale(t, c, "apps/v1", "Deployment", name)
		}
		c.Load("web", 4000)
		time.Sleep(time.Minute)
		for _, name := range []string{"a", "b"} {
			if got, want := status(t, c, name), "2 to 0 SucceededGetScale AmbiguousSelector"; got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	})
}
