package autoscaling

import (
	"encoding/json"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// autoscaling/v1 has a field for CPU utilization only; all else is in annotations, as JSON.
const (
	metricsAnnotation    = "autoscaling.alpha.kubernetes.io/metrics"
	behaviorAnnotation   = "autoscaling.alpha.kubernetes.io/behavior"
	currentAnnotation    = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation = "autoscaling.alpha.kubernetes.io/conditions"
	downAnnotation       = "autoscaling.alpha.kubernetes.io/scale-down-tolerance"
	upAnnotation         = "autoscaling.alpha.kubernetes.io/scale-up-tolerance"
)

// AddConversions lets a scheme convert between the versions.
func AddConversions(s *runtime.Scheme) error {
	if err := s.AddConversionFunc((*autoscalingv1.HorizontalPodAutoscaler)(nil), (*autoscalingv2.HorizontalPodAutoscaler)(nil),
		func(in, out any, _ conversion.Scope) error {
			*out.(*autoscalingv2.HorizontalPodAutoscaler) = *asV2(in.(*autoscalingv1.HorizontalPodAutoscaler))
			return nil
		}); err != nil {
		return err
	}
	return s.AddConversionFunc((*autoscalingv2.HorizontalPodAutoscaler)(nil), (*autoscalingv1.HorizontalPodAutoscaler)(nil),
		func(in, out any, _ conversion.Scope) error {
			a, err := asV1(in.(*autoscalingv2.HorizontalPodAutoscaler))
			if err != nil {
				return err
			}
			*out.(*autoscalingv1.HorizontalPodAutoscaler) = *a
			return nil
		})
}

// keepStatus gives a the status of old, those parts in annotations included.
func keepStatus(a, old *autoscalingv1.HorizontalPodAutoscaler) {
	a.Status = old.Status
	copyAnnotations(a, old, currentAnnotation, conditionsAnnotation)
}

// keepSpec gives a the spec of old.
func keepSpec(a, old *autoscalingv1.HorizontalPodAutoscaler) {
	a.Spec = old.Spec
	copyAnnotations(a, old, metricsAnnotation, behaviorAnnotation)
}

func copyAnnotations(a, old *autoscalingv1.HorizontalPodAutoscaler, keys ...string) {
	for _, k := range keys {
		delete(a.Annotations, k)
		if v, ok := old.Annotations[k]; ok {
			if a.Annotations == nil {
				a.Annotations = map[string]string{}
			}
			a.Annotations[k] = v
		}
	}
}

// asV2 ignores annotations that can't be parsed, as upstream does.
func asV2(a *autoscalingv1.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	a = a.DeepCopy()
	out := &autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta: a.TypeMeta, ObjectMeta: a.ObjectMeta,
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(a.Spec.ScaleTargetRef),
			MinReplicas:    a.Spec.MinReplicas, MaxReplicas: a.Spec.MaxReplicas,
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			ObservedGeneration: a.Status.ObservedGeneration, LastScaleTime: a.Status.LastScaleTime,
			CurrentReplicas: a.Status.CurrentReplicas, DesiredReplicas: a.Status.DesiredReplicas,
		},
	}
	var metrics []autoscalingv1.MetricSpec
	if parse(a.Annotations[metricsAnnotation], &metrics) {
		for i := range metrics {
			out.Spec.Metrics = append(out.Spec.Metrics, specToV2(&metrics[i]))
		}
	}
	if u := a.Spec.TargetCPUUtilizationPercentage; u != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, cpuMetric(*u))
	}
	if len(out.Spec.Metrics) == 0 {
		out.Spec.Metrics = []autoscalingv2.MetricSpec{cpuMetric(defaultUtilization)}
	}
	var behavior autoscalingv2.HorizontalPodAutoscalerBehavior
	if parse(a.Annotations[behaviorAnnotation], &behavior) && (behavior.ScaleUp != nil || behavior.ScaleDown != nil) {
		out.Spec.Behavior = &behavior
	}
	if u := a.Status.CurrentCPUUtilizationPercentage; u != nil {
		out.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricStatus{Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: u}}}}
	}
	var current []autoscalingv1.MetricStatus // says more than the field
	if parse(a.Annotations[currentAnnotation], &current) {
		out.Status.CurrentMetrics = nil
		for i := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, statusToV2(&current[i]))
		}
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	if parse(a.Annotations[conditionsAnnotation], &conditions) {
		for _, c := range conditions {
			out.Status.Conditions = append(out.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
				Type: autoscalingv2.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
				Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration})
		}
	}
	dropAnnotations(out.Annotations)
	return out
}

func parse(text string, into any) bool {
	return text != "" && json.Unmarshal([]byte(text), into) == nil
}

func dropAnnotations(annotations map[string]string) {
	maps.DeleteFunc(annotations, func(k, _ string) bool {
		switch k {
		case metricsAnnotation, behaviorAnnotation, currentAnnotation, conditionsAnnotation, downAnnotation, upAnnotation:
			return true
		}
		return false
	})
}

// The annotation for behavior has the field names of upstream's internal Go type.
type (
	behaviorJSON struct{ ScaleUp, ScaleDown *rulesJSON }
	rulesJSON    struct {
		StabilizationWindowSeconds *int32
		SelectPolicy               *autoscalingv2.ScalingPolicySelect
		Policies                   []policyJSON
		Tolerance                  *resource.Quantity
	}
	policyJSON struct {
		Type          autoscalingv2.HPAScalingPolicyType
		Value         int32
		PeriodSeconds int32
	}
)

func rulesToJSON(r *autoscalingv2.HPAScalingRules) *rulesJSON {
	if r == nil {
		return nil
	}
	out := &rulesJSON{StabilizationWindowSeconds: r.StabilizationWindowSeconds, SelectPolicy: r.SelectPolicy, Tolerance: r.Tolerance}
	for _, p := range r.Policies {
		out.Policies = append(out.Policies, policyJSON(p))
	}
	return out
}

func asV1(a *autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv1.HorizontalPodAutoscaler, error) {
	a = a.DeepCopy()
	out := &autoscalingv1.HorizontalPodAutoscaler{
		TypeMeta: a.TypeMeta, ObjectMeta: a.ObjectMeta,
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(a.Spec.ScaleTargetRef),
			MinReplicas:    a.Spec.MinReplicas, MaxReplicas: a.Spec.MaxReplicas,
		},
		Status: autoscalingv1.HorizontalPodAutoscalerStatus{
			ObservedGeneration: a.Status.ObservedGeneration, LastScaleTime: a.Status.LastScaleTime,
			CurrentReplicas: a.Status.CurrentReplicas, DesiredReplicas: a.Status.DesiredReplicas,
		},
	}
	dropAnnotations(out.Annotations)
	var err error
	annotate := func(key string, value any) {
		text, e := json.Marshal(value)
		if e != nil {
			err = e
			return
		}
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[key] = string(text)
	}
	var others []autoscalingv1.MetricSpec
	for i := range a.Spec.Metrics {
		m := &a.Spec.Metrics[i]
		if m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil && m.Resource.Name == corev1.ResourceCPU && m.Resource.Target.AverageUtilization != nil {
			if out.Spec.TargetCPUUtilizationPercentage == nil {
				out.Spec.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
			}
			continue
		}
		others = append(others, specToV1(m))
	}
	if len(others) > 0 {
		annotate(metricsAnnotation, others)
	}
	var current []autoscalingv1.MetricStatus
	for i := range a.Status.CurrentMetrics {
		m := &a.Status.CurrentMetrics[i]
		if m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil && m.Resource.Name == corev1.ResourceCPU && m.Resource.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = m.Resource.Current.AverageUtilization
		}
		current = append(current, statusToV1(m))
	}
	if len(current) > 0 {
		annotate(currentAnnotation, current)
	}
	if b := a.Spec.Behavior; b != nil {
		annotate(behaviorAnnotation, behaviorJSON{ScaleUp: rulesToJSON(b.ScaleUp), ScaleDown: rulesToJSON(b.ScaleDown)})
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, c := range a.Status.Conditions {
		conditions = append(conditions, autoscalingv1.HorizontalPodAutoscalerCondition{
			Type: autoscalingv1.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration})
	}
	if len(conditions) > 0 {
		annotate(conditionsAnnotation, conditions)
	}
	return out, err
}
