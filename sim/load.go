package sim

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

// load is what hollow pods pretend to use, told as metrics.k8s.io when it is asked for.
type load struct {
	caches *cacher.Caches

	mu    sync.Mutex
	milli map[string]int64 // CPU of all pods of an app together
	asked int
}

// Load sets what the pods labelled app=name use of CPU together, in thousandths.
func (c *Cluster) Load(name string, milli int64) {
	c.load.mu.Lock()
	defer c.load.mu.Unlock()
	if c.load.milli == nil {
		c.load.milli = map[string]int64{}
	}
	c.load.milli[name] = milli
}

// Measured is how often metrics of pods were asked for.
func (c *Cluster) Measured() int {
	c.load.mu.Lock()
	defer c.load.mu.Unlock()
	return c.load.asked
}

func (l *load) nodes(context.Context) []runtime.Object { return nil }

func (l *load) pods(ctx context.Context) []runtime.Object {
	namespace := ""
	if info, ok := request.RequestInfoFrom(ctx); ok {
		namespace = info.Namespace
	}
	all, err := lookup.CachedList[*corev1.Pod](ctx, l.caches, schema.GroupResource{Resource: "pods"}, namespace)
	if err != nil {
		return nil
	}
	running := map[string]int64{}
	for _, p := range all {
		if p.Status.Phase == corev1.PodRunning {
			running[p.Labels["app"]]++
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	var out []runtime.Object
	for _, p := range all {
		app := p.Labels["app"]
		if p.Status.Phase != corev1.PodRunning {
			continue
		}
		out = append(out, &metricsv1beta1.PodMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels},
			Timestamp:  metav1.Now(), Window: metav1.Duration{Duration: time.Second},
			Containers: []metricsv1beta1.ContainerMetrics{{Name: p.Spec.Containers[0].Name, Usage: corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(l.milli[app]/running[app], resource.DecimalSI)}}},
		})
	}
	return out
}
