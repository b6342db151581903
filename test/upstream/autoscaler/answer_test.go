// Package autoscaler answers cases with upstream's HorizontalPodAutoscaler controller, for
// the test of ours against it (controllers/podautoscaler, make -C test/upstream autoscaler).
package autoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/scale"
	scalefake "k8s.io/client-go/scale/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	customapi "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	externalapi "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	metricsapi "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	resourceclient "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	customclient "k8s.io/metrics/pkg/client/custom_metrics"
	externalclient "k8s.io/metrics/pkg/client/external_metrics"
)

// Case and Trace are those of controllers/podautoscaler's test.
type Case struct {
	Autoscaler autoscalingv2.HorizontalPodAutoscaler
	Steps      []Step
}

type Step struct {
	// Autoscaler replaces the one of before.
	Autoscaler *autoscalingv2.HorizontalPodAutoscaler `json:",omitempty"`
	// Rival is another one of the same target.
	Rival *autoscalingv2.HorizontalPodAutoscaler `json:",omitempty"`
	// Replicas are set by someone else.
	Replicas *int32 `json:",omitempty"`
	Selector string
	Has      int32 // status.replicas
	Pods     []corev1.Pod
	Usage    []metricsapi.PodMetrics
	OfPods   map[string][]customapi.MetricValue
	Objects  map[string]int64
	External map[string][]int64
	// Errors are told by "usage", "custom", "external", "get", "update".
	Errors map[string]string
}

type Trace struct {
	Status   []autoscalingv2.HorizontalPodAutoscalerStatus
	Replicas []int32
	Events   []string
	// Told is how many events there were, repeated ones included.
	Told int
}

func TestAnswer(t *testing.T) {
	in, out := os.Getenv("SKIFF_CASES"), os.Getenv("SKIFF_TRACES")
	if in == "" || out == "" {
		t.Skip("SKIFF_CASES and SKIFF_TRACES name no files; make -C test/upstream autoscaler does")
	}
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Parse([]string{"-logtostderr=false", "-alsologtostderr=false", "-stderrthreshold=FATAL"}); err != nil {
		t.Fatal(err)
	}
	klog.SetOutput(io.Discard)
	utilruntime.ErrorHandlers = nil // they wait by a clock that a bubble does not have
	raw, err := os.ReadFile(in)
	if err != nil {
		t.Fatal(err)
	}
	var cases []Case
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	traces := make([]Trace, len(cases))
	for i := range cases {
		synctest.Test(t, func(t *testing.T) { traces[i] = answer(t, &cases[i]) })
	}
	if raw, err = json.Marshal(traces); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(out, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

const (
	namespace = "ns"
	period    = 15 * time.Second
)

// world is what the controller sees.
type world struct {
	step     *Step
	replicas int32
}

func answer(t *testing.T, c *Case) Trace {
	ctx, cancel := context.WithCancel(t.Context())
	w := &world{step: &c.Steps[0], replicas: *c.Steps[0].Replicas}
	client := fake.NewSimpleClientset(&c.Autoscaler)
	var trace Trace
	client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e := a.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		line := e.InvolvedObject.Name + " " + e.Type + " " + e.Reason + " " + e.Message
		trace.Told++
		if !slices.Contains(trace.Events, line) {
			trace.Events = append(trace.Events, line)
		}
		return true, e, nil
	})
	client.PrependReactor("patch", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		trace.Told++
		return true, &corev1.Event{}, nil
	})
	shared := informers.NewSharedInformerFactory(client, 0)
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{appsv1.SchemeGroupVersion})
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("Deployment"), meta.RESTScopeNamespace)
	hpa := podautoscaler.NewHorizontalController(ctx, client.CoreV1(), w.scales(), client.AutoscalingV2(), mapper,
		metrics.NewRESTMetricsClient(usage{w: w}, custom{w: w}, external{w: w}),
		shared.Autoscaling().V2().HorizontalPodAutoscalers(), shared.Core().V1().Pods(),
		period, 5*time.Minute, 0.1, 5*time.Minute, 30*time.Second)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pods := map[string]bool{}
	enter := func(s *Step) {
		w.step = s
		if s.Replicas != nil {
			w.replicas = *s.Replicas
		}
		there := map[string]bool{}
		for i := range s.Pods {
			p := &s.Pods[i]
			there[p.Name] = true
			var err error
			if pods[p.Name] {
				_, err = client.CoreV1().Pods(namespace).Update(ctx, p, metav1.UpdateOptions{})
			} else {
				_, err = client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
			}
			must(err)
		}
		for name := range pods {
			if !there[name] {
				must(client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
			}
		}
		pods = there
		synctest.Wait() // pods are seen first
		if s.Autoscaler != nil {
			live, err := client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(ctx, s.Autoscaler.Name, metav1.GetOptions{})
			must(err)
			next := live.DeepCopy()
			next.Spec, next.Generation = s.Autoscaler.Spec, live.Generation+1
			_, err = client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Update(ctx, next, metav1.UpdateOptions{})
			must(err)
		}
		synctest.Wait()
		if s.Rival != nil {
			_, err := client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Create(ctx, s.Rival, metav1.CreateOptions{})
			must(err)
		}
	}
	enter(&c.Steps[0])
	done := make(chan struct{})
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())
	go func() { defer close(done); hpa.Run(ctx, 5) }()
	for i := range c.Steps {
		if i > 0 {
			time.Sleep(period - 3*time.Second)
			synctest.Wait()
			enter(&c.Steps[i])
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		live, err := client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(ctx, c.Autoscaler.Name, metav1.GetOptions{})
		must(err)
		trace.Status, trace.Replicas = append(trace.Status, *live.Status.DeepCopy()), append(trace.Replicas, w.replicas)
	}
	cancel()
	<-done
	shared.Shutdown()
	slices.Sort(trace.Events)
	return trace
}

func (w *world) fails(what string) error {
	if m := w.step.Errors[what]; m != "" {
		return apierrors.NewInternalError(errors.New(m))
	}
	return nil
}

func (w *world) scales() scale.ScalesGetter {
	f := &scalefake.FakeScaleClient{}
	f.AddReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace},
			Spec:       autoscalingv1.ScaleSpec{Replicas: w.replicas},
			Status:     autoscalingv1.ScaleStatus{Replicas: w.step.Has, Selector: w.step.Selector},
		}, w.fails("get")
	})
	f.AddReactor("update", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s := a.(clienttesting.UpdateAction).GetObject().(*autoscalingv1.Scale)
		if err := w.fails("update"); err != nil {
			return true, nil, err
		}
		w.replicas = s.Spec.Replicas
		return true, s, nil
	})
	return f
}

type usage struct {
	resourceclient.PodMetricsInterface
	w *world
}

func (u usage) PodMetricses(string) resourceclient.PodMetricsInterface { return u }

func (u usage) List(_ context.Context, o metav1.ListOptions) (*metricsapi.PodMetricsList, error) {
	sel, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return nil, err
	}
	list := &metricsapi.PodMetricsList{}
	for _, m := range u.w.step.Usage {
		if sel.Matches(labels.Set(m.Labels)) {
			list.Items = append(list.Items, m)
		}
	}
	return list, u.w.fails("usage")
}

type custom struct{ w *world }

func (c custom) RootScopedMetrics() customclient.MetricsInterface       { return c }
func (c custom) NamespacedMetrics(string) customclient.MetricsInterface { return c }

func (c custom) GetForObject(gk schema.GroupKind, name, metric string, _ labels.Selector) (*customapi.MetricValue, error) {
	if err := c.w.fails("custom"); err != nil {
		return nil, err
	}
	v, ok := c.w.step.Objects[metric]
	if !ok {
		return nil, errors.New("the custom metrics API server returned 0 results when we asked for exactly one")
	}
	return &customapi.MetricValue{Value: *resource.NewMilliQuantity(v, resource.DecimalSI)}, nil
}

func (c custom) GetForObjects(_ schema.GroupKind, _ labels.Selector, metric string, _ labels.Selector) (*customapi.MetricValueList, error) {
	return &customapi.MetricValueList{Items: c.w.step.OfPods[metric]}, c.w.fails("custom")
}

type external struct{ w *world }

func (e external) NamespacedMetrics(string) externalclient.MetricsInterface { return e }

func (e external) List(metric string, _ labels.Selector) (*externalapi.ExternalMetricValueList, error) {
	list := &externalapi.ExternalMetricValueList{}
	for _, v := range e.w.step.External[metric] {
		list.Items = append(list.Items, externalapi.ExternalMetricValue{MetricName: metric, Value: *resource.NewMilliQuantity(v, resource.DecimalSI)})
	}
	return list, e.w.fails("external")
}
