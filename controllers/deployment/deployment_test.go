package deployment_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
	"github.com/skiff-k8s/skiff/controllers/deployment"
	"github.com/skiff-k8s/skiff/controllers/replicaset"
)

type flow struct {
	*controllertest.Env
	t *testing.T
}

func start(t *testing.T) flow {
	e := controllertest.New(t)
	d, err := deployment.New(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	r, err := replicaset.New(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	e.Start(d, r)
	return flow{e, t}
}

func web(n int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(n),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}},
			},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromString("25%")), MaxUnavailable: ptr.To(intstr.FromString("25%"))}},
			RevisionHistoryLimit:    ptr.To[int32](2),
			ProgressDeadlineSeconds: ptr.To[int32](600),
		},
	}
}

func (f flow) create(d *appsv1.Deployment) {
	f.t.Helper()
	if _, err := f.Client.AppsV1().Deployments("ns").Create(f.t.Context(), d, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.Settle()
}

func (f flow) get() *appsv1.Deployment {
	f.t.Helper()
	d, err := f.Client.AppsV1().Deployments("ns").Get(f.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

func (f flow) change(change func(d *appsv1.Deployment)) {
	f.t.Helper()
	d := f.get()
	change(d)
	if _, err := f.Client.AppsV1().Deployments("ns").Update(f.t.Context(), d, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.Settle()
}

func (f flow) image(v string) {
	f.t.Helper()
	f.change(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = v })
}

// sets is the size of each set by its image.
func (f flow) sets() map[string]int32 {
	f.t.Helper()
	list, err := f.Client.AppsV1().ReplicaSets("ns").List(f.t.Context(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	m := map[string]int32{}
	for _, rs := range list.Items {
		m[rs.Spec.Template.Spec.Containers[0].Image] = *rs.Spec.Replicas
	}
	return m
}

func (f flow) wantSets(want map[string]int32) {
	f.t.Helper()
	if got := f.sets(); !maps.Equal(got, want) {
		f.t.Fatalf("ReplicaSets %v, want %v", got, want)
	}
}

func (f flow) ready() {
	f.t.Helper()
	f.SetPods("ns", "app=web", controllertest.MakeReady)
	f.Settle()
}

func (f flow) reason(t appsv1.DeploymentConditionType) string {
	f.t.Helper()
	for _, c := range f.get().Status.Conditions {
		if c.Type == t {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

func TestRollout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(web(4))
		f.wantSets(map[string]int32{"v1": 4})
		if got := len(f.Pods("ns", "app=web")); got != 4 {
			t.Fatalf("%d pods, want 4", got)
		}
		if got := f.reason(appsv1.DeploymentAvailable); got != "False MinimumReplicasUnavailable" {
			t.Error(got)
		}
		f.ready()
		if got := f.reason(appsv1.DeploymentProgressing); got != "True NewReplicaSetAvailable" {
			t.Error(got)
		}
		if got := f.get().Annotations[deployment.RevisionAnnotation]; got != "1" {
			t.Errorf("revision %q", got)
		}

		// One surge, one unavailable: never below 3 available nor above 5 in all.
		f.image("v2")
		f.wantSets(map[string]int32{"v1": 3, "v2": 2})
		if got := f.reason(appsv1.DeploymentProgressing); got != "True ReplicaSetUpdated" {
			t.Error(got)
		}
		for range 5 {
			f.ready()
			s := f.sets()
			if s["v1"]+s["v2"] > 5 {
				t.Fatalf("more than the surge allows: %v", s)
			}
		}
		f.wantSets(map[string]int32{"v1": 0, "v2": 4})
		st := f.get().Status
		if st.UpdatedReplicas != 4 || st.AvailableReplicas != 4 || st.Replicas != 4 || st.UnavailableReplicas != 0 {
			t.Errorf("status %+v", st)
		}
		if got := f.get().Annotations[deployment.RevisionAnnotation]; got != "2" {
			t.Errorf("revision %q", got)
		}

		// Back to v1: the same set, a new revision, the old one in its history.
		f.image("v1")
		for range 5 {
			f.ready()
		}
		f.wantSets(map[string]int32{"v1": 4, "v2": 0})
		list, _ := f.Client.AppsV1().ReplicaSets("ns").List(t.Context(), metav1.ListOptions{})
		for _, rs := range list.Items {
			if rs.Spec.Template.Spec.Containers[0].Image == "v1" {
				if rs.Annotations[deployment.RevisionAnnotation] != "3" || rs.Annotations[deployment.RevisionHistoryAnnotation] != "1" {
					t.Errorf("annotations %v", rs.Annotations)
				}
			}
		}

		// Only two old sets are kept.
		for _, v := range []string{"v3", "v4", "v5"} {
			f.image(v)
			for range 5 {
				f.ready()
			}
		}
		f.wantSets(map[string]int32{"v3": 0, "v4": 0, "v5": 4})

		events := f.DrainEvents()
		if !slices.Contains(events, "Normal ScalingReplicaSet Scaled up replica set "+f.name("v5")+" from 0 to 1") {
			t.Errorf("no scaling event of v5's set in %s", strings.Join(events, "\n"))
		}
	})
}

func (f flow) name(image string) string {
	list, _ := f.Client.AppsV1().ReplicaSets("ns").List(f.t.Context(), metav1.ListOptions{})
	for _, rs := range list.Items {
		if rs.Spec.Template.Spec.Containers[0].Image == image {
			return rs.Name
		}
	}
	return ""
}

func TestScaleDuringRollout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		d := web(10)
		d.Spec.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(3))
		d.Spec.Strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(2))
		f.create(d)
		f.ready()
		f.image("v2")
		f.wantSets(map[string]int32{"v1": 8, "v2": 5})
		// The example of the Deployment documentation: 5 more, shared 3 : 2.
		f.change(func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](15) })
		f.wantSets(map[string]int32{"v1": 11, "v2": 7})
		f.change(func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](0) })
		f.wantSets(map[string]int32{"v1": 0, "v2": 0})
		if got := len(f.Pods("ns", "app=web")); got != 0 {
			t.Errorf("%d pods are left", got)
		}
	})
}

func TestPauseAndDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(web(4))
		f.ready()
		f.change(func(d *appsv1.Deployment) { d.Spec.Paused = true; d.Spec.Template.Spec.Containers[0].Image = "v2" })
		f.wantSets(map[string]int32{"v1": 4})
		if got := f.reason(appsv1.DeploymentProgressing); got != "Unknown DeploymentPaused" {
			t.Error(got)
		}
		f.After(time.Hour)
		f.change(func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](6) })
		f.wantSets(map[string]int32{"v1": 6})
		f.ready()
		f.change(func(d *appsv1.Deployment) { d.Spec.Paused = false })
		f.wantSets(map[string]int32{"v1": 5, "v2": 3})
		f.After(9 * time.Minute)
		if got := f.reason(appsv1.DeploymentProgressing); got != "True ReplicaSetUpdated" {
			t.Error(got)
		}
		f.After(2 * time.Minute)
		if got := f.reason(appsv1.DeploymentProgressing); got != "False ProgressDeadlineExceeded" {
			t.Error(got)
		}
		for range 5 {
			f.ready()
		}
		if got := f.reason(appsv1.DeploymentProgressing); got != "True NewReplicaSetAvailable" {
			t.Error(got)
		}
	})
}

func TestRecreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		d := web(3)
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		f.create(d)
		f.ready()
		// A kubelet takes its time: the pods stay until we remove them.
		for _, p := range f.Pods("ns", "") {
			p.Finalizers = []string{"test/hold"}
			if _, err := f.Client.CoreV1().Pods("ns").Update(t.Context(), &p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		f.image("v2")
		// The fake tracker ignores finalizers, so the pods are gone and v2 has started.
		f.wantSets(map[string]int32{"v1": 0, "v2": 3})
		for _, p := range f.Pods("ns", "") {
			if p.Spec.Containers[0].Image != "v2" {
				t.Errorf("pod of %s still there", p.Spec.Containers[0].Image)
			}
		}
	})
}

func TestAdoptsUpstreamSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(web(2))
		f.ready()
		before := f.name("v1")
		// Orphaned (kubectl delete --cascade=orphan) and made again: no new set, no new pods.
		rs, err := f.Client.AppsV1().ReplicaSets("ns").Get(t.Context(), before, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Client.AppsV1().Deployments("ns").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		rs.OwnerReferences = nil
		if _, err := f.Client.AppsV1().ReplicaSets("ns").Update(t.Context(), rs, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.Settle()
		f.create(web(2))
		if got := f.name("v1"); got != before || len(f.sets()) != 1 {
			t.Errorf("sets %v, want %s alone", f.sets(), before)
		}
		if got := f.reason(appsv1.DeploymentProgressing); got != "True NewReplicaSetAvailable" && got != "True FoundNewReplicaSet" {
			t.Error(got)
		}
	})
}
