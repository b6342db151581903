package metricsapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/skiff-k8s/skiff/api/metrics"
	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/metricsapi"
	"github.com/skiff-k8s/skiff/apiserver/rest"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// kubelet serves the metrics of a node with one pod of two containers, one of which uses half
// a CPU, the other none; the node uses one and a half.
type kubelet struct {
	*httptest.Server
	clock *clocktesting.FakeClock

	mu     sync.Mutex
	asked  []string
	failed bool
	// still is when its counters were read last; zero: they are read when it is asked.
	still time.Time
}

func newKubelet(t *testing.T, clock *clocktesting.FakeClock) *kubelet {
	k := &kubelet{clock: clock}
	k.Server = httptest.NewTLSServer(k)
	t.Cleanup(k.Close)
	return k
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, r.URL.Path)
	now := k.clock.Now()
	if !k.still.IsZero() {
		now = k.still
	}
	switch {
	case k.failed:
		http.Error(w, "not now", http.StatusServiceUnavailable)
	case r.URL.Path == "/metrics/resource":
		at, up := now.UnixMilli(), float64(now.UnixNano())/1e9
		fmt.Fprintf(w, "node_cpu_usage_seconds_total %f %d\nnode_memory_working_set_bytes 2097152 %d\n", 1.5*up, at, at)
		for name, rate := range map[string]float64{"busy": 0.5, "idle": 0} {
			l := fmt.Sprintf(`{container=%q,namespace="default",pod="pod"}`, name)
			fmt.Fprintf(w, "container_cpu_usage_seconds_total%s %f %d\ncontainer_memory_working_set_bytes%s 1048576 %d\n", l, rate*up, at, l, at)
		}
	case r.URL.Path == "/stats/summary":
		fmt.Fprintf(w, `{"node":{"nodeName":"node","cpu":{"time":%[1]q,"usageNanoCores":1500000000},"memory":{"time":%[1]q,"workingSetBytes":2097152}},
			"pods":[{"podRef":{"name":"pod","namespace":"default"},"containers":[
			{"name":"busy","cpu":{"time":%[1]q,"usageNanoCores":500000000},"memory":{"workingSetBytes":1048576}},
			{"name":"idle","cpu":{"time":%[1]q,"usageNanoCores":0},"memory":{"workingSetBytes":1048576}}]}]}`, now.Format(time.RFC3339))
	default:
		http.NotFound(w, r)
	}
}

func (k *kubelet) requests() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := strings.Join(k.asked, " ")
	k.asked = nil
	return all
}

// world is an API server with a node and its pod.
type world struct {
	t       *testing.T
	clock   *clocktesting.FakeClock
	kubelet *kubelet
	server  *servertest.Server
	client  *kubernetes.Clientset
	metrics *metricsclient.Clientset
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))}
	w.kubelet = newKubelet(t, w.clock)
	w.server = servertest.New(t, func(c *apiserver.Config) {
		source, err := metricsapi.New(metricsapi.Config{Caches: c.Caches, Clock: w.clock})
		if err != nil {
			t.Fatal(err)
		}
		if err := metrics.AddToScheme(c.Scheme); err != nil {
			t.Fatal(err)
		}
		c.Resources = append(c.Resources, metrics.Resources()...)
		c.Computed = map[schema.GroupResource]rest.Computed{metrics.Nodes: source.Nodes, metrics.Pods: source.Pods}
	})
	w.client = kubernetes.NewForConfigOrDie(w.server.Config())
	w.metrics = metricsclient.NewForConfigOrDie(w.server.Config())
	w.node("node", w.kubelet.Listener.Addr())
	w.pod("default", "pod", "node", "busy", "idle")
	return w
}

func (w *world) must(_ any, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) node(name string, at net.Addr) {
	w.t.Helper()
	host, text, err := net.SplitHostPort(at.String())
	if err != nil {
		w.t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		w.t.Fatal(err)
	}
	nodes := w.client.CoreV1().Nodes()
	n, err := nodes.Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node": name}}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "nowhere.invalid"}, {Type: corev1.NodeInternalIP, Address: host}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	n, err = nodes.UpdateStatus(w.t.Context(), n, metav1.UpdateOptions{})
	w.must(n, err)
	w.must(nodes.List(w.t.Context(), metav1.ListOptions{ResourceVersion: n.ResourceVersion})) // until the cache has it
}

func (w *world) pod(namespace, name, node string, containers ...string) {
	w.t.Helper()
	if _, err := w.client.CoreV1().Namespaces().Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{NodeName: node}}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c, Image: "image"})
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	}
	status := p.Status
	pods := w.client.CoreV1().Pods(namespace)
	p, err := pods.Create(w.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	p.Status.Phase, p.Status.ContainerStatuses = corev1.PodRunning, status.ContainerStatuses
	p, err = pods.UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{})
	w.must(p, err)
	w.must(pods.List(w.t.Context(), metav1.ListOptions{ResourceVersion: p.ResourceVersion})) // until the cache has it
}

// while steps the clock whenever somebody waits for it, until ask returns.
func while[T any](w *world, ask func(context.Context) (T, error)) (T, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	stepped := make(chan struct{})
	go func() {
		defer close(stepped)
		for {
			select {
			case <-done:
				return
			default:
				if w.clock.HasWaiters() {
					w.clock.Step(time.Second)
				}
				time.Sleep(time.Millisecond) // the fake clock cannot be waited for
			}
		}
	}()
	got, err := ask(ctx)
	close(done)
	<-stepped
	return got, err
}

func (w *world) nodes(o metav1.ListOptions) []string {
	w.t.Helper()
	got, err := while(w, func(ctx context.Context) ([]string, error) {
		list, err := w.metrics.MetricsV1beta1().NodeMetricses().List(ctx, o)
		if err != nil {
			return nil, err
		}
		var out []string
		for _, n := range list.Items {
			out = append(out, fmt.Sprint(n.Name, " ", n.Usage.Cpu().MilliValue(), " ", n.Usage.Memory().Value(), " ", n.Window.Duration, " ", n.Labels["node"]))
		}
		return out, nil
	})
	w.must(nil, err)
	return got
}

func (w *world) pods(namespace string, o metav1.ListOptions) []string {
	w.t.Helper()
	got, err := while(w, func(ctx context.Context) ([]string, error) {
		list, err := w.metrics.MetricsV1beta1().PodMetricses(namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		var out []string
		for _, p := range list.Items {
			s := p.Namespace + "/" + p.Name
			for _, c := range p.Containers {
				s += fmt.Sprint(" ", c.Name, " ", c.Usage.Cpu().MilliValue(), " ", c.Usage.Memory().Value())
			}
			out = append(out, s)
		}
		return out, nil
	})
	w.must(nil, err)
	return got
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

const thePod = "default/pod busy 500 1048576 idle 0 1048576"

func TestOnlyWhoAsksMeasures(t *testing.T) {
	w := newWorld(t)
	if r := w.kubelet.requests(); r != "" {
		t.Errorf("nobody asked for metrics, the kubelet was asked for %s", r)
	}
	same(t, "first", w.nodes(metav1.ListOptions{}), "node 1500 2097152 1s node")
	if r := w.kubelet.requests(); r != "/metrics/resource /metrics/resource" {
		t.Errorf("for a first answer the kubelet was asked for %s", r)
	}
	w.clock.Step(5 * time.Second)
	same(t, "again", w.nodes(metav1.ListOptions{}), "node 1500 2097152 1s node")
	same(t, "pods", w.pods("default", metav1.ListOptions{}), thePod)
	if r := w.kubelet.requests(); r != "" {
		t.Errorf("soon after an answer the kubelet was asked for %s", r)
	}
	w.clock.Step(10 * time.Second)
	same(t, "later", w.nodes(metav1.ListOptions{}), "node 1500 2097152 15s node")
	if r := w.kubelet.requests(); r != "/metrics/resource" {
		t.Errorf("15 s after an answer the kubelet was asked for %s", r)
	}
	w.clock.Step(time.Hour)
	same(t, "much later", w.nodes(metav1.ListOptions{}), "node 1500 2097152 1s node")
}

func TestKubeletsThatReadByTheClock(t *testing.T) {
	w := newWorld(t)
	w.kubelet.still = w.clock.Now()
	same(t, "nodes", w.nodes(metav1.ListOptions{}), "node 1500 2097152 10s node")
	if r := w.kubelet.requests(); r != "/metrics/resource /metrics/resource /stats/summary" {
		t.Errorf("the kubelet was asked for %s", r)
	}
	same(t, "pods", w.pods("", metav1.ListOptions{}), thePod)
}

func TestNodesThatDoNotAnswer(t *testing.T) {
	w := newWorld(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(closed, err)
	w.node("gone", closed.Addr())
	w.must(nil, closed.Close())
	w.pod("default", "lost", "gone", "c")
	same(t, "nodes", w.nodes(metav1.ListOptions{}), "node 1500 2097152 1s node")
	same(t, "pods", w.pods("", metav1.ListOptions{}), thePod)
	w.kubelet.mu.Lock()
	w.kubelet.failed = true
	w.kubelet.mu.Unlock()
	w.clock.Step(time.Minute)
	same(t, "no node", w.nodes(metav1.ListOptions{}))
}

func TestLists(t *testing.T) {
	w := newWorld(t)
	w.pod("default", "starting", "node", "not-measured-yet")
	w.pod("other", "pod", "node", "busy") // the kubelet knows none of its containers
	same(t, "all", w.pods("", metav1.ListOptions{}), thePod)
	same(t, "of a namespace", w.pods("other", metav1.ListOptions{}))
	same(t, "by label", w.pods("", metav1.ListOptions{LabelSelector: "app=pod"}), thePod)
	same(t, "by another label", w.pods("", metav1.ListOptions{LabelSelector: "app=other"}))
	same(t, "by name", w.pods("", metav1.ListOptions{FieldSelector: "metadata.name=pod"}), thePod)
	same(t, "by namespace", w.pods("", metav1.ListOptions{FieldSelector: "metadata.namespace=other"}))
	same(t, "nodes by label", w.nodes(metav1.ListOptions{LabelSelector: "node!=node"}))
	pods := w.metrics.MetricsV1beta1()
	got, err := pods.PodMetricses("default").Get(t.Context(), "pod", metav1.GetOptions{})
	if err != nil || len(got.Containers) != 2 || got.Window.Duration != time.Second || got.Timestamp.IsZero() {
		t.Errorf("pod: %v, %v", got, err)
	}
	if _, err := pods.PodMetricses("other").Get(t.Context(), "pod", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod of another namespace: %v", err)
	}
	if n, err := pods.NodeMetricses().Get(t.Context(), "node", metav1.GetOptions{}); err != nil || n.Usage.Cpu().MilliValue() != 1500 {
		t.Errorf("node: %v, %v", n, err)
	}
	if _, err := pods.NodeMetricses().Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("no node: %v", err)
	}
}

func TestTable(t *testing.T) {
	w := newWorld(t)
	raw, err := while(w, func(ctx context.Context) ([]byte, error) {
		return w.client.RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/pods").
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	})
	w.must(raw, err)
	var table metav1.Table
	w.must(nil, json.Unmarshal(raw, &table))
	var names []string
	for _, c := range table.ColumnDefinitions {
		names = append(names, c.Name)
	}
	same(t, "columns", names, "Name", "cpu", "memory", "Window")
	if len(table.Rows) != 1 || fmt.Sprint(table.Rows[0].Cells) != "[pod 500m 2Mi 1s]" {
		t.Errorf("rows %v", table.Rows)
	}
}
