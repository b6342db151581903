package core

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/api"
)

func TestStoragePaths(t *testing.T) {
	for plural, want := range map[string]string{
		"pods": "pods", "services": "services/specs", "endpoints": "services/endpoints", "nodes": "minions",
		"replicationcontrollers": "controllers", "events": "events", "configmaps": "configmaps", "secrets": "secrets",
		"serviceaccounts": "serviceaccounts", "persistentvolumes": "persistentvolumes",
		"persistentvolumeclaims": "persistentvolumeclaims", "namespaces": "namespaces", "limitranges": "limitranges",
		"resourcequotas": "resourcequotas", "podtemplates": "podtemplates", "bindings": "", "componentstatuses": "",
	} {
		if got := resourceNamed(t, plural).StoragePath; got != want {
			t.Errorf("%s are stored under %q, want %q", plural, got, want)
		}
	}
}

func TestSelectableFields(t *testing.T) {
	for _, c := range []struct{ plural, object, field, want string }{
		{"services", "spec: {type: NodePort, clusterIP: 10.0.0.1}", "spec.type", "NodePort"},
		{"services", "spec: {clusterIP: 10.0.0.1}", "spec.clusterIP", "10.0.0.1"},
		{"nodes", "spec: {unschedulable: true}", "spec.unschedulable", "true"},
		{"nodes", "{}", "spec.unschedulable", "false"},
		{"namespaces", "{}", "status.phase", "Active"},
		{"secrets", "{}", "type", "Opaque"},
		{"replicationcontrollers", "status: {replicas: 2}", "status.replicas", "2"},
		{"events", "involvedObject: {kind: Pod}", "involvedObject.kind", "Pod"},
		{"events", "source: {component: kubelet}", "source", "kubelet"},
		{"events", "reportingComponent: x", "source", "x"},
	} {
		r := resourceNamed(t, c.plural)
		if got := r.Fields(parse[api.Object](t, r, c.object))[c.field]; got != c.want {
			t.Errorf("%s of %s %s: %q, want %q", c.field, c.plural, c.object, got, c.want)
		}
	}
}

func TestStatusIsNotTakenFromClients(t *testing.T) {
	for plural, text := range map[string]string{
		"services":               "status: {loadBalancer: {ingress: [{ip: 1.2.3.4}]}}",
		"namespaces":             "status: {phase: Terminating}",
		"persistentvolumes":      "status: {phase: Bound}",
		"persistentvolumeclaims": "status: {phase: Bound}",
		"replicationcontrollers": "status: {replicas: 3}\nspec: {template: {}}",
		"resourcequotas":         "status: {used: {pods: 3}}",
	} {
		r := resourceNamed(t, plural)
		status := func(obj api.Object) any {
			u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
			if err != nil {
				t.Fatal(err)
			}
			s, _ := u["status"].(map[string]any)
			delete(s, "lastPhaseTransitionTime")
			return s
		}
		sent, none := parse[api.Object](t, r, text), parse[api.Object](t, r, "spec: {}")
		r.PrepareCreate(t.Context(), sent)
		r.PrepareCreate(t.Context(), none)
		sameValue(t, plural+" created", status(sent), status(none))
		old, changed := parse[api.Object](t, r, "spec: {}"), parse[api.Object](t, r, text)
		want := status(old)
		r.PrepareUpdate(t.Context(), changed, old)
		sameValue(t, plural+" updated", status(changed), want)
	}
}

func TestNamespaces(t *testing.T) {
	r := resourceNamed(t, "namespaces")
	n := parse[*v1.Namespace](t, r, "metadata: {name: x}")
	expect(t, created(t, r, n))
	if f := n.Spec.Finalizers; len(f) != 1 || f[0] != v1.FinalizerKubernetes {
		t.Errorf("finalizers %v", f)
	}
	if n.Labels[v1.LabelMetadataName] != "x" {
		t.Errorf("labels %v", n.Labels)
	}
	generated := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}
	r.Default(generated)
	generated.Name = "x-1"
	r.Canonicalize(generated)
	if generated.Labels[v1.LabelMetadataName] != "x-1" {
		t.Errorf("labels of a generated name: %v", generated.Labels)
	}
	// Only finalize takes finalizers away.
	empty := n.DeepCopy()
	empty.Spec.Finalizers = nil
	expect(t, updated(t, r.Strategy, empty, n))
	if len(empty.Spec.Finalizers) != 1 {
		t.Error("an update took a finalizer away")
	}
	empty.Spec.Finalizers = nil
	expect(t, updated(t, subresource(t, r, "finalize"), empty, n))
	if len(empty.Spec.Finalizers) != 0 {
		t.Error("finalize kept a finalizer")
	}
}

func TestNodeStatusAndSpecAreApart(t *testing.T) {
	r := resourceNamed(t, "nodes")
	old := parse[*v1.Node](t, r, "metadata: {name: x}\nstatus: {capacity: {cpu: 1}}")
	expect(t, created(t, r, old))
	if old.Status.Capacity.Cpu().Value() != 1 {
		t.Error("a node may be created with its status")
	}
	n := parse[*v1.Node](t, r, "metadata: {name: x}\nspec: {unschedulable: true}\nstatus: {capacity: {cpu: 2}}")
	expect(t, updated(t, subresource(t, r, "status"), n, old))
	if n.Spec.Unschedulable || n.Status.Capacity.Cpu().Value() != 2 {
		t.Errorf("status: %+v", n)
	}
}

func TestServiceChangesOfType(t *testing.T) {
	r := resourceNamed(t, "services")
	old := parse[*v1.Service](t, r, `
metadata: {name: s, namespace: ns}
spec: {type: LoadBalancer, clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack,
	ports: [{port: 80, nodePort: 30000}], externalTrafficPolicy: Local, healthCheckNodePort: 31000, loadBalancerClass: a/b}
`)
	// What belonged to the old type goes, unless the client changed it.
	s := old.DeepCopy()
	s.Spec.Type = v1.ServiceTypeClusterIP
	expect(t, updated(t, r.Strategy, s, old))
	if s.Spec.Ports[0].NodePort != 0 || s.Spec.HealthCheckNodePort != 0 || s.Spec.LoadBalancerClass != nil ||
		s.Spec.ExternalTrafficPolicy != "" || s.Spec.AllocateLoadBalancerNodePorts != nil {
		t.Errorf("fields of the old type were kept: %+v", s.Spec)
	}
	s = old.DeepCopy()
	s.Spec.Type, s.Spec.ExternalName = v1.ServiceTypeExternalName, "a.b"
	expect(t, updated(t, r.Strategy, s, old))
	if s.Spec.ClusterIP != "" || s.Spec.ClusterIPs != nil || s.Spec.IPFamilies != nil || s.Spec.IPFamilyPolicy != nil {
		t.Errorf("cluster IPs were kept: %+v", s.Spec)
	}
}

func TestServiceClusterIPs(t *testing.T) {
	service := func(ip string, ips ...string) *v1.Service {
		return &v1.Service{Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: ips}}
	}
	for _, c := range []struct {
		name             string
		service, old     *v1.Service
		wantIP, wantIPs0 string
	}{
		{"old clients know clusterIP only", service("10.0.0.1"), nil, "10.0.0.1", "10.0.0.1"},
		{"old clients clear clusterIP only", service("", "10.0.0.1"), service("10.0.0.1", "10.0.0.1"), "", ""},
		{"old clients change clusterIP only", service("10.0.0.2", "10.0.0.1"), service("10.0.0.1", "10.0.0.1"), "10.0.0.2", "10.0.0.2"},
		{"both stay", service("10.0.0.1", "10.0.0.1"), service("10.0.0.1", "10.0.0.1"), "10.0.0.1", "10.0.0.1"},
	} {
		NormalizeClusterIPs(c.service, c.old)
		first := ""
		if len(c.service.Spec.ClusterIPs) > 0 {
			first = c.service.Spec.ClusterIPs[0]
		}
		if c.service.Spec.ClusterIP != c.wantIP || first != c.wantIPs0 {
			t.Errorf("%s: %+v", c.name, c.service.Spec)
		}
	}
	// A replace that names no addresses and ports keeps those that were allocated.
	old := service("10.0.0.1", "10.0.0.1")
	old.Spec.Type, old.Spec.Ports = v1.ServiceTypeNodePort, []v1.ServicePort{{Port: 80, NodePort: 30000}}
	s := service("")
	s.Spec.Type, s.Spec.Ports = v1.ServiceTypeNodePort, []v1.ServicePort{{Port: 80}}
	KeepAllocated(s, old)
	if s.Spec.ClusterIP != "10.0.0.1" || s.Spec.Ports[0].NodePort != 30000 {
		t.Errorf("not kept: %+v", s.Spec)
	}
}

func TestPersistentVolumePhaseChangesAreStamped(t *testing.T) {
	r := resourceNamed(t, "persistentvolumes")
	old := parse[*v1.PersistentVolume](t, r, "metadata: {name: v}")
	pv := old.DeepCopy()
	pv.Status.Phase = v1.VolumeBound
	updated(t, subresource(t, r, "status"), pv, old)
	if pv.Status.LastPhaseTransitionTime == nil {
		t.Error("a change of phase was not stamped")
	}
	again := pv.DeepCopy()
	again.Status.Message = "x"
	updated(t, subresource(t, r, "status"), again, pv)
	if !again.Status.LastPhaseTransitionTime.Equal(pv.Status.LastPhaseTransitionTime) {
		t.Error("stamped without a change of phase")
	}
}

func TestReplicationControllerScale(t *testing.T) {
	r := resourceNamed(t, "replicationcontrollers")
	c := parse[*v1.ReplicationController](t, r, "spec: {replicas: 3, selector: {a: b}}\nstatus: {replicas: 2}")
	spec, status, selector := r.Scale.Get(c)
	if spec != 3 || status != 2 || selector != "a=b" {
		t.Errorf("scale %d, %d, %q", spec, status, selector)
	}
	r.Scale.Set(c, 5)
	if *c.Spec.Replicas != 5 {
		t.Errorf("replicas %d", *c.Spec.Replicas)
	}
	if r.DefaultGC != metav1.DeletePropagationOrphan {
		t.Errorf("pods of a deleted controller: %q", r.DefaultGC)
	}
}

func TestEventsLiveAnHour(t *testing.T) {
	r := resourceNamed(t, "events")
	if ttl := r.TTL(&v1.Event{}); ttl != time.Hour {
		t.Errorf("TTL %s", ttl)
	}
	if !r.CreateOnUpdate {
		t.Error("events are created by update")
	}
}

func TestBindings(t *testing.T) {
	r := resourceNamed(t, "bindings")
	for text, want := range map[string][]string{
		"target: {name: x}":                 nil,
		"target: {kind: Node, name: x}":     nil,
		"target: {kind: Pod, name: x}":      {`target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>"`},
		"target: {kind: Node}":              {"target.name: Required value"},
		"target: {apiVersion: v1, name: x}": nil,
	} {
		expect(t, messages(r.Validate(t.Context(), parse[*v1.Binding](t, r, text))), want...)
	}
}

func TestComponentStatusRow(t *testing.T) {
	r := resourceNamed(t, "componentstatuses")
	for text, want := range map[string]string{
		"conditions: [{type: Healthy, status: \"True\", message: ok}]": "Healthy",
		"conditions: [{type: Healthy, status: \"False\"}]":             "Unhealthy",
		"{}": "Unknown",
	} {
		if got := r.Row(parse[api.Object](t, r, text), time.Now())[1]; got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestTemplates(t *testing.T) {
	template := func(text string) *v1.PodTemplateSpec {
		p := parse[*v1.PodTemplate](t, resourceNamed(t, "podtemplates"), "template: "+text)
		return &p.Template
	}
	good := template("{metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}")
	expect(t, messages(ValidatePodTemplate(good, nil)))
	expect(t, messages(ValidatePodTemplate(template("{spec: {containers: [{name: c}]}}"), nil)), "spec.containers[0].image: Required value")
	expect(t, PodTemplateWarnings(template("{spec: {nodeSelector: {beta.kubernetes.io/os: linux}, containers: [{name: c, image: i}]}}"), nil, nil),
		`spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead`)
	gated := template("{spec: {containers: [{name: c, image: i, lifecycle: {stopSignal: SIGUSR1}}]}}")
	kept := gated.DeepCopy()
	DropDisabledTemplateFields(kept, gated)
	if kept.Spec.Containers[0].Lifecycle == nil {
		t.Error("a field that the old template uses was dropped")
	}
	DropDisabledTemplateFields(gated, good)
	if gated.Spec.Containers[0].Lifecycle != nil {
		t.Error("a field of a gate that is off was kept")
	}
}

func sameValue(t *testing.T, what string, got, want any) {
	t.Helper()
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
