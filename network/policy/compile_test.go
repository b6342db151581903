package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

func policyOf(t testing.TB, text string) *networkingv1.NetworkPolicy {
	t.Helper()
	p := &networkingv1.NetworkPolicy{}
	must(t, yaml.UnmarshalStrict([]byte("metadata: {namespace: x, name: p}\nspec: "+text), &p))
	return p
}

// TestRead says what a policy comes to for a pod, as text.
func TestRead(t *testing.T) {
	local := &pod{name: name{"x", "own"}, labels: labelsOf(map[string]string{"app": "a"}), ports: []namedPort{{"web", tcp, 8080}, {"web", tcp, 8081}, {"web", udp, 53}}}
	for what, test := range map[string]struct{ policy, in, out, err string }{
		"no types, no rules":        {"{podSelector: {}}", "drop", "", ""},
		"no types, an egress rule":  {"{podSelector: {}, egress: [{}]}", "drop", "", ""},
		"no types, narrow egress":   {"{podSelector: {}, egress: [{ports: [{port: 53, protocol: UDP}]}]}", "drop", "||17:53-53,", ""},
		"egress alone":              {"{podSelector: {}, policyTypes: [Egress]}", "", "drop", ""},
		"rules of an absent type":   {"{podSelector: {}, policyTypes: [Egress], ingress: [{ports: [{port: 1}]}]}", "", "drop", ""},
		"others are selected":       {"{podSelector: {matchLabels: {app: b}}}", "", "", ""},
		"everybody":                 {"{podSelector: {matchLabels: {app: a}}, ingress: [{}, {ports: [{port: 1}]}]}", "", "", ""},
		"an empty list is everyone": {"{podSelector: {}, ingress: [{from: [], ports: []}]}", "", "", ""},
		"all pods of its namespace": {"{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}", "=x/*||", "", ""},
		"all pods of all":           {"{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}", "*/*||", "", ""},
		"both selectors are one":    {"{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: m}}, podSelector: {matchLabels: {b: c, a: b}}}]}]}", "team=m/a=b,b=c||", "", ""},
		"two peers are two":         {"{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: m}}}, {podSelector: {matchLabels: {a: b}}}]}]}", "=x/a=b|| team=m/*||", "", ""},
		"a peer that comes twice":   {"{podSelector: {}, ingress: [{from: [{podSelector: {}}, {podSelector: {}}]}, {from: [{podSelector: {}}]}]}", "=x/*||", "", ""},
		"ports join": {"{podSelector: {}, ingress: [{ports: [{port: 80}, {port: 81, endPort: 90}, {port: 85}, {protocol: SCTP}]}]}",
			"||6:80-90,132:0-65535,", "", ""},
		"a name is the pod's, by protocol": {"{podSelector: {}, ingress: [{ports: [{port: web}, {port: none}]}]}", "||6:8080-8081,", "", ""},
		"a name that the pod has not":      {"{podSelector: {}, ingress: [{ports: [{port: none}]}]}", "drop", "", ""},
		"a name at peers":                  {"{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}], ports: [{port: web}, {port: 1}]}]}", "", "=x/*\x06:web|| =x/*||6:1-1,", ""},
		"a name anywhere":                  {"{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: dns, protocol: UDP}]}]}", "", "*/*\x11:dns||", ""},
		"blocks join": {"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24}}, {ipBlock: {cidr: 10.0.1.0/24}}, {ipBlock: {cidr: fd00::/126}}]}]}",
			"|10.0.0.0-10.0.1.255,fd00::-fd00::3,|", "", ""},
		"exceptions": {"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [0.0.0.0/8, 255.255.255.255/32, 10.0.0.0/8, 10.1.0.0/16]}}]}]}",
			"|1.0.0.0-9.255.255.255,11.0.0.0-255.255.255.254,|", "", ""},
		"an exception that another peer allows": {"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/30, except: [10.0.0.2/32]}}, {ipBlock: {cidr: 10.0.0.2/32}}]}]}",
			"|10.0.0.0-10.0.0.3,|", "", ""},
		"nothing is left of a block":  {"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.0/25, 10.0.0.128/25]}}]}]}", "drop", "", ""},
		"IPv4 in IPv6":                {"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: '::ffff:10.0.0.0/120'}}]}]}", "|10.0.0.0-10.0.0.255,|", "", ""},
		"a selector of the future":    {"{podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: Near}]}}, {podSelector: {}}]}]}", "=x/*||", "", "rule 0 of network policy x/p: podSelector"},
		"a peer of the future":        {"{podSelector: {}, ingress: [{from: [{}]}]}", "drop", "", "neither podSelector"},
		"a protocol of the future":    {"{podSelector: {}, ingress: [{ports: [{protocol: QUIC}, {port: 1}]}]}", "||6:1-1,", "", `protocol "QUIC"`},
		"a block that can't be read":  {"{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10]}}]}]}", "drop", "", "ipBlock"},
		"pods that can't be selected": {"{podSelector: {matchExpressions: [{key: a, operator: Near}]}}", "", "", "podSelector of network policy x/p"},
	} {
		t.Run(what, func(t *testing.T) {
			r, err := read(policyOf(t, test.policy))
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			var policies []*rules
			if r != nil {
				policies = append(policies, r)
			}
			got := decide(local, policies)
			for d, want := range [directions]string{ingress: test.in, egress: test.out} {
				if text := describe(got[d]); text != want {
					t.Errorf("%s: %q, want %q", mapOf[d], text, want)
				}
			}
		})
	}
}

func describe(p *profile) string {
	if p == nil {
		return ""
	}
	var lines []string
	for _, l := range p.lines {
		lines = append(lines, l.key()[1:])
	}
	if len(lines) == 0 {
		return "drop"
	}
	return strings.Join(lines, " ")
}

// TestSpans compares ranges with what they were made of, around every edge.
func TestSpans(t *testing.T) {
	prefixes := func(list string) (out []netip.Prefix) {
		for _, s := range strings.Fields(list) {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	for _, test := range []struct{ cidr, except string }{
		{"10.0.0.0/8", ""}, {"10.0.0.0/8", "10.0.0.0/9"}, {"10.0.0.0/8", "10.128.0.0/9 10.0.0.0/16"}, {"10.0.0.0/8", "0.0.0.0/0"},
		{"0.0.0.0/0", "255.255.255.255/32 0.0.0.0/32"}, {"::/0", "ffff::/16 ::/1"}, {"fd00::/64", "fd00::1/128 fd00::/127"}, {"192.0.2.1/32", "192.0.2.2/32"},
	} {
		cidr, except := netip.MustParsePrefix(test.cidr), prefixes(test.except)
		b := blocksOf(without(cidr, except))
		for _, edge := range append(except, cidr) {
			s := spanOf(edge)
			for _, a := range []netip.Addr{s.from.Prev(), s.from, s.from.Next(), s.to.Prev(), s.to, s.to.Next()} {
				if !a.IsValid() {
					continue
				}
				want := cidr.Contains(a)
				for _, e := range except {
					want = want && !e.Contains(a)
				}
				if got := b.contains(a); got != want {
					t.Errorf("%s without %s: contains %s is %t", test.cidr, test.except, a, got)
				}
			}
		}
	}
}

func TestPodOf(t *testing.T) {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID, p.Labels = "x", "a", "mirror", map[string]string{"b": "2", "a": "1"}
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "static"}
	p.Spec.NodeName = "n"
	p.Spec.InitContainers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "side", ContainerPort: 1}}}}
	p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 2}, {Name: "d", ContainerPort: 3, Protocol: "UDP"}}}}
	p.Status.PodIP, p.Status.PodIPs = "10.0.0.1", []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
	o := podOf(p)
	if got, want := fmt.Sprintf("%v %s %s %v %v %v", o.name, o.uid, o.node, o.labels, o.addrs, o.ports), "{x a} static n [{a 1} {b 2}] [10.0.0.1 fd00::1] [{side 6 1} {d 17 3}]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	p.Status.PodIPs = nil
	if got := podOf(p).addrs; len(got) != 1 {
		t.Errorf("podIP alone: %v", got)
	}
	for what, change := range map[string]func(*corev1.Pod){
		"of the host's network": func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"succeeded":             func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"failed":                func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
	} {
		o := p.DeepCopy()
		if change(o); podOf(o) != nil {
			t.Errorf("a pod that is %s has addresses of its own", what)
		}
	}
}
