package autoscaling

import (
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func autoscaler(change func(*autoscalingv2.HorizontalPodAutoscaler)) *autoscalingv2.HorizontalPodAutoscaler {
	a := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web", CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 5,
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}},
	}
	if change != nil {
		change(a)
	}
	return a
}

func quantity(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }

func external(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: "External", External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: target}}
}

func TestDefaults(t *testing.T) {
	a := autoscaler(func(a *autoscalingv2.HorizontalPodAutoscaler) {
		a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{SelectPolicy: ptr.To(autoscalingv2.DisabledPolicySelect)}}
	})
	apitest.Want(t, apitest.Create(autoscalers(), a))
	up, down := a.Spec.Behavior.ScaleUp, a.Spec.Behavior.ScaleDown
	if *a.Spec.MinReplicas != 1 || *a.Spec.Metrics[0].Resource.Target.AverageUtilization != 80 || *up.StabilizationWindowSeconds != 0 ||
		len(up.Policies) != 2 || down.StabilizationWindowSeconds != nil || *down.SelectPolicy != "Disabled" || len(down.Policies) != 1 {
		t.Errorf("%+v", a.Spec)
	}
	a.Status.CurrentReplicas = 2
	a.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{Type: "Resource", Resource: &autoscalingv2.ResourceMetricStatus{Name: "cpu",
		Current: autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To[int32](12)}}}}
	apitest.Row(t, autoscalers().Row(a, time.Unix(1002, 0)), "web", "Deployment/web", "cpu: 12%/80%", "1", int64(5), int64(2), "2s")
}

func TestValidation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*autoscalingv2.HorizontalPodAutoscaler)
		errs   []string
	}{
		"no maximum": {func(a *autoscalingv2.HorizontalPodAutoscaler) { a.Spec.MaxReplicas = 0 },
			[]string{"spec.maxReplicas: Required value", "spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`"}},
		"to zero by cpu": {func(a *autoscalingv2.HorizontalPodAutoscaler) { a.Spec.MinReplicas = ptr.To[int32](0) },
			[]string{"spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas"}},
		"to zero by a queue": {func(a *autoscalingv2.HorizontalPodAutoscaler) {
			a.Spec.MinReplicas, a.Spec.Metrics = ptr.To[int32](0), []autoscalingv2.MetricSpec{external(autoscalingv2.MetricTarget{Type: "Value", Value: quantity("3")})}
		}, nil},
		"reference": {func(a *autoscalingv2.HorizontalPodAutoscaler) {
			a.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Name: "a/b"}
		},
			[]string{"spec.scaleTargetRef.kind: Required value", `spec.scaleTargetRef.name: Invalid value: "a/b"`, `spec.scaleTargetRef.apiVersion: Invalid value: "v1": apiVersion must specify API group`}},
		"metrics": {func(a *autoscalingv2.HorizontalPodAutoscaler) {
			two := external(autoscalingv2.MetricTarget{Type: "Odd", Value: quantity("0")})
			two.Pods = &autoscalingv2.PodsMetricSource{}
			a.Spec.Metrics = []autoscalingv2.MetricSpec{two, {Type: "Weather"}, {Type: "ContainerResource", ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
				Target: autoscalingv2.MetricTarget{Type: "Utilization", AverageUtilization: ptr.To[int32](0), AverageValue: quantity("1")}}}}
		}, []string{
			`spec.metrics[0].external.target.type: Invalid value: "Odd": must be either Utilization, Value, or AverageValue`,
			`spec.metrics[0].external.target.value: Invalid value: "0": must be positive`,
			"spec.metrics[0].pods: Forbidden: must populate the given metric source only",
			`spec.metrics[1].type: Unsupported value: "Weather": supported values: "ContainerResource", "External", "Object", "Pods", "Resource"`,
			`spec.metrics[1].type: Unsupported value: "Weather"`,
			"spec.metrics[2].containerResource.name: Required value: must specify a resource name", "spec.metrics[2].containerResource.container: Required value",
			"spec.metrics[2].containerResource.target.averageUtilization: Invalid value: 0", "spec.metrics[2].containerResource.target.averageValue: Forbidden",
		}},
		"behavior": {func(a *autoscalingv2.HorizontalPodAutoscaler) {
			a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](3601),
				SelectPolicy: ptr.To[autoscalingv2.ScalingPolicySelect]("Random"), Tolerance: quantity("-1"),
				Policies: []autoscalingv2.HPAScalingPolicy{{Type: "Nodes", PeriodSeconds: 1801}}}}
		}, []string{"spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600",
			`spec.behavior.scaleUp.selectPolicy: Unsupported value: "Random": supported values: "Disabled", "Max", "Min"`,
			`spec.behavior.scaleUp.policies[0].type: Unsupported value: "Nodes": supported values: "Percent", "Pods"`,
			"spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero",
			"spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800",
			`spec.behavior.scaleUp.tolerance: Invalid value: "-1": must be greater than or equal to 0`}},
	} {
		t.Run(name, func(t *testing.T) { apitest.Want(t, apitest.Create(autoscalers(), autoscaler(c.change)), c.errs...) })
	}
}

func TestV1IsAView(t *testing.T) {
	s := runtime.NewScheme()
	if err := AddConversions(s); err != nil {
		t.Fatal(err)
	}
	full := autoscaler(func(a *autoscalingv2.HorizontalPodAutoscaler) {
		a.Annotations = map[string]string{"mine": "1"}
		a.Spec.Metrics = []autoscalingv2.MetricSpec{external(autoscalingv2.MetricTarget{Type: "AverageValue", AverageValue: quantity("3")}), cpuMetric(50)}
		a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{Tolerance: quantity("100m"),
			Policies: []autoscalingv2.HPAScalingPolicy{{Type: "Pods", Value: 1, PeriodSeconds: 5}}}}
		a.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: "AbleToScale", Status: "True"}}
		a.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{Type: "Resource", Resource: &autoscalingv2.ResourceMetricStatus{Name: "cpu",
			Current: autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To[int32](12), AverageValue: quantity("120m")}}}}
	})
	v1, back := &autoscalingv1.HorizontalPodAutoscaler{}, &autoscalingv2.HorizontalPodAutoscaler{}
	if err := s.Convert(full, v1, nil); err != nil {
		t.Fatal(err)
	}
	if *v1.Spec.TargetCPUUtilizationPercentage != 50 || *v1.Status.CurrentCPUUtilizationPercentage != 12 {
		t.Errorf("%+v", v1)
	}
	if got := v1.Annotations[behaviorAnnotation]; got != `{"ScaleUp":{"StabilizationWindowSeconds":null,"SelectPolicy":null,"Policies":[{"Type":"Pods","Value":1,"PeriodSeconds":5}],"Tolerance":"100m"},"ScaleDown":null}` {
		t.Error(got)
	}
	if err := s.Convert(v1, back, nil); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(full, back) {
		t.Error(diff.Diff(full, back))
	}

	r := autoscalersV1()
	old := &autoscalingv1.HorizontalPodAutoscaler{Spec: autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 3,
		ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}}
	old.Annotations = map[string]string{currentAnnotation: `[{"type":"Resource"}]`}
	apitest.Want(t, apitest.Create(r, old))
	if len(old.Annotations) != 0 {
		t.Error("created with a status in an annotation")
	}
	next := old.DeepCopy()
	next.Spec.MaxReplicas = 9
	next.Annotations = map[string]string{metricsAnnotation: `[{"type":"External","external":{"metricName":"queue"}}]`}
	next.Status.DesiredReplicas = 2
	apitest.Want(t, apitest.UpdateSub(t, r, "status", next, old))
	if next.Spec.MaxReplicas != 3 || len(next.Annotations) != 0 || next.Status.DesiredReplicas != 2 {
		t.Errorf("%+v", next)
	}
	next.Annotations = map[string]string{metricsAnnotation: `[{"type":"External","external":{"metricName":"queue"}}]`}
	apitest.Want(t, apitest.Update(r, next, old), "spec.metrics[0].external.target.averageValue: Required value")
	if !r.SpecChanged(next, old) {
		t.Error("metrics in annotations are spec")
	}
}
