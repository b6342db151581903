package autoscaling

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api/core"
)

const (
	maxPeriodSeconds = 1800
	maxWindowSeconds = 3600
)

func specChanged(a, old *autoscalingv2.HorizontalPodAutoscaler) bool {
	return !equality.Semantic.DeepEqual(a.Spec, old.Spec)
}

// versionRule says what the apiVersion of a reference must be.
type versionRule struct{ any, core bool }

func (r versionRule) check(apiVersion string) error {
	if r.any {
		return nil
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err == nil && !r.core && gv.Group == "" {
		err = errors.New("apiVersion must specify API group")
	}
	return err
}

// validateAutoscaler takes a nil old on create. References that were invalid may stay.
func validateAutoscaler(a, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	var errs field.ErrorList
	s, p := &a.Spec, field.NewPath("spec")
	if n := s.MinReplicas; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(p.Child("minReplicas"), *n, "must be greater than or equal to 0"))
	}
	most := p.Child("maxReplicas")
	switch {
	case s.MaxReplicas == 0:
		errs = append(errs, field.Required(most, ""))
	case s.MaxReplicas < 0:
		errs = append(errs, field.Invalid(most, s.MaxReplicas, "must be greater than or equal to 1"))
	}
	if n := s.MinReplicas; n != nil && s.MaxReplicas < *n {
		errs = append(errs, field.Invalid(most, s.MaxReplicas, "must be greater than or equal to `minReplicas`"))
	}

	target, object := versionRule{core: s.ScaleTargetRef.Kind == "ReplicationController"}, versionRule{core: true}
	if old != nil {
		was := old.Spec.ScaleTargetRef
		target.any = was.APIVersion == s.ScaleTargetRef.APIVersion && was.Kind == s.ScaleTargetRef.Kind
		object.any = slices.ContainsFunc(old.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
			return m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil && object.check(m.Object.DescribedObject.APIVersion) != nil
		})
	}
	errs = append(errs, validateReference(s.ScaleTargetRef, target, p.Child("scaleTargetRef"))...)
	outside := false
	for i := range s.Metrics {
		m := &s.Metrics[i]
		errs = append(errs, validateMetric(m, object, p.Child("metrics").Index(i))...)
		outside = outside || m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	}
	// Metrics of pods say nothing while there are none.
	if n := s.MinReplicas; n != nil && *n == 0 && !outside {
		errs = append(errs, field.Forbidden(p.Child("metrics"), "must specify at least one Object or External metric to support scaling to zero replicas"))
	}
	if b := s.Behavior; b != nil {
		errs = append(errs, validateRules(b.ScaleUp, p.Child("behavior", "scaleUp"))...)
		errs = append(errs, validateRules(b.ScaleDown, p.Child("behavior", "scaleDown"))...)
	}
	return errs
}

func validateReference(ref autoscalingv2.CrossVersionObjectReference, rule versionRule, p *field.Path) field.ErrorList {
	errs := segment(ref.Kind, "", p.Child("kind"))
	errs = append(errs, segment(ref.Name, "", p.Child("name"))...)
	if err := rule.check(ref.APIVersion); err != nil {
		errs = append(errs, field.Invalid(p.Child("apiVersion"), ref.APIVersion, err.Error()))
	}
	return errs
}

func segment(value, missing string, p *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(p, missing)}
	}
	var errs field.ErrorList
	for _, msg := range content.IsPathSegmentName(value) {
		errs = append(errs, field.Invalid(p, value, msg))
	}
	return errs
}

func validateRules(r *autoscalingv2.HPAScalingRules, p *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	if w := r.StabilizationWindowSeconds; w != nil {
		if *w < 0 {
			errs = append(errs, field.Invalid(p.Child("stabilizationWindowSeconds"), w, "must be greater than or equal to zero"))
		}
		if *w > maxWindowSeconds {
			errs = append(errs, field.Invalid(p.Child("stabilizationWindowSeconds"), w, fmt.Sprintf("must be less than or equal to %v", maxWindowSeconds)))
		}
	}
	selects := []autoscalingv2.ScalingPolicySelect{autoscalingv2.DisabledPolicySelect, autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect}
	if r.SelectPolicy != nil && !slices.Contains(selects, *r.SelectPolicy) {
		errs = append(errs, field.NotSupported(p.Child("selectPolicy"), r.SelectPolicy, selects))
	}
	if len(r.Policies) == 0 {
		errs = append(errs, field.Required(p.Child("policies"), "must specify at least one Policy"))
	}
	for i, policy := range r.Policies {
		pp := p.Child("policies").Index(i)
		types := []autoscalingv2.HPAScalingPolicyType{autoscalingv2.PercentScalingPolicy, autoscalingv2.PodsScalingPolicy}
		if !slices.Contains(types, policy.Type) {
			errs = append(errs, field.NotSupported(pp.Child("type"), policy.Type, types))
		}
		if policy.Value <= 0 {
			errs = append(errs, field.Invalid(pp.Child("value"), policy.Value, "must be greater than zero"))
		}
		if policy.PeriodSeconds <= 0 {
			errs = append(errs, field.Invalid(pp.Child("periodSeconds"), policy.PeriodSeconds, "must be greater than zero"))
		}
		if policy.PeriodSeconds > maxPeriodSeconds {
			errs = append(errs, field.Invalid(pp.Child("periodSeconds"), policy.PeriodSeconds, fmt.Sprintf("must be less than or equal to %v", maxPeriodSeconds)))
		}
	}
	if t := r.Tolerance; t != nil && t.Sign() < 0 {
		errs = append(errs, field.Invalid(p.Child("tolerance"), amount(t, ""), apivalidation.IsNegativeErrorMsg))
	}
	return errs
}

// validateMetric wants the one source that the metric's type names.
func validateMetric(m *autoscalingv2.MetricSpec, object versionRule, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	types := []autoscalingv2.MetricSourceType{autoscalingv2.ContainerResourceMetricSourceType, autoscalingv2.ExternalMetricSourceType,
		autoscalingv2.ObjectMetricSourceType, autoscalingv2.PodsMetricSourceType, autoscalingv2.ResourceMetricSourceType}
	if m.Type == "" {
		errs = append(errs, field.Required(p.Child("type"), "must specify a metric source type"))
	}
	if !slices.Contains(types, m.Type) {
		errs = append(errs, field.NotSupported(p.Child("type"), m.Type, types))
	}
	present := map[string]bool{}
	source := func(set bool, name string, validate func(p *field.Path) field.ErrorList) {
		if !set {
			return
		}
		present[name] = true
		if len(present) == 1 { // what is there besides is refused anyway
			errs = append(errs, validate(p.Child(name))...)
		}
	}
	source(m.Object != nil, "object", func(p *field.Path) field.ErrorList { return validateObjectSource(m.Object, object, p) })
	source(m.External != nil, "external", func(p *field.Path) field.ErrorList { return validateExternalSource(m.External, p) })
	source(m.Pods != nil, "pods", func(p *field.Path) field.ErrorList { return validatePodsSource(m.Pods, p) })
	source(m.Resource != nil, "resource", func(p *field.Path) field.ErrorList {
		return validateUtilization(string(m.Resource.Name), &m.Resource.Target, p)
	})
	source(m.ContainerResource != nil, "containerResource", func(p *field.Path) field.ErrorList {
		return validateContainerSource(m.ContainerResource, p)
	})
	expected := map[autoscalingv2.MetricSourceType]string{autoscalingv2.ObjectMetricSourceType: "object",
		autoscalingv2.ExternalMetricSourceType: "external", autoscalingv2.PodsMetricSourceType: "pods",
		autoscalingv2.ResourceMetricSourceType: "resource", autoscalingv2.ContainerResourceMetricSourceType: "containerResource"}[m.Type]
	switch {
	case expected == "":
		errs = append(errs, field.NotSupported(p.Child("type"), m.Type, types))
	case !present[expected]:
		errs = append(errs, field.Required(p.Child(expected), "must populate information for the given metric source"))
	}
	if len(present) != 1 {
		delete(present, expected)
		for _, name := range slices.Sorted(maps.Keys(present)) {
			errs = append(errs, field.Forbidden(p.Child(name), "must populate the given metric source only"))
		}
	}
	return errs
}

func validateObjectSource(s *autoscalingv2.ObjectMetricSource, rule versionRule, p *field.Path) field.ErrorList {
	errs := validateReference(s.DescribedObject, rule, p.Child("describedObject"))
	errs = append(errs, segment(s.Metric.Name, "must specify a metric name", p.Child("metric", "name"))...)
	errs = append(errs, validateTarget(&s.Target, p.Child("target"))...)
	if s.Target.Value == nil && s.Target.AverageValue == nil {
		errs = append(errs, field.Required(p.Child("target", "averageValue"), "must set either a target value or averageValue"))
	}
	return errs
}

func validateExternalSource(s *autoscalingv2.ExternalMetricSource, p *field.Path) field.ErrorList {
	errs := segment(s.Metric.Name, "must specify a metric name", p.Child("metric", "name"))
	errs = append(errs, validateTarget(&s.Target, p.Child("target"))...)
	switch value, average := s.Target.Value != nil, s.Target.AverageValue != nil; {
	case !value && !average:
		errs = append(errs, field.Required(p.Child("target", "averageValue"), "must set either a target value for metric or a per-pod target"))
	case value && average:
		errs = append(errs, field.Forbidden(p.Child("target", "value"), "may not set both a target value for metric and a per-pod target"))
	}
	return errs
}

func validatePodsSource(s *autoscalingv2.PodsMetricSource, p *field.Path) field.ErrorList {
	errs := segment(s.Metric.Name, "must specify a metric name", p.Child("metric", "name"))
	errs = append(errs, validateTarget(&s.Target, p.Child("target"))...)
	if s.Target.AverageValue == nil {
		errs = append(errs, field.Required(p.Child("target", "averageValue"), "must specify a positive target averageValue"))
	}
	return errs
}

func validateContainerSource(s *autoscalingv2.ContainerResourceMetricSource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Name != "" {
		errs = append(errs, core.ValidateContainerResourceName(s.Name, p.Child("name"))...)
	}
	if s.Container == "" {
		errs = append(errs, field.Required(p.Child("container"), "must specify a container"))
	} else {
		for _, msg := range validation.IsDNS1123Label(s.Container) {
			errs = append(errs, field.Invalid(p.Child("container"), s.Container, msg))
		}
	}
	return append(errs, validateUtilization(string(s.Name), &s.Target, p)...)
}

// validateUtilization validates a target for a compute resource.
func validateUtilization(name string, t *autoscalingv2.MetricTarget, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if name == "" {
		errs = append(errs, field.Required(p.Child("name"), "must specify a resource name"))
	}
	errs = append(errs, validateTarget(t, p.Child("target"))...)
	switch utilization, value := t.AverageUtilization != nil, t.AverageValue != nil; {
	case !utilization && !value:
		errs = append(errs, field.Required(p.Child("target", "averageUtilization"), "must set either a target raw value or a target utilization"))
	case utilization && value:
		errs = append(errs, field.Forbidden(p.Child("target", "averageValue"), "may not set both a target raw value and a target utilization"))
	}
	return errs
}

func validateTarget(t *autoscalingv2.MetricTarget, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Type == "" {
		errs = append(errs, field.Required(p.Child("type"), "must specify a metric target type"))
	}
	switch t.Type {
	case autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType, autoscalingv2.AverageValueMetricType:
	default:
		errs = append(errs, field.Invalid(p.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue"))
	}
	positive := func(q *resource.Quantity, name string) {
		if q != nil && q.Sign() != 1 {
			c := q.DeepCopy()
			errs = append(errs, field.Invalid(p.Child(name), &c, "must be positive"))
		}
	}
	positive(t.Value, "value")
	positive(t.AverageValue, "averageValue")
	if u := t.AverageUtilization; u != nil && *u < 1 {
		errs = append(errs, field.Invalid(p.Child("averageUtilization"), u, "must be greater than 0"))
	}
	return errs
}

func validateAutoscalerStatus(s *autoscalingv2.HorizontalPodAutoscalerStatus, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range s.Conditions {
		if g := s.Conditions[i].ObservedGeneration; g != nil {
			errs = append(errs, apivalidation.ValidateNonnegativeField(*g, p.Child("conditions").Index(i).Child("observedGeneration"))...)
		}
	}
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(s.CurrentReplicas), p.Child("currentReplicas"))...)
	return append(errs, apivalidation.ValidateNonnegativeField(int64(s.DesiredReplicas), p.Child("desiredReplicas"))...)
}
