package podautoscaler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	custommetrics "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	externalmetrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	resourcemetrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// play has this controller play a case.
func play(t *testing.T, c *oneCase) trace {
	w := &world{step: &c.Steps[0], replicas: *c.Steps[0].Replicas}
	//lint:ignore SA1019 the other one makes a mapper of all kinds for each write
	client := fake.NewSimpleClientset(c.Autoscaler.DeepCopy())
	shared := informers.NewSharedInformerFactory(client, 0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	pods := map[string]bool{}
	autoscalers := client.AutoscalingV2().HorizontalPodAutoscalers(namespace)
	enter := func(s *step) {
		w.become(s)
		there := map[string]bool{}
		for i := range s.Pods {
			p := s.Pods[i].DeepCopy()
			there[p.Name] = true
			if gvr := corev1.SchemeGroupVersion.WithResource("pods"); pods[p.Name] {
				must(client.Tracker().Update(gvr, p, namespace))
			} else {
				must(client.Tracker().Create(gvr, p, namespace))
			}
		}
		for name := range pods {
			if !there[name] {
				must(client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
			}
		}
		pods = there
		synctest.Wait() // pods are seen first
		if s.Autoscaler != nil {
			live, err := autoscalers.Get(ctx, s.Autoscaler.Name, metav1.GetOptions{})
			must(err)
			live.Spec = s.Autoscaler.Spec
			live.Generation++
			_, err = autoscalers.Update(ctx, live, metav1.UpdateOptions{})
			must(err)
		}
		synctest.Wait()
		if s.Rival != nil {
			must(client.Tracker().Create(autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"), s.Rival.DeepCopy(), namespace))
		}
	}
	enter(&c.Steps[0])
	ctl, err := w.controller(controller.Config{Client: client, Informers: shared, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler)})
	must(err)
	var out trace
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())
	done := make(chan error)
	go func() { done <- ctl.Run(ctx) }()
	time.Sleep(2 * time.Second)
	for i := range c.Steps {
		if i > 0 {
			time.Sleep(DefaultSettings().SyncPeriod - 3*time.Second)
			synctest.Wait()
			enter(&c.Steps[i])
			time.Sleep(3 * time.Second)
		}
		synctest.Wait()
		live, err := autoscalers.Get(ctx, c.Autoscaler.Name, metav1.GetOptions{})
		must(err)
		out.Status, out.Replicas = append(out.Status, live.Status), append(out.Replicas, w.size())
	}
	cancel()
	must(<-done)
	shared.Shutdown()
	out.Events = w.events
	slices.Sort(out.Events)
	return out
}

// world is what the controller sees: an API server by its answers.
type world struct {
	mu       sync.Mutex
	step     *step
	replicas int32
	events   []string
}

func (w *world) become(s *step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step = s
	if s.Replicas != nil {
		w.replicas = *s.Replicas
	}
}

func (w *world) size() int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replicas
}

func (w *world) controller(cfg controller.Config) (*Controller, error) {
	client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://world", QPS: -1}, &http.Client{Transport: w})
	if err != nil {
		return nil, err
	}
	cfg.Events = recorder{w}
	r := client.AutoscalingV2().RESTClient()
	known := &kinds{client: r, clock: cfg.Clock, known: map[schema.GroupKind]found{}}
	return newController(Config{Config: cfg}, &targets{r, known}, &sources{r, known})
}

// recorder notes events, each once.
type recorder struct{ w *world }

func (r recorder) Event(o runtime.Object, kind, reason, message string) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	line := o.(metav1.Object).GetName() + " " + kind + " " + reason + " " + message
	if !slices.Contains(r.w.events, line) {
		r.w.events = append(r.w.events, line)
	}
}

func (r recorder) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	r.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

func (r recorder) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(o, kind, reason, format, args...)
}

// RoundTrip answers as the API server would.
func (w *world) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	answer, err := w.answer(req)
	code := http.StatusOK
	if err != nil {
		status := apierrors.APIStatus(nil)
		if !errors.As(err, &status) {
			return nil, err
		}
		s := status.Status()
		s.Kind, s.APIVersion = "Status", "v1"
		answer, code = &s, int(s.Code)
	}
	raw, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(raw)), Request: req}, nil
}

func (w *world) fails(what string) error {
	if m := w.step.Errors[what]; m != "" {
		return apierrors.NewInternalError(errors.New(m))
	}
	return nil
}

func (w *world) answer(req *http.Request) (any, error) {
	const customPath, externalPath = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/", "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/"
	group := func(name, version string) *metav1.APIGroup {
		v := metav1.GroupVersionForDiscovery{GroupVersion: name + "/" + version, Version: version}
		return &metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
	}
	switch path := req.URL.Path; {
	case path == "/apis/apps":
		return group("apps", "v1"), nil
	case path == "/apis/apps/v1":
		return &metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "deployments/scale", Kind: "Deployment"}, {Name: "deployments", Kind: "Deployment", Namespaced: true}}}, nil
	case path == "/apis/apps/v1/namespaces/ns/deployments/web/scale":
		return w.scale(req)
	case path == "/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods":
		sel, err := labels.Parse(req.URL.Query().Get("labelSelector"))
		if err != nil {
			return nil, err
		}
		list := &resourcemetrics.PodMetricsList{}
		for _, m := range w.step.Usage {
			if sel.Matches(labels.Set(m.Labels)) {
				list.Items = append(list.Items, m)
			}
		}
		return list, w.fails("usage")
	case path == "/apis/custom.metrics.k8s.io":
		return group("custom.metrics.k8s.io", "v1beta2"), nil
	case strings.HasPrefix(path, customPath+"pods/*/"):
		return &custommetrics.MetricValueList{Items: w.step.OfPods[strings.TrimPrefix(path, customPath+"pods/*/")]}, w.fails("custom")
	case strings.HasPrefix(path, customPath+"deployments.apps/web/"):
		list := &custommetrics.MetricValueList{}
		if v, ok := w.step.Objects[strings.TrimPrefix(path, customPath+"deployments.apps/web/")]; ok {
			list.Items = []custommetrics.MetricValue{{Value: *milli(v)}}
		}
		return list, w.fails("custom")
	case strings.HasPrefix(path, externalPath):
		list := &externalmetrics.ExternalMetricValueList{}
		for _, v := range w.step.External[strings.TrimPrefix(path, externalPath)] {
			list.Items = append(list.Items, externalmetrics.ExternalMetricValue{Value: *milli(v)})
		}
		return list, w.fails("external")
	}
	return nil, fmt.Errorf("the world has no %s %s", req.Method, req.URL)
}

func (w *world) scale(req *http.Request) (any, error) {
	if req.Method == http.MethodPut {
		if err := w.fails("update"); err != nil {
			return nil, err
		}
		var s autoscalingv1.Scale
		if err := json.NewDecoder(req.Body).Decode(&s); err != nil {
			return nil, err
		}
		w.replicas = s.Spec.Replicas
		return &s, nil
	}
	return &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: w.replicas},
		Status: autoscalingv1.ScaleStatus{Replicas: w.step.Has, Selector: w.step.Selector}}, w.fails("get")
}
