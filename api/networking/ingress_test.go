package networking

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1000, 0)}
}

var now = time.Unix(1002, 0)

func backend(name string) networkingv1.IngressBackend {
	return networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: name, Port: networkingv1.ServiceBackendPort{Number: 80}}}
}

func rule(host, path string, t networkingv1.PathType) networkingv1.IngressRule {
	return networkingv1.IngressRule{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
		Paths: []networkingv1.HTTPIngressPath{{Path: path, PathType: &t, Backend: backend("web")}}}}}
}

func ingress(spec networkingv1.IngressSpec) *networkingv1.Ingress {
	return &networkingv1.Ingress{ObjectMeta: named("web"), Spec: spec}
}

func TestIngress(t *testing.T) {
	r := ingresses()
	fine := ingress(networkingv1.IngressSpec{IngressClassName: ptr.To("nginx"), TLS: []networkingv1.IngressTLS{{Hosts: []string{"*.example.com"}, SecretName: "s"}},
		Rules: []networkingv1.IngressRule{rule("a.example.com", "/", "Prefix"), rule("b", "/x", "Exact"), rule("", "", "ImplementationSpecific"), rule("c", "/", "Prefix"), rule("d", "/", "Prefix")}})
	apitest.Want(t, apitest.Create(r, fine))
	fine.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "2.2.2.2"}, {Hostname: "lb"}, {IP: "1.1.1.1"}}
	apitest.Row(t, r.Row(fine, now), "web", "nginx", "a.example.com,b,c + 2 more...", "1.1.1.1,2.2.2.2,lb", "80, 443", "2s")

	apitest.Want(t, apitest.Create(r, ingress(networkingv1.IngressSpec{})), "spec: Invalid value: null: either `defaultBackend` or `rules` must be specified")
	both := backend("A_b")
	both.Service.Port.Name = "http"
	apitest.Want(t, apitest.Create(r, ingress(networkingv1.IngressSpec{DefaultBackend: &both})),
		`spec.defaultBackend.service.name: Invalid value: "A_b"`, `spec.defaultBackend: Invalid value: "": cannot set both port name & port number`)
	apitest.Want(t, apitest.Create(r, ingress(networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{
		rule("1.2.3.4", "x//../y/..", "Prefix"), rule("*", "/", "Odd")}})),
		`spec.rules[0].host: Invalid value: "1.2.3.4": must be a DNS name, not an IP address`,
		`spec.rules[0].http.paths[0].path: Invalid value: "x//../y/..": must be an absolute path`,
		`spec.rules[0].http.paths[0].path: Invalid value: "x//../y/..": must not contain '//'`,
		`spec.rules[0].http.paths[0].path: Invalid value: "x//../y/..": must not contain '/../'`,
		`spec.rules[0].http.paths[0].path: Invalid value: "x//../y/..": cannot end with '/..'`,
		`spec.rules[1].host: Invalid value: "*"`,
		`spec.rules[1].http.paths[0].pathType: Unsupported value: "Odd": supported values: "Exact", "ImplementationSpecific", "Prefix"`)
	annotated := fine.DeepCopy()
	annotated.Annotations = map[string]string{classAnnotation: "other"}
	apitest.Want(t, apitest.Create(r, annotated), "annotations.kubernetes.io/ingress.class: Invalid value: \"other\": must match `ingressClassName` when both are specified")

	// What is there already may stay.
	old := ingress(networkingv1.IngressSpec{TLS: []networkingv1.IngressTLS{{SecretName: "Bad_"}}, Rules: []networkingv1.IngressRule{rule("*.a.b", "x", "Exact")}})
	apitest.Want(t, apitest.Update(r, old.DeepCopy(), old))
	next := old.DeepCopy()
	next.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "x"}, {Hostname: "1.2.3.4"}}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", next, old), `status.loadBalancer.ingress[0].ip: Invalid value: "x"`,
		`status.loadBalancer.ingress[1].hostname: Invalid value: "1.2.3.4": must be a DNS name, not an IP address`)
}

func TestIngressClass(t *testing.T) {
	r := ingressClasses()
	c := &networkingv1.IngressClass{ObjectMeta: named("nginx"), Spec: networkingv1.IngressClassSpec{Controller: "example.com/c",
		Parameters: &networkingv1.IngressClassParametersReference{APIGroup: ptr.To("x.y"), Kind: "K", Name: "n"}}}
	c.Annotations = map[string]string{"ingressclass.kubernetes.io/is-default-class": "true"}
	apitest.Want(t, apitest.Create(r, c))
	apitest.Row(t, r.Row(c, now), "nginx (default)", "example.com/c", "K.x.y/n", "2s")
	next := c.DeepCopy()
	next.Spec.Controller = "other"
	next.Spec.Parameters.Scope, next.Spec.Parameters.Kind = ptr.To("Namespace"), ""
	apitest.Want(t, apitest.Update(r, next, c), `spec.controller: Invalid value: "other": field is immutable`, `spec.controller: Invalid value: "other": must be a domain-prefixed path`,
		"spec.parameters.kind: Required value", "spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'")
}

func TestNetworkPolicy(t *testing.T) {
	r := networkPolicies()
	peer := func(cidr string, except ...string) []networkingv1.NetworkPolicyPeer {
		return []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}}
	}
	n := &networkingv1.NetworkPolicy{ObjectMeta: named("p"), Spec: networkingv1.NetworkPolicySpec{
		Egress: []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(80))}}, To: peer("10.0.0.0/8", "10.1.0.0/16")}}}}
	apitest.Want(t, apitest.Create(r, n))
	if len(n.Spec.PolicyTypes) != 2 || *n.Spec.Egress[0].Ports[0].Protocol != corev1.ProtocolTCP {
		t.Errorf("%+v", n.Spec)
	}
	apitest.Row(t, r.Row(n, now), "p", "<none>", "2s")

	bad := n.DeepCopy()
	bad.Spec.PolicyTypes = []networkingv1.PolicyType{"Sideways"}
	bad.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: ptr.To(corev1.Protocol("ICMP")), EndPort: ptr.To[int32](1)},
			{Port: ptr.To(intstr.FromInt32(90)), EndPort: ptr.To[int32](80)}, {Port: ptr.To(intstr.FromString("http")), EndPort: ptr.To[int32](80)}},
		From: append(peer("10.0.0.0/8", "11.0.0.0/8", "x"), networkingv1.NetworkPolicyPeer{}, networkingv1.NetworkPolicyPeer{
			PodSelector: &metav1.LabelSelector{}, IPBlock: &networkingv1.IPBlock{}}),
	}}
	apitest.Want(t, apitest.Create(r, bad),
		`spec.ingress[0].ports[0].protocol: Unsupported value: "ICMP": supported values: "TCP", "UDP", "SCTP"`,
		"spec.ingress[0].ports[0].endPort: Invalid value: 1: may not be specified when `port` is not specified",
		"spec.ingress[0].ports[1].endPort: Invalid value: 80: must be greater than or equal to `port`",
		"spec.ingress[0].ports[2].endPort: Invalid value: 80: may not be specified when `port` is non-numeric",
		"spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"11.0.0.0/8\": must be a strict subset of `cidr`",
		`spec.ingress[0].from[0].ipBlock.except[1]: Invalid value: "x"`,
		"spec.ingress[0].from[1]: Required value: must specify a peer",
		"spec.ingress[0].from[2].ipBlock.cidr: Required value", "spec.ingress[0].from[2]: Forbidden: may not specify both ipBlock and another peer",
		`spec.policyTypes[0]: Unsupported value: "Sideways": supported values: "Ingress", "Egress"`)

	old := n.DeepCopy()
	old.Spec.Egress[0].To = peer("010.0.0.0/8")
	apitest.Want(t, apitest.Update(r, old.DeepCopy(), old))
	apitest.Want(t, apitest.Update(r, old.DeepCopy(), n), `spec.egress[0].to[0].ipBlock.cidr: Invalid value: "010.0.0.0/8"`)
}
