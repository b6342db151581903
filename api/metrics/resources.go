// Package metrics declares metrics.k8s.io/v1beta1: what nodes and pods use. Its objects are
// not stored; who serves them measures.
package metrics

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/skiff-k8s/skiff/api"
)

// Group and version, and the resources in it.
var (
	GroupVersion = metricsv1beta1.SchemeGroupVersion
	Nodes        = schema.GroupResource{Group: metricsv1beta1.GroupName, Resource: "nodes"}
	Pods         = schema.GroupResource{Group: metricsv1beta1.GroupName, Resource: "pods"}
)

// AddToScheme registers the kinds.
func AddToScheme(s *runtime.Scheme) error { return metricsv1beta1.AddToScheme(s) }

// Resources are those of the group.
func Resources() []*api.Resource {
	return []*api.Resource{
		{
			Group: GroupVersion.Group, Version: GroupVersion.Version, Kind: "NodeMetrics", Plural: "nodes", Singular: "node",
			Verbs:   []string{"get", "list"},
			New:     func() api.Object { return &metricsv1beta1.NodeMetrics{} },
			NewList: func() runtime.Object { return &metricsv1beta1.NodeMetricsList{} },
			Columns: columns(),
			Row: api.Cells(func(n *metricsv1beta1.NodeMetrics, _ time.Time) []any {
				return row(n.Name, n.Usage, n.Window)
			}),
		},
		{
			Group: GroupVersion.Group, Version: GroupVersion.Version, Kind: "PodMetrics", Plural: "pods", Singular: "pod", Namespaced: true,
			Verbs:   []string{"get", "list"},
			New:     func() api.Object { return &metricsv1beta1.PodMetrics{} },
			NewList: func() runtime.Object { return &metricsv1beta1.PodMetricsList{} },
			Columns: columns(),
			Row: api.Cells(func(p *metricsv1beta1.PodMetrics, _ time.Time) []any {
				sum := corev1.ResourceList{}
				for _, c := range p.Containers {
					for name, q := range c.Usage {
						all := sum[name]
						all.Add(q)
						sum[name] = all
					}
				}
				return row(p.Name, sum, p.Window)
			}),
		},
	}
}

// columns are metrics-server's: the names of the resources as they are.
func columns() []metav1.TableColumnDefinition {
	quantity := func(name corev1.ResourceName) metav1.TableColumnDefinition {
		return metav1.TableColumnDefinition{Name: string(name), Type: "string", Format: "quantity", Description: "How much of the resource is used."}
	}
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
		quantity(corev1.ResourceCPU), quantity(corev1.ResourceMemory),
		{Name: "Window", Type: "string", Format: "duration", Description: "The time over which CPU use was measured."},
	}
}

func row(name string, usage corev1.ResourceList, window metav1.Duration) []any {
	cpu, memory := usage[corev1.ResourceCPU], usage[corev1.ResourceMemory]
	return []any{name, cpu.String(), memory.String(), window.Duration.String()}
}
