package podautoscaler

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// answers are bodies by path; what is not there is not found, in words that are no Status,
// as of an API server without the API.
type answers map[string]string

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	body, ok := a[req.URL.Path]
	code, kind := http.StatusOK, "application/json"
	if !ok {
		body, code, kind = "404 page not found", http.StatusNotFound, "text/plain"
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

func clientOf(t *testing.T, a answers) rest.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://answers", QPS: -1}, &http.Client{Transport: a})
	if err != nil {
		t.Fatal(err)
	}
	return c.AutoscalingV2().RESTClient()
}

// TestMissingAPIs is about clusters that lack what an autoscaler asks for.
func TestMissingAPIs(t *testing.T) {
	id := autoscalingv2.MetricIdentifier{Name: "queue"}
	for _, c := range []struct {
		there  answers
		metric autoscalingv2.MetricSpec
		want   string
	}{
		{metric: autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU}},
			want: "unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)"},
		{metric: autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: id}},
			want: "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered"},
		{there: answers{"/apis/custom.metrics.k8s.io": `{"name":"custom.metrics.k8s.io","versions":[{"version":"v1alpha1"}]}`},
			metric: autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: id}},
			want:   "unable to fetch metrics from custom metrics API: no known available metric versions found"},
		{metric: autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{Metric: id, DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "shop/v1", Kind: "Till", Name: "t"}}},
			want: `unable to fetch metrics from custom metrics API: unable to map kind Till.shop to resource: no matches for kind "Till" in group "shop"`},
		{metric: autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: id}},
			want: "unable to fetch metrics from external metrics API: the server could not find the requested resource (get queue.external.metrics.k8s.io)"},
	} {
		r := clientOf(t, c.there)
		s := &sources{r, &kinds{client: r, clock: clock.RealClock{}, known: map[schema.GroupKind]found{}}}
		a := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: []autoscalingv2.MetricSpec{c.metric}}}
		a.Namespace = "ns"
		got := s.read(t.Context(), a, labels.Everything())
		if len(got) != 1 || got[0].err == nil || got[0].err.Error() != c.want {
			t.Errorf("%s: %v\nwant %s", c.metric.Type, got[0].err, c.want)
		}
	}
}

// TestOldCustomMetrics reads the values of v1beta1, and those of a namespace.
func TestOldCustomMetrics(t *testing.T) {
	r := clientOf(t, answers{
		"/apis/custom.metrics.k8s.io": `{"name":"custom.metrics.k8s.io","preferredVersion":{"version":"v1beta1"},"versions":[{"version":"v1beta1"}]}`,
		"/apis/custom.metrics.k8s.io/v1beta1/namespaces/ns/pods/*/queue": `{"items":[{"describedObject":{"kind":"Pod","name":"p"},
			"metricName":"queue","timestamp":"2000-01-01T00:00:00Z","window":30,"value":"1500m","selector":null}]}`,
		"/apis/custom.metrics.k8s.io/v1beta1/namespaces/ns/metrics/queue": `{"items":[{"describedObject":{"kind":"Namespace","name":"ns"},"value":"7"}]}`,
	})
	s := &sources{r, &kinds{client: r, clock: clock.RealClock{}, known: map[schema.GroupKind]found{}}}
	id := autoscalingv2.MetricIdentifier{Name: "queue"}
	a := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: []autoscalingv2.MetricSpec{
		{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: id}},
		{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{Metric: id, DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Namespace", Name: "another"}}},
	}}}
	a.Namespace = "ns"
	got := s.read(t.Context(), a, labels.Everything())
	if want := (sample{at: epoch, window: 30 * time.Second, milli: 1500}); got[0].err != nil || !got[0].pods["p"].at.Equal(want.at) || got[0].pods["p"].window != want.window || got[0].pods["p"].milli != want.milli {
		t.Errorf("pods: %+v, want %+v", got[0], want)
	}
	if got[1].err != nil || len(got[1].values) != 1 || got[1].values[0] != 7000 {
		t.Errorf("object: %+v", got[1])
	}
}

// TestKinds finds resources anew after a while, as versions of custom resources come and go.
func TestKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := answers{
			"/apis/shop":    `{"name":"shop","preferredVersion":{"version":"v2"},"versions":[{"version":"v2"},{"version":"v1"}]}`,
			"/apis/shop/v1": `{"resources":[{"name":"tills/scale","kind":"Till"},{"name":"tills","kind":"Till","namespaced":true}]}`,
			"/apis/shop/v2": `{"resources":[]}`,
		}
		k := &kinds{client: clientOf(t, a), clock: clock.RealClock{}, known: map[schema.GroupKind]found{}}
		till := schema.GroupKind{Group: "shop", Kind: "Till"}
		expect := func(want string) {
			t.Helper()
			r, namespaced, err := k.resource(t.Context(), till)
			if got := r.Version + " " + r.Resource; err != nil || !namespaced || got != want {
				t.Errorf("%s, %t, %v; want %s", got, namespaced, err, want)
			}
		}
		expect("v1 tills")
		a["/apis/shop/v2"] = a["/apis/shop/v1"]
		delete(a, "/apis/shop/v1")
		expect("v1 tills")
		time.Sleep(remembered)
		expect("v2 tills")
	})
}
