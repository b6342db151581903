package podautoscaler

import (
	"errors"
	"fmt"
	"math"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reading is what one metric of an autoscaler says now.
type reading struct {
	pods   map[string]sample // by name: of Resource, ContainerResource and Pods
	values []int64           // in thousandths: of Object one, of External any number
	err    error             // why it says nothing
}

// proposal is what one metric asks for.
type proposal struct {
	replicas int32
	metric   string // in words
	status   autoscalingv2.MetricStatus
	failure  *failure
}

// failure is why a metric proposes nothing: the condition's reason and cause, and the cause
// as the error of the whole is told.
type failure struct {
	reason string
	cause  error
	err    error
}

func failed(reason string, cause error, format string, args ...any) proposal {
	return proposal{failure: &failure{reason, cause, fmt.Errorf(format+": %w", append(args, cause)...)}}
}

// propose is what a metric asks for, of a target that wants and has so many replicas.
func (c *calculator) propose(m *autoscalingv2.MetricSpec, r reading, namespace string, wanted, has int32) proposal {
	switch {
	case m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil:
		return c.object(m.Object, r, namespace, wanted, has)
	case m.Type == autoscalingv2.PodsMetricSourceType && m.Pods != nil:
		return c.podMetric(m.Pods, r, wanted)
	case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
		n, name, value, err := c.resource(m.Resource.Name, "", m.Resource.Target, r, wanted)
		if err != nil {
			return failed("FailedGetResourceMetric", err, "failed to get %s resource metric value", m.Resource.Name)
		}
		return proposal{replicas: n, metric: name, status: autoscalingv2.MetricStatus{Type: m.Type,
			Resource: &autoscalingv2.ResourceMetricStatus{Name: m.Resource.Name, Current: value}}}
	case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		s := m.ContainerResource
		n, name, value, err := c.resource(s.Name, s.Container, s.Target, r, wanted)
		if err != nil {
			return failed("FailedGetContainerResourceMetric", err, "failed to get %s container metric value", s.Container)
		}
		return proposal{replicas: n, metric: name, status: autoscalingv2.MetricStatus{Type: m.Type,
			ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: s.Name, Container: s.Container, Current: value}}}
	case m.Type == autoscalingv2.ExternalMetricSourceType && m.External != nil:
		return c.external(m.External, r, namespace, wanted, has)
	}
	err := fmt.Errorf("unknown metric source type %q", string(m.Type))
	return proposal{failure: &failure{"InvalidMetricSourceType", err, err}}
}

func (c *calculator) object(s *autoscalingv2.ObjectMetricSource, r reading, namespace string, wanted, has int32) proposal {
	const reason, prefix = "FailedGetObjectMetric", "failed to get object metric value"
	if _, err := metav1.LabelSelectorAsSelector(s.Metric.Selector); err != nil {
		return failed(reason, err, prefix)
	}
	status := autoscalingv2.ObjectMetricStatus{DescribedObject: s.DescribedObject, Metric: autoscalingv2.MetricIdentifier(s.Metric)}
	done := func(n int32, name string) proposal {
		return proposal{replicas: n, metric: name, status: autoscalingv2.MetricStatus{Type: autoscalingv2.ObjectMetricSourceType, Object: &status}}
	}
	var value int64
	err := r.err
	if err != nil {
		err = fmt.Errorf("unable to get metric %s on %s %s/%s: %w", s.Metric.Name, s.DescribedObject.Kind, namespace, s.DescribedObject.Name, err)
	} else if len(r.values) > 0 {
		value = r.values[0]
	}
	switch t := s.Target; {
	case t.Type == autoscalingv2.ValueMetricType && t.Value != nil:
		var n int32
		if err == nil {
			n, err = c.byRatio(wanted, float64(value)/float64(t.Value.MilliValue()))
		}
		if err != nil {
			return failed(reason, err, prefix)
		}
		status.Current.Value = milli(value)
		return done(n, fmt.Sprintf("%s metric %s", s.DescribedObject.Kind, s.Metric.Name))
	case t.Type == autoscalingv2.AverageValueMetricType && t.AverageValue != nil:
		if err != nil {
			return failed(reason, err, prefix+": failed to get %s object metric", s.Metric.Name)
		}
		n, average := c.shared(has, value, t.AverageValue.MilliValue())
		status.Current.AverageValue = milli(average)
		return done(n, fmt.Sprintf("external metric %s(%+v)", s.Metric.Name, s.Metric.Selector))
	}
	return failed(reason, errors.New("invalid object metric source: neither a value target nor an average value target was set"), prefix)
}

func (c *calculator) podMetric(s *autoscalingv2.PodsMetricSource, r reading, wanted int32) proposal {
	const reason, prefix = "FailedGetPodsMetric", "failed to get pods metric value"
	if _, err := metav1.LabelSelectorAsSelector(s.Metric.Selector); err != nil {
		return failed(reason, err, prefix)
	}
	if s.Target.AverageValue == nil { // the API refuses it
		return failed(reason, errors.New("invalid pods metric source: no average value target was set"), prefix)
	}
	if r.err != nil {
		return failed(reason, fmt.Errorf("unable to get metric %s: %w", s.Metric.Name, r.err), prefix)
	}
	n, average, err := c.average(wanted, s.Target.AverageValue.MilliValue(), r.pods, "")
	if err != nil {
		return failed(reason, err, prefix)
	}
	return proposal{replicas: n, metric: "pods metric " + s.Metric.Name, status: autoscalingv2.MetricStatus{Type: autoscalingv2.PodsMetricSourceType,
		Pods: &autoscalingv2.PodsMetricStatus{Metric: autoscalingv2.MetricIdentifier(s.Metric), Current: autoscalingv2.MetricValueStatus{AverageValue: milli(average)}}}}
}

// resource is of pods, or of the container that is named.
func (c *calculator) resource(name corev1.ResourceName, container string, t autoscalingv2.MetricTarget, r reading, wanted int32) (int32, string, autoscalingv2.MetricValueStatus, error) {
	var current autoscalingv2.MetricValueStatus
	err := r.err
	if err != nil {
		err = fmt.Errorf("unable to get metrics for resource %s: %w", name, err)
	}
	switch {
	case t.AverageValue != nil:
		var n int32
		var usage int64
		if err == nil {
			n, usage, err = c.average(wanted, t.AverageValue.MilliValue(), r.pods, name)
		}
		if err != nil {
			return 0, "", current, fmt.Errorf("failed to get %s usage: %w", name, err)
		}
		current.AverageValue = amount(name, usage)
		return n, fmt.Sprintf("%s resource", name), current, nil
	case t.AverageUtilization != nil:
		var n, percent int32
		var usage int64
		if err == nil {
			n, percent, usage, err = c.utilization(wanted, *t.AverageUtilization, r.pods, name, container)
		}
		if err != nil {
			return 0, "", current, fmt.Errorf("failed to get %s utilization: %w", name, err)
		}
		current.AverageUtilization, current.AverageValue = &percent, amount(name, usage)
		of := ""
		if container != "" {
			of = " container"
		}
		return n, fmt.Sprintf("%s%s resource utilization (percentage of request)", name, of), current, nil
	}
	return 0, "", current, errors.New("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")
}

func (c *calculator) external(s *autoscalingv2.ExternalMetricSource, r reading, namespace string, wanted, has int32) proposal {
	const reason = "FailedGetExternalMetric"
	name := s.Metric.Name
	prefix := fmt.Sprintf("failed to get %s external metric value", name)
	status := autoscalingv2.ExternalMetricStatus{Metric: autoscalingv2.MetricIdentifier(s.Metric)}
	done := func(n int32) proposal {
		return proposal{replicas: n, metric: fmt.Sprintf("external metric %s(%+v)", name, s.Metric.Selector),
			status: autoscalingv2.MetricStatus{Type: autoscalingv2.ExternalMetricSourceType, External: &status}}
	}
	_, err := metav1.LabelSelectorAsSelector(s.Metric.Selector)
	if err == nil && r.err != nil {
		err = fmt.Errorf("unable to get external metric %s/%s/%+v: %w", namespace, name, s.Metric.Selector, r.err)
	}
	var value int64
	for _, v := range r.values {
		if v > 0 && value > math.MaxInt64-v {
			value = math.MaxInt64
			break
		}
		value += v
	}
	switch t := s.Target; {
	case t.AverageValue != nil:
		if err != nil {
			return failed(reason, err, "%s: failed to get %s external metric", prefix, name)
		}
		n, average := c.shared(has, value, t.AverageValue.MilliValue())
		status.Current.AverageValue = milli(average)
		return done(n)
	case t.Value != nil:
		var n int32
		if err == nil {
			n, err = c.byRatio(wanted, float64(value)/float64(t.Value.MilliValue()))
		}
		if err != nil {
			return failed(reason, err, "%s: failed to get external metric %s", prefix, name)
		}
		status.Current.Value = milli(value)
		return done(n)
	}
	return failed(reason, errors.New("invalid external metric source: neither a value target nor an average value target was set"), "%s", prefix)
}

func milli(v int64) *resource.Quantity { return resource.NewMilliQuantity(v, resource.DecimalSI) }

// amount is in the format in which metrics-server tells it.
func amount(name corev1.ResourceName, v int64) *resource.Quantity {
	if name == corev1.ResourceMemory {
		return resource.NewMilliQuantity(v, resource.BinarySI)
	}
	return milli(v)
}
