package podautoscaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	custommetrics "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	externalmetrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	resourcemetrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// sources asks the three metrics APIs. Their clients upstream bring conversions and
// generated code for what is four requests.
type sources struct {
	client rest.Interface
	kinds  *kinds
}

// read asks for all metrics of an autoscaler, each only once. Without a selector that can
// be told a metric says nothing, which the decision words.
func (s *sources) read(ctx context.Context, a *autoscalingv2.HorizontalPodAutoscaler, pods labels.Selector) []reading {
	var usage *resourcemetrics.PodMetricsList
	var usageErr error
	out := make([]reading, len(a.Spec.Metrics))
	for i := range a.Spec.Metrics {
		m, r := &a.Spec.Metrics[i], &out[i]
		if m.Resource != nil || m.ContainerResource != nil {
			if usage == nil && usageErr == nil {
				usage, usageErr = s.usage(ctx, a.Namespace, pods)
			}
			r.err = usageErr
		}
		switch {
		case r.err != nil:
		case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
			r.pods = podSamples(usage.Items, m.Resource.Name)
		case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
			r.pods = containerSamples(usage.Items, m.ContainerResource.Name, m.ContainerResource.Container)
		case m.Type == autoscalingv2.PodsMetricSourceType && m.Pods != nil:
			r.pods, r.err = s.ofPods(ctx, a.Namespace, pods, m.Pods.Metric)
		case m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil:
			r.values, r.err = s.ofObject(ctx, a.Namespace, m.Object)
		case m.Type == autoscalingv2.ExternalMetricSourceType && m.External != nil:
			r.values, r.err = s.external(ctx, a.Namespace, m.External.Metric)
		}
	}
	return out
}

func (s *sources) usage(ctx context.Context, namespace string, pods labels.Selector) (*resourcemetrics.PodMetricsList, error) {
	var list resourcemetrics.PodMetricsList
	err := get(ctx, s.client, "/apis/metrics.k8s.io/v1beta1/namespaces/"+namespace+"/pods", map[string]string{"labelSelector": pods.String()}, &list)
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", about(err, "pods.metrics.k8s.io"))
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	return &list, nil
}

// about names what was asked for where the server did not, as client-go's typed clients do.
func about(err error, what string) error {
	if apierrors.IsNotFound(err) || apierrors.IsServiceUnavailable(err) {
		return fmt.Errorf("%w (get %s)", err, what)
	}
	return err
}

// podSamples are sums of containers; a pod of which one is not known is left out.
func podSamples(list []resourcemetrics.PodMetrics, name corev1.ResourceName) map[string]sample {
	out := map[string]sample{}
	for _, m := range list {
		known := len(m.Containers) > 0
		s := sample{at: m.Timestamp.Time, window: m.Window.Duration}
		for _, c := range m.Containers {
			q, ok := c.Usage[name]
			known = known && ok
			s.milli += q.MilliValue()
		}
		if known {
			out[m.Name] = s
		}
	}
	return out
}

func containerSamples(list []resourcemetrics.PodMetrics, name corev1.ResourceName, container string) map[string]sample {
	out := map[string]sample{}
	for _, m := range list {
		i := slices.IndexFunc(m.Containers, func(c resourcemetrics.ContainerMetrics) bool { return c.Name == container })
		if i < 0 {
			continue
		}
		if q, ok := m.Containers[i].Usage[name]; ok {
			out[m.Name] = sample{at: m.Timestamp.Time, window: m.Window.Duration, milli: q.MilliValue()}
		}
	}
	return out
}

// window is that of custom metrics which do not tell theirs.
const window = time.Minute

func (s *sources) ofPods(ctx context.Context, namespace string, pods labels.Selector, id autoscalingv2.MetricIdentifier) (map[string]sample, error) {
	sel, err := metav1.LabelSelectorAsSelector(id.Selector)
	if err != nil {
		return nil, err
	}
	list, err := s.custom(ctx, "/namespaces/"+namespace+"/pods/*/"+id.Name, pods, sel)
	if err == nil && len(list) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	return valueSamples(list), nil
}

func valueSamples(list []customValue) map[string]sample {
	out := map[string]sample{}
	for _, m := range list {
		x := sample{at: m.Timestamp.Time, window: window, milli: m.Value.MilliValue()}
		if s := cmp.Or(m.WindowSeconds, m.Window); s != nil {
			x.window = time.Duration(*s) * time.Second
		}
		out[m.DescribedObject.Name] = x
	}
	return out
}

func (s *sources) ofObject(ctx context.Context, namespace string, m *autoscalingv2.ObjectMetricSource) ([]int64, error) {
	sel, err := metav1.LabelSelectorAsSelector(m.Metric.Selector)
	if err != nil {
		return nil, err
	}
	value, err := s.object(ctx, namespace, m, sel)
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	return []int64{value}, nil
}

func (s *sources) object(ctx context.Context, namespace string, m *autoscalingv2.ObjectMetricSource, sel labels.Selector) (int64, error) {
	gk := schema.FromAPIVersionAndKind(m.DescribedObject.APIVersion, m.DescribedObject.Kind).GroupKind()
	path := "/namespaces/" + namespace + "/"
	if gk == (schema.GroupKind{Kind: "Namespace"}) {
		// An autoscaler's own, whatever name it gives: it must not see beyond it.
		path += "metrics/" + m.Metric.Name
	} else {
		r, _, err := s.kinds.resource(ctx, gk)
		if err != nil {
			return 0, fmt.Errorf("unable to map kind %s to resource: %w", gk, err)
		}
		path += r.GroupResource().String() + "/" + m.DescribedObject.Name + "/" + m.Metric.Name
	}
	list, err := s.custom(ctx, path, nil, sel)
	if err != nil {
		return 0, err
	}
	if len(list) != 1 {
		return 0, fmt.Errorf("the custom metrics API server returned %v results when we asked for exactly one", len(list))
	}
	return list[0].Value.MilliValue(), nil
}

// customVersions are those whose values can be read.
var customVersions = []string{"v1beta2", "v1beta1"}

// customValue is of either version: they call the window differently.
type customValue struct {
	custommetrics.MetricValue
	Window *int64 `json:"window"`
}

func (s *sources) custom(ctx context.Context, path string, pods, metric labels.Selector) ([]customValue, error) {
	const group = "custom.metrics.k8s.io"
	versions, err := versionsOf(ctx, s.client, group)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("no custom metrics API (%s) registered", group)
	}
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(versions, func(v string) bool { return slices.Contains(customVersions, v) })
	if i < 0 {
		return nil, errors.New("no known available metric versions found")
	}
	params := map[string]string{}
	if pods != nil && !pods.Empty() {
		params["labelSelector"] = pods.String()
	}
	if !metric.Empty() {
		params["metricLabelSelector"] = metric.String()
	}
	var list struct {
		Items []customValue `json:"items"`
	}
	if err := get(ctx, s.client, "/apis/"+group+"/"+versions[i]+path, params, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (s *sources) external(ctx context.Context, namespace string, id autoscalingv2.MetricIdentifier) ([]int64, error) {
	sel, err := metav1.LabelSelectorAsSelector(id.Selector)
	if err != nil {
		return nil, err
	}
	params := map[string]string{}
	if !sel.Empty() {
		params["labelSelector"] = sel.String()
	}
	var list externalmetrics.ExternalMetricValueList
	// The name of a metric is a path segment here, so that one with a slash is none.
	if strings.Contains(id.Name, "/") {
		err = fmt.Errorf("invalid metric name %q: it has a slash", id.Name)
	} else {
		err = get(ctx, s.client, "/apis/external.metrics.k8s.io/v1beta1/namespaces/"+namespace+"/"+id.Name, params, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from external metrics API: %w", about(err, id.Name+".external.metrics.k8s.io"))
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from external metrics API")
	}
	out := make([]int64, len(list.Items))
	for i := range list.Items {
		out[i] = list.Items[i].Value.MilliValue()
	}
	return out, nil
}
