package endpointslice

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
	"github.com/skiff-k8s/skiff/controllers/endpoints"
)

func service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "svc", Labels: map[string]string{"team": "x"}},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.5", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Selector: map[string]string{"app": "web"},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("web")}},
		},
	}
}

func pod(i int, ready bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Namespace: "ns", UID: types.UID(fmt.Sprint("p", i)), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
			{Name: "web", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.244.%d.%d", i/250, i%250+1),
			PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.244.%d.%d", i/250, i%250+1)}}},
	}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

// apply carries out a plan as the API server would.
func apply(existing []*discoveryv1.EndpointSlice, p plan, id *int) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
next:
	for _, s := range existing {
		for _, r := range p.remove {
			if r.Name == s.Name {
				continue next
			}
		}
		for _, u := range p.update {
			if u.Name == s.Name {
				out = append(out, u)
				continue next
			}
		}
		out = append(out, s)
	}
	for _, s := range p.create {
		*id++
		s.Name = fmt.Sprint(s.GenerateName, *id)
		out = append(out, s)
	}
	return out
}

func TestDecide(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}}}
	id := 0
	s := state{service: service(), node: func(n string) *corev1.Node {
		if n == "n" {
			return node
		}
		return nil
	}}
	step := func(name string, creates, updates, removes int) {
		t.Helper()
		p := decide(s)
		if len(p.create) != creates || len(p.update) != updates || len(p.remove) != removes {
			t.Fatalf("%s: %d creates, %d updates, %d removes; want %d, %d, %d", name, len(p.create), len(p.update), len(p.remove), creates, updates, removes)
		}
		s.slices = apply(s.slices, p, &id)
		if q := decide(s); len(q.create)+len(q.update)+len(q.remove) != 0 {
			t.Fatalf("%s: not settled after one pass: %+v", name, q)
		}
	}
	step("nothing yet: a placeholder", 1, 0, 0)
	if got := s.slices[0]; len(got.Endpoints) != 0 || got.Labels["team"] != "x" || got.Labels[discoveryv1.LabelServiceName] != "web" || got.Labels[discoveryv1.LabelManagedBy] != ManagedBy {
		t.Errorf("placeholder %+v", got)
	}
	s.pods = append(s.pods, pod(0, false))
	step("the placeholder is used", 0, 1, 0)
	e := s.slices[0].Endpoints[0]
	if *e.Conditions.Ready || *e.Conditions.Serving || *e.Conditions.Terminating || *e.Zone != "z" || *e.NodeName != "n" || *s.slices[0].Ports[0].Port != 8080 {
		t.Errorf("endpoint %+v ports %+v", e, s.slices[0].Ports)
	}
	s.pods[0] = pod(0, true)
	step("ready", 0, 1, 0)
	for i := 1; i < 250; i++ {
		s.pods = append(s.pods, pod(i, true))
	}
	step("full slices", 3, 0, 0)
	s.pods[200] = pod(200, false)
	step("one change, one write", 0, 1, 0)
	gone := pod(10, true)
	now := metav1.Now()
	gone.DeletionTimestamp = &now
	s.pods[10] = gone
	step("terminating", 0, 1, 0)
	s.pods = nil
	step("none left", 0, 1, len(s.slices)-1)

	s.service = service()
	s.service.Spec.PublishNotReadyAddresses = true
	p := pod(1, false)
	p.Spec.NodeName = "unknown"
	s.pods = []*corev1.Pod{p}
	step("published all the same", 0, 1, 0)
	if !*s.slices[0].Endpoints[0].Conditions.Ready {
		t.Error("publishNotReadyAddresses says ready")
	}
	s.service.Spec.IPFamilies = append(s.service.Spec.IPFamilies, corev1.IPv6Protocol)
	step("second family", 1, 0, 0)
}

func TestFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := controllertest.New(t, service(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, pod(1, true), pod(2, false))
		c, err := New(e.Config)
		if err != nil {
			t.Fatal(err)
		}
		legacy, err := endpoints.New(e.Config)
		if err != nil {
			t.Fatal(err)
		}
		e.Start(c, legacy)
		ready := func() (slices, endpoints int) {
			t.Helper()
			list, err := e.Client.DiscoveryV1().EndpointSlices("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != 1 {
				t.Fatalf("%d slices", len(list.Items))
			}
			for _, ep := range list.Items[0].Endpoints {
				if *ep.Conditions.Ready {
					slices++
				}
			}
			ep, err := e.Client.CoreV1().Endpoints("ns").Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range ep.Subsets {
				endpoints += len(s.Addresses)
			}
			return slices, endpoints
		}
		if a, b := ready(); a != 1 || b != 1 {
			t.Errorf("%d and %d ready endpoints, want 1", a, b)
		}
		if _, err := e.Client.CoreV1().Pods("ns").UpdateStatus(t.Context(), pod(2, true), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		if a, b := ready(); a != 2 || b != 2 {
			t.Errorf("%d and %d ready endpoints, want 2", a, b)
		}
		if err := e.Client.CoreV1().Pods("ns").Delete(t.Context(), "p1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		if a, b := ready(); a != 1 || b != 1 {
			t.Errorf("%d and %d ready endpoints, want 1", a, b)
		}
		writes := len(e.Client.Actions())
		e.After(1e12)
		if n := len(e.Client.Actions()); n != writes {
			t.Errorf("%d requests while nothing changed", n-writes)
		}
		if err := e.Client.CoreV1().Services("ns").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		if _, err := e.Client.CoreV1().Endpoints("ns").Get(t.Context(), "web", metav1.GetOptions{}); err == nil {
			t.Error("Endpoints outlived their Service")
		}
	})
}

// TestWhenItHappened is in slices: when the Service was made, then when pods became ready.
func TestWhenItHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := time.Now().Truncate(time.Second)
		svc := service()
		svc.CreationTimestamp = metav1.NewTime(made)
		e := controllertest.New(t, svc, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, pod(1, false))
		c, err := New(e.Config)
		if err != nil {
			t.Fatal(err)
		}
		e.Start(c)
		e.Settle()
		want := func(when string, at time.Time) {
			t.Helper()
			list, err := e.Client.DiscoveryV1().EndpointSlices("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 {
				t.Fatal(list, err)
			}
			text := ""
			if !at.IsZero() {
				text = at.UTC().Format(time.RFC3339Nano)
			}
			if got := list.Items[0].Annotations[corev1.EndpointsLastChangeTriggerTime]; got != text {
				t.Errorf("%s: %q, want %q", when, got, text)
			}
		}
		want("a new Service", made)
		p := pod(1, true)
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(made.Add(time.Hour))
		if _, err := e.Client.CoreV1().Pods("ns").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		want("a pod became ready", made.Add(time.Hour))
		if err := e.Client.CoreV1().Pods("ns").Delete(t.Context(), "p1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		want("a pod is gone", time.Time{})
	})
}
