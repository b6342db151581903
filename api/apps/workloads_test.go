package apps

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/apitest"
)

var ctx = context.Background()

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/web:1"}, {Name: "d", Image: "i"}}},
	}
}

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "default", CreationTimestamp: metav1.Unix(1000, 0)}
}

func deployment(change func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: named("web"), Spec: appsv1.DeploymentSpec{Selector: selector(), Template: template()}}
	if change != nil {
		change(d)
	}
	return d
}

func TestDeploymentDefaults(t *testing.T) {
	r, d := deployments(), deployment(nil)
	d.Status.Replicas = 3
	apitest.Want(t, apitest.Create(r, d))
	if *d.Spec.Replicas != 1 || *d.Spec.RevisionHistoryLimit != 10 || *d.Spec.ProgressDeadlineSeconds != 600 ||
		d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType ||
		d.Spec.Strategy.RollingUpdate.MaxSurge.String() != "25%" || d.Spec.Strategy.RollingUpdate.MaxUnavailable.String() != "25%" {
		t.Errorf("defaults: %+v", d.Spec)
	}
	if d.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Error("the template is not defaulted")
	}
	if d.Status.Replicas != 0 {
		t.Error("create keeps a status")
	}
	recreate := deployment(func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType })
	apitest.Want(t, apitest.Create(r, recreate))
	if recreate.Spec.Strategy.RollingUpdate != nil {
		t.Error("Recreate gets rolling update parameters")
	}
}

func TestDeploymentValidation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*appsv1.Deployment)
		errs   []string
	}{
		"negative replicas": {func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](-1) },
			[]string{`spec.replicas: Invalid value: -1: must be greater than or equal to 0`}},
		"no selector": {func(d *appsv1.Deployment) { d.Spec.Selector = nil },
			[]string{`spec.selector: Required value`, "spec.template.metadata.labels: Invalid value"}},
		"empty selector": {func(d *appsv1.Deployment) { d.Spec.Selector = &metav1.LabelSelector{} },
			[]string{`spec.selector: Invalid value: {}: empty selector is invalid for deployment`}},
		"selector does not match": {func(d *appsv1.Deployment) { d.Spec.Selector.MatchLabels["app"] = "other" },
			[]string{"spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`"}},
		"restart policy": {func(d *appsv1.Deployment) { d.Spec.Template.Spec.RestartPolicy = "Never" },
			[]string{`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`}},
		"deadline": {func(d *appsv1.Deployment) { d.Spec.Template.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) },
			[]string{`spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported`}},
		"unknown strategy": {func(d *appsv1.Deployment) { d.Spec.Strategy.Type = "Paint" },
			[]string{`spec.strategy: Unsupported value: {"type":"Paint"}: supported values: "Recreate", "RollingUpdate"`}},
		"recreate with parameters": {func(d *appsv1.Deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: "Recreate", RollingUpdate: &appsv1.RollingUpdateDeployment{}}
		}, []string{"spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"}},
		"no room": {func(d *appsv1.Deployment) {
			zero := intstr.FromInt32(0)
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &zero, MaxUnavailable: &zero}
		}, []string{"spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"}},
		"more than all": {func(d *appsv1.Deployment) {
			v := intstr.FromString("101%")
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: &v}
		}, []string{`spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%`}},
		"no percentage": {func(d *appsv1.Deployment) {
			v := intstr.FromString("many")
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &v}
		}, []string{`spec.strategy.rollingUpdate.maxSurge: Invalid value: "many": a valid percent string must be`}},
		"progress before ready": {func(d *appsv1.Deployment) {
			d.Spec.MinReadySeconds, d.Spec.ProgressDeadlineSeconds = 60, ptr.To[int32](60)
		}, []string{`spec.progressDeadlineSeconds: Invalid value: 60: must be greater than minReadySeconds`}},
		"history": {func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = ptr.To[int32](-2) },
			[]string{`spec.revisionHistoryLimit: Invalid value: -2`}},
	} {
		t.Run(name, func(t *testing.T) { apitest.Want(t, apitest.Create(deployments(), deployment(c.change)), c.errs...) })
	}
}

func TestDeploymentUpdate(t *testing.T) {
	r := deployments()
	old := deployment(func(d *appsv1.Deployment) { d.Status.Replicas = 2 })
	r.Default(old)

	d := old.DeepCopy()
	d.Status.Replicas = 9
	apitest.Want(t, apitest.Update(r, d, old))
	if d.Status.Replicas != 2 {
		t.Error("an update of the object changes its status")
	}
	if r.SpecChanged(d, old) {
		t.Error("nothing changed but generation would be bumped")
	}
	d.Annotations = map[string]string{"a": "b"}
	if !r.SpecChanged(d, old) {
		t.Error("annotations count for generation")
	}
	d = old.DeepCopy()
	d.Spec.Selector.MatchLabels["tier"] = "x"
	d.Spec.Template.Labels["tier"] = "x"
	apitest.Want(t, apitest.Update(r, d, old), `spec.selector: Invalid value: {"matchLabels":{"app":"web","tier":"x"}}: field is immutable`)

	status := r.Subresources[0]
	d = old.DeepCopy()
	d.Spec.Replicas, d.Labels = ptr.To[int32](5), map[string]string{"x": "y"}
	d.Status = appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: 2, CollisionCount: ptr.To[int32](0)}
	old.Status.CollisionCount = ptr.To[int32](1)
	status.PrepareUpdate(ctx, d, old)
	if *d.Spec.Replicas != 1 || d.Labels != nil {
		t.Error("an update of the status changes the spec or the labels")
	}
	apitest.Want(t, apitest.Texts(status.ValidateUpdate(ctx, d, old)),
		`status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas`,
		`status.collisionCount: Invalid value: 0: cannot be decremented`)
}

func TestDeploymentTable(t *testing.T) {
	d := deployment(func(d *appsv1.Deployment) {
		d.Spec.Replicas = ptr.To[int32](3)
		d.Status = appsv1.DeploymentStatus{ReadyReplicas: 1, UpdatedReplicas: 2, AvailableReplicas: 1}
	})
	got := deployments().Row(d, time.Unix(1090, 0))
	if !slices.Equal(got, []any{"web", "1/3", int64(2), int64(1), "90s", "c,d", "example.com/web:1,i", "app=web"}) {
		t.Errorf("%v", got)
	}
	n, ready, s := deployments().Scale.Get(d)
	if n != 3 || ready != 0 || s != "app=web" {
		t.Errorf("scale: %d %d %s", n, ready, s)
	}
}

func TestLongNamesWarn(t *testing.T) {
	d := deployment(func(d *appsv1.Deployment) { d.Name = "a.b" })
	for _, r := range []*api.Resource{deployments(), replicaSets()} {
		var obj runtime.Object = d
		if r.Kind == "ReplicaSet" {
			obj = &appsv1.ReplicaSet{ObjectMeta: named("a.b"), Spec: appsv1.ReplicaSetSpec{Template: template()}}
		}
		if w := r.Warnings(ctx, obj, nil); len(w) == 0 || !strings.HasPrefix(w[0], "metadata.name: this is used in Pod names and hostnames") {
			t.Errorf("%s: %v", r.Kind, w)
		}
	}
}

func TestReplicaSet(t *testing.T) {
	r := replicaSets()
	rs := &appsv1.ReplicaSet{ObjectMeta: named("web-1"), Spec: appsv1.ReplicaSetSpec{Selector: selector(), Template: template()}}
	apitest.Want(t, apitest.Create(r, rs))
	if *rs.Spec.Replicas != 1 {
		t.Error("replicas")
	}
	rs.Status.Replicas = 4
	if f := r.Fields(rs); f["status.replicas"] != "4" {
		t.Errorf("%v", f)
	}
	next := rs.DeepCopy()
	next.Spec.Selector.MatchLabels["x"] = "y"
	apitest.Want(t, apitest.Update(r, next, rs), "spec.selector: Invalid value", "spec.template.metadata.labels: Invalid value")

	next = rs.DeepCopy()
	next.Status = appsv1.ReplicaSetStatus{Replicas: 1, FullyLabeledReplicas: 2, ReadyReplicas: 1, AvailableReplicas: 2, TerminatingReplicas: ptr.To[int32](-1)}
	apitest.Want(t, apitest.Texts(r.Subresources[0].ValidateUpdate(ctx, next, rs)),
		"status.terminatingReplicas: Invalid value: -1",
		"status.fullyLabeledReplicas: Invalid value: 2: cannot be greater than status.replicas",
		"status.availableReplicas: Invalid value: 2: cannot be greater than status.replicas",
		"status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas")
}

func TestDaemonSetKeepsTheGenerationOfItsTemplate(t *testing.T) {
	r := daemonSets()
	d := &appsv1.DaemonSet{ObjectMeta: named("agent"), Spec: appsv1.DaemonSetSpec{Selector: selector(), Template: template()}}
	apitest.Want(t, apitest.Create(r, d))
	generation := func(d *appsv1.DaemonSet) string { return d.Annotations["deprecated.daemonset.template.generation"] }
	if generation(d) != "1" {
		t.Errorf("created with %v", d.Annotations)
	}
	next := d.DeepCopy()
	next.Annotations = nil
	next.Spec.MinReadySeconds = 5
	apitest.Want(t, apitest.Update(r, next, d))
	if generation(next) != "1" || !ptr.Equal(next.Spec.RevisionHistoryLimit, ptr.To[int32](10)) {
		t.Errorf("another field changed: %v", next.Annotations)
	}
	next.Spec.Template.Spec.Containers[0].Image = "y"
	apitest.Want(t, apitest.Update(r, next, d))
	if generation(next) != "2" {
		t.Errorf("template changed: %v", next.Annotations)
	}
	both := intstr.FromInt32(1)
	next.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: &both, MaxUnavailable: &both}
	apitest.Want(t, apitest.Update(r, next, d), "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero")
}

func TestStatefulSet(t *testing.T) {
	r := statefulSets()
	claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{}},
	}}
	s := &appsv1.StatefulSet{ObjectMeta: named("db"), Spec: appsv1.StatefulSetSpec{
		Selector: selector(), Template: template(), ServiceName: "db", VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim}}}
	s.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	apitest.Want(t, apitest.Create(r, s), "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value")
	if s.Spec.PodManagementPolicy != "OrderedReady" || *s.Spec.UpdateStrategy.RollingUpdate.Partition != 0 ||
		s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() != 1 || s.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled != "Retain" ||
		s.Spec.VolumeClaimTemplates[0].Kind != "PersistentVolumeClaim" || s.Spec.VolumeClaimTemplates[0].Status.Phase != "Pending" {
		t.Errorf("defaults: %+v", s.Spec)
	}
	next := s.DeepCopy()
	next.Spec.ServiceName = "other"
	next.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	next.Spec.Replicas = ptr.To[int32](3)
	apitest.Want(t, apitest.Update(r, next, s), "spec.serviceName: Invalid value: \"other\": field is immutable", "spec.podManagementPolicy: Invalid value: \"Parallel\": field is immutable")
	if len(r.NameErrors("a.b", false)) == 0 {
		t.Error("names are DNS labels")
	}
}

func TestControllerRevision(t *testing.T) {
	r := controllerRevisions()
	c := &appsv1.ControllerRevision{ObjectMeta: named("db-1"), Revision: 1, Data: runtime.RawExtension{Raw: []byte(`{"a":1}`)}}
	apitest.Want(t, apitest.Texts(r.Validate(ctx, c)))
	for raw, msg := range map[string]string{
		`[]`: "data: Required value: data must be a valid JSON object", `null`: "data: Required value: data is mandatory",
		`{`: `data: Invalid value: "<value omitted>": error parsing data`,
	} {
		bad := c.DeepCopy()
		bad.Data.Raw = []byte(raw)
		apitest.Want(t, apitest.Texts(r.Validate(ctx, bad)), msg)
	}
	next := c.DeepCopy()
	next.Data.Raw = []byte(`{}`)
	apitest.Want(t, apitest.Texts(r.ValidateUpdate(ctx, next, c)), "data: Invalid value")
	yes := true
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", Controller: &yes}}
	if row := r.Row(c, time.Unix(1000, 0)); row[1] != "statefulset.apps/db" {
		t.Errorf("%v", row)
	}
}
