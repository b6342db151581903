// Package autoscaling declares the resources of the autoscaling group.
//
// Owns: horizontalpodautoscalers in both served versions; v2 is stored, v1 is a view of
// it. Must not: scale anything.
package autoscaling

import (
	"fmt"
	"strings"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

// Resources lists what the group serves, the stored version first.
func Resources() []*api.Resource { return []*api.Resource{autoscalers(), autoscalersV1()} }

// defaultUtilization of CPU is aimed at where no metric is named.
const defaultUtilization = 80

func autoscalers() *api.Resource {
	return &api.Resource{
		Group: autoscalingv2.GroupName, Version: "v2",
		Kind: "HorizontalPodAutoscaler", Plural: "horizontalpodautoscalers",
		ShortNames: []string{"hpa"}, Categories: []string{"all"},
		Namespaced:  true,
		StoragePath: "horizontalpodautoscalers",
		New:         func() api.Object { return &autoscalingv2.HorizontalPodAutoscaler{} },
		NewList:     func() runtime.Object { return &autoscalingv2.HorizontalPodAutoscalerList{} },
		Default:     api.Defaults(defaultAutoscaler),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(a *autoscalingv2.HorizontalPodAutoscaler) {
				a.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
			}),
			Validate: api.Check(func(a *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
				return validateAutoscaler(a, nil)
			}),
			PrepareUpdate:  api.OnUpdate(func(a, old *autoscalingv2.HorizontalPodAutoscaler) { a.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(validateAutoscaler),
			HasGeneration:  true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(a, old *autoscalingv2.HorizontalPodAutoscaler) { a.Spec = old.Spec }),
				ValidateUpdate: api.CheckUpdate(func(a, _ *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
					return validateAutoscalerStatus(&a.Status, field.NewPath("status"))
				}),
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Columns: autoscalerColumns(),
		Row:     api.Cells(autoscalerRow),
	}
}

func autoscalerColumns() []metav1.TableColumnDefinition {
	spec := autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		api.NameColumn(),
		api.Column("Reference", "string", spec["scaleTargetRef"], 0),
		api.Column("Targets", "string", spec["metrics"], 0),
		api.Column("MinPods", "string", spec["minReplicas"], 0),
		api.Column("MaxPods", "string", spec["maxReplicas"], 0),
		api.Column("Replicas", "string", autoscalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()["currentReplicas"], 0),
		api.AgeColumn(),
	}
}

// autoscalersV1 converts to the stored version for whatever needs to understand the object.
func autoscalersV1() *api.Resource {
	return &api.Resource{
		Group: autoscalingv1.GroupName, Version: "v1",
		Kind: "HorizontalPodAutoscaler", Plural: "horizontalpodautoscalers",
		ShortNames: []string{"hpa"}, Categories: []string{"all"},
		Namespaced:  true,
		StoragePath: "horizontalpodautoscalers",
		New:         func() api.Object { return &autoscalingv1.HorizontalPodAutoscaler{} },
		NewList:     func() runtime.Object { return &autoscalingv1.HorizontalPodAutoscalerList{} },
		Default: api.Defaults(func(a *autoscalingv1.HorizontalPodAutoscaler) {
			setDefault(&a.Spec.MinReplicas, 1)
		}),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(a *autoscalingv1.HorizontalPodAutoscaler) {
				keepStatus(a, &autoscalingv1.HorizontalPodAutoscaler{})
			}),
			Validate: api.Check(func(a *autoscalingv1.HorizontalPodAutoscaler) field.ErrorList {
				return validateAutoscaler(asV2(a), nil)
			}),
			PrepareUpdate: api.OnUpdate(keepStatus),
			ValidateUpdate: api.CheckUpdate(func(a, old *autoscalingv1.HorizontalPodAutoscaler) field.ErrorList {
				return validateAutoscaler(asV2(a), asV2(old))
			}),
			HasGeneration: true,
			SpecChanged: api.Changed(func(a, old *autoscalingv1.HorizontalPodAutoscaler) bool {
				return specChanged(asV2(a), asV2(old))
			}),
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(keepSpec),
				ValidateUpdate: api.CheckUpdate(func(a, _ *autoscalingv1.HorizontalPodAutoscaler) field.ErrorList {
					return validateAutoscalerStatus(&asV2(a).Status, field.NewPath("status"))
				}),
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Columns: autoscalerColumns(),
		Row: api.Cells(func(a *autoscalingv1.HorizontalPodAutoscaler, now time.Time) []any {
			return autoscalerRow(asV2(a), now)
		}),
	}
}

func setDefault[T any](at **T, value T) {
	if *at == nil {
		*at = &value
	}
}

func defaultAutoscaler(a *autoscalingv2.HorizontalPodAutoscaler) {
	setDefault(&a.Spec.MinReplicas, 1)
	if len(a.Spec.Metrics) == 0 {
		a.Spec.Metrics = []autoscalingv2.MetricSpec{cpuMetric(defaultUtilization)}
	}
	b := a.Spec.Behavior
	if b == nil {
		return
	}
	// Whoever says something about behavior gets the rest of it spelled out.
	setDefault(&b.ScaleUp, autoscalingv2.HPAScalingRules{})
	setDefault(&b.ScaleUp.StabilizationWindowSeconds, 0)
	setDefault(&b.ScaleUp.SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if b.ScaleUp.Policies == nil {
		b.ScaleUp.Policies = []autoscalingv2.HPAScalingPolicy{
			{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
			{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
		}
	}
	// The controller's flag decides on the window for scaling down.
	setDefault(&b.ScaleDown, autoscalingv2.HPAScalingRules{})
	setDefault(&b.ScaleDown.SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if b.ScaleDown.Policies == nil {
		b.ScaleDown.Policies = []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}}
	}
}

func cpuMetric(utilization int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name:   corev1.ResourceCPU,
		Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &utilization},
	}}
}

func autoscalerRow(a *autoscalingv2.HorizontalPodAutoscaler, now time.Time) []any {
	minimum := "<unset>"
	if n := a.Spec.MinReplicas; n != nil {
		minimum = fmt.Sprint(*n)
	}
	ref := a.Spec.ScaleTargetRef
	return []any{a.Name, ref.Kind + "/" + ref.Name, metricsCell(a.Spec.Metrics, a.Status.CurrentMetrics), minimum,
		int64(a.Spec.MaxReplicas), int64(a.Status.CurrentReplicas), api.Age(a.CreationTimestamp, now)}
}

// shownMetrics is how many metrics a cell lists.
const shownMetrics = 2

func metricsCell(specs []autoscalingv2.MetricSpec, statuses []autoscalingv2.MetricStatus) string {
	if len(specs) == 0 {
		return "<none>"
	}
	var list []string
	for i := range specs {
		var status autoscalingv2.MetricStatus
		if i < len(statuses) {
			status = statuses[i]
		}
		list = append(list, metricCell(&specs[i], &status))
	}
	if n := len(list); n > shownMetrics {
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:shownMetrics], ", "), n-shownMetrics)
	}
	return strings.Join(list, ", ")
}

// metricCell shows current/target, or <unknown> as current where none is known.
func metricCell(m *autoscalingv2.MetricSpec, s *autoscalingv2.MetricStatus) string {
	switch {
	case m.Type == autoscalingv2.ExternalMetricSourceType && m.External != nil:
		return valueCell(&m.External.Target, ptr.Deref(s.External, autoscalingv2.ExternalMetricStatus{}).Current)
	case m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil:
		return valueCell(&m.Object.Target, ptr.Deref(s.Object, autoscalingv2.ObjectMetricStatus{}).Current)
	case m.Type == autoscalingv2.PodsMetricSourceType && m.Pods != nil:
		current := ptr.Deref(s.Pods, autoscalingv2.PodsMetricStatus{}).Current
		return amount(current.AverageValue, "<unknown>") + "/" + amount(m.Pods.Target.AverageValue, "<nil>")
	case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
		return utilizationCell(m.Resource.Name, &m.Resource.Target, ptr.Deref(s.Resource, autoscalingv2.ResourceMetricStatus{}).Current)
	case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		return utilizationCell(m.ContainerResource.Name, &m.ContainerResource.Target,
			ptr.Deref(s.ContainerResource, autoscalingv2.ContainerResourceMetricStatus{}).Current)
	}
	return "<unknown type>"
}

// amount prints without touching q, which may be shared: String caches.
func amount(q *resource.Quantity, missing string) string {
	if q == nil {
		return missing
	}
	c := q.DeepCopy()
	return c.String()
}

func valueCell(target *autoscalingv2.MetricTarget, current autoscalingv2.MetricValueStatus) string {
	if target.AverageValue != nil {
		return amount(current.AverageValue, "<unknown>") + "/" + amount(target.AverageValue, "") + " (avg)"
	}
	return amount(current.Value, "<unknown>") + "/" + amount(target.Value, "<nil>")
}

func utilizationCell(name corev1.ResourceName, target *autoscalingv2.MetricTarget, current autoscalingv2.MetricValueStatus) string {
	if target.AverageValue != nil {
		return fmt.Sprintf("%s: %s/%s", name, amount(current.AverageValue, "<unknown>"), amount(target.AverageValue, ""))
	}
	now, aim := "<unknown>", "<auto>"
	if u := current.AverageUtilization; u != nil {
		now = fmt.Sprintf("%d%%", *u)
	}
	if u := target.AverageUtilization; u != nil {
		aim = fmt.Sprintf("%d%%", *u)
	}
	return fmt.Sprintf("%s: %s/%s", name, now, aim)
}
