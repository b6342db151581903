package sim

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func logger(t testing.TB) *slog.Logger {
	level := slog.LevelWarn
	if os.Getenv("SIM_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level}))
}

func start(t testing.TB, nodes int) *Cluster {
	t.Helper()
	c, err := New(nodes, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// retry reads, changes and writes again while others write in between.
func retry(t *testing.T, f func() error) {
	t.Helper()
	err := f()
	for apierrors.IsConflict(err) {
		err = f()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until check returns "", and fails with what it said last.
func eventually(t testing.TB, what string, check func() string) {
	t.Helper()
	begin := time.Now()
	last := ""
	for time.Since(begin) < 20*time.Second {
		if last = check(); last == "" {
			t.Logf("%s: %s", what, time.Since(begin).Round(time.Millisecond))
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s: %s", what, last)
}

func template(labels map[string]string, args ...string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "skiff.local/hello:v1", Args: args,
			Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}},
	}
}

func TestFirstLight(t *testing.T) {
	c := start(t, 2)
	ctx := t.Context()
	ns := "shop"
	if _, err := c.Admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ServiceAccount and root CA", func() string {
		if _, err := c.Admin.CoreV1().ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if _, err := c.Admin.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	eventually(t, "pod CIDRs", func() string {
		nodes, err := c.Admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, n := range nodes.Items {
			if n.Spec.PodCIDR == "" {
				return n.Name + " has none"
			}
		}
		return ""
	})

	web := map[string]string{"app": "web"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: web}, Template: template(web)}}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Selector: web,
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}}}}
	if _, err := c.Admin.CoreV1().Services(ns).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Admin.AppsV1().Deployments(ns).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rolledOut := func(n int32) func() string {
		return func() string {
			d, err := c.Admin.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			st := d.Status
			if st.ObservedGeneration < d.Generation || st.UpdatedReplicas != n || st.Replicas != n || st.AvailableReplicas != n {
				return fmt.Sprintf("generation %d, %+v", d.Generation, st)
			}
			return ""
		}
	}
	eventually(t, "Deployment available", rolledOut(3))
	eventually(t, "endpoints", func() string {
		list, err := c.Admin.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		n := 0
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				if *e.Conditions.Ready {
					n++
				}
			}
		}
		ep, err := c.Admin.CoreV1().Endpoints(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if n != 3 || len(ep.Subsets) != 1 || len(ep.Subsets[0].Addresses) != 3 {
			return fmt.Sprintf("%d in %d slices, legacy %+v", n, len(list.Items), ep.Subsets)
		}
		return ""
	})

	retry(t, func() error {
		d, err := c.Admin.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Annotations["deployment.kubernetes.io/revision"] != "1" {
			t.Errorf("annotations %v", d.Annotations)
		}
		d.Spec.Template.Spec.Containers[0].Image = "skiff.local/hello:v2"
		d.Spec.Replicas = ptr.To[int32](5)
		_, err = c.Admin.AppsV1().Deployments(ns).Update(ctx, d, metav1.UpdateOptions{})
		return err
	})
	eventually(t, "rolled out and scaled", rolledOut(5))

	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "sum"}, Spec: batchv1.JobSpec{Completions: ptr.To[int32](4), Parallelism: ptr.To[int32](2),
		Template: template(nil, "exit", "0")}}
	j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	if _, err := c.Admin.BatchV1().Jobs(ns).Create(ctx, j, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Job complete", func() string {
		j, err := c.Admin.BatchV1().Jobs(ns).Get(ctx, "sum", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, cond := range j.Status.Conditions {
			if cond.Type == batchv1.JobComplete && j.Status.Succeeded == 4 {
				return ""
			}
		}
		return fmt.Sprintf("%+v", j.Status)
	})
	// Only now: a Job may not be seen complete in a second on a loaded machine.
	if _, err := c.Admin.BatchV1().Jobs(ns).Patch(ctx, "sum", types.MergePatchType, []byte(`{"spec":{"ttlSecondsAfterFinished":1}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Job gone by its TTL, pods with it", func() string {
		pods, err := c.Admin.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "batch.kubernetes.io/job-name=sum"})
		if err != nil || len(pods.Items) > 0 {
			return fmt.Sprintf("%d pods, %v", len(pods.Items), err)
		}
		return gone(c.Admin.BatchV1().Jobs(ns).Get(ctx, "sum", metav1.GetOptions{}))
	})

	if err := c.Admin.AppsV1().Deployments(ns).Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "foreground deletion", func() string {
		pods, err := c.Admin.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) > 0 {
			return fmt.Sprintf("%d pods, %v", len(pods.Items), err)
		}
		return gone(c.Admin.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{}))
	})

	if err := c.Admin.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "namespace gone", func() string {
		return gone(c.Admin.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}))
	})
}

func gone(o any, err error) string {
	switch {
	case apierrors.IsNotFound(err):
		return ""
	case err != nil:
		return err.Error()
	}
	return fmt.Sprintf("still there: %+v", o)
}
