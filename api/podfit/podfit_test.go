package podfit

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

func pod(t *testing.T, spec string) *v1.Pod {
	t.Helper()
	p := &v1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(spec, "\t", "  ")), &p.Spec); err != nil {
		t.Fatalf("%v in %s", err, spec)
	}
	return p
}

func TestTolerates(t *testing.T) {
	taint := v1.Taint{Key: "k", Value: "v", Effect: v1.TaintEffectNoSchedule}
	for text, want := range map[string]bool{
		"{key: k, value: v}":                             true,
		"{key: k, operator: Equal, value: v}":            true,
		"{key: k, operator: Equal, value: w}":            false,
		"{key: k}":                                       false,
		"{key: k, operator: Exists}":                     true,
		"{operator: Exists}":                             true,
		"{operator: Exists, effect: NoExecute}":          false,
		"{key: k, operator: Exists, effect: NoSchedule}": true,
		"{key: l, operator: Exists}":                     false,
		"{key: k, operator: Gt, value: \"1\"}":           false,
		"{key: k, operator: Odd, value: v}":              false,
	} {
		var toleration v1.Toleration
		if err := yaml.UnmarshalStrict([]byte(text), &toleration); err != nil {
			t.Fatal(err)
		}
		if got := Tolerates(&toleration, &taint); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	taints := []v1.Taint{{Key: "a", Effect: v1.TaintEffectPreferNoSchedule}, taint}
	if got := Untolerated(taints, nil); got == nil || got.Key != "a" {
		t.Errorf("of any effect: %v", got)
	}
	if got := Untolerated(taints, nil, v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute); got == nil || got.Key != "k" {
		t.Errorf("of some effects: %v", got)
	}
	if got := Untolerated(taints, []v1.Toleration{{Operator: v1.TolerationOpExists}}); got != nil {
		t.Errorf("all are tolerated: %v", got)
	}
}

func TestMatchesNode(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"zone": "a", "cores": "8", "odd": "x"}}}
	term := func(requirement string) string {
		return "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" + requirement + "]}}}"
	}
	expression := func(text string) string { return term("{matchExpressions: [" + text + "]}") }
	for spec, want := range map[string]bool{
		"{}":                                  true,
		"nodeSelector: {zone: a}":             true,
		"nodeSelector: {zone: a, gone: \"\"}": false,
		term(""):                              false,
		term("{}"):                            false,
		term("{}, {matchExpressions: [{key: zone, operator: Exists}]}"):                         true,
		expression("{key: zone, operator: In, values: [b, a]}"):                                 true,
		expression("{key: zone, operator: In, values: [b]}"):                                    false,
		expression("{key: gone, operator: NotIn, values: [b]}"):                                 true,
		expression("{key: zone, operator: NotIn, values: [a]}"):                                 false,
		expression("{key: gone, operator: DoesNotExist}"):                                       true,
		expression("{key: zone, operator: DoesNotExist}"):                                       false,
		expression("{key: cores, operator: Gt, values: [\"7\"]}"):                               true,
		expression("{key: cores, operator: Gt, values: [\"8\"]}"):                               false,
		expression("{key: cores, operator: Lt, values: [\"9\"]}"):                               true,
		expression("{key: odd, operator: Lt, values: [\"9\"]}"):                                 false,
		expression("{key: cores, operator: Lt, values: [x]}"):                                   false,
		expression("{key: zone, operator: Is, values: [a]}"):                                    false,
		expression("{key: zone, operator: Exists}, {key: gone, operator: Exists}"):              false,
		term("{matchFields: [{key: metadata.name, operator: In, values: [node]}]}"):             true,
		term("{matchFields: [{key: metadata.name, operator: NotIn, values: [node]}]}"):          false,
		term("{matchFields: [{key: metadata.uid, operator: In, values: [n]}]}"):                 false,
		"nodeSelector: {zone: b}\n" + expression("{key: zone, operator: Exists}"):               false,
		"nodeSelector: {zone: a}\n" + expression("{key: zone, operator: DoesNotExist}"):         false,
		"nodeSelector: {zone: a}\n" + expression("{key: cores, operator: In, values: [\"8\"]}"): true,
	} {
		if got := MatchesNode(&pod(t, spec).Spec, node); got != want {
			t.Errorf("%s: %v", spec, got)
		}
	}
	terms := pod(t, `affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
		{weight: 5, preference: {matchExpressions: [{key: zone, operator: Exists}]}},
		{weight: 7, preference: {matchExpressions: [{key: zone, operator: In, values: [b]}]}},
		{weight: 20, preference: {matchExpressions: [{key: cores, operator: Exists}]}}, {weight: 9, preference: {}}]}}`).
		Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if got := PreferredWeight(terms, node); got != 25 {
		t.Errorf("preferred weight %d", got)
	}
}

func TestHostPorts(t *testing.T) {
	ports := HostPorts(&pod(t, `
initContainers: [{name: i, ports: [{hostPort: 1}]}, {name: s, restartPolicy: Always, ports: [{hostPort: 2}]}]
containers: [{name: c, ports: [{containerPort: 3}, {hostPort: 4, protocol: UDP, hostIP: 10.0.0.1}]}]
`).Spec)
	if len(ports) != 2 || ports[0].Port != 2 || ports[1].Port != 4 {
		t.Errorf("ports %v", ports)
	}
	port := func(ip string, protocol v1.Protocol) HostPort { return HostPort{IP: ip, Protocol: protocol, Port: 80} }
	for _, c := range []struct {
		a, b HostPort
		want bool
	}{
		{port("", ""), port("", "TCP"), true},
		{port("", "UDP"), port("", "TCP"), false},
		{port("10.0.0.1", ""), port("10.0.0.2", ""), false},
		{port("10.0.0.1", ""), port("10.0.0.1", ""), true},
		{port("0.0.0.0", ""), port("10.0.0.1", ""), true},
		{port("fd00::1", ""), port("0.0.0.0", ""), true},
		{port("", ""), HostPort{Port: 81}, false},
	} {
		if c.a.Conflicts(c.b) != c.want || c.b.Conflicts(c.a) != c.want {
			t.Errorf("%v and %v: want %v", c.a, c.b, c.want)
		}
	}
}

func TestQOS(t *testing.T) {
	for spec, want := range map[string]v1.PodQOSClass{
		"containers: [{name: a}]": v1.PodQOSBestEffort,
		"containers: [{name: a, resources: {limits: {cpu: 1, memory: 1}, requests: {cpu: 1, memory: 1}}}]":               v1.PodQOSGuaranteed,
		"containers: [{name: a, resources: {limits: {cpu: 1}, requests: {cpu: 1}}}]":                                     v1.PodQOSBurstable,
		"containers: [{name: a, resources: {limits: {cpu: 1, memory: 1}, requests: {cpu: 1, memory: 1}}}, {name: b}]":    v1.PodQOSBurstable,
		"containers: [{name: a, resources: {requests: {example.com/x: 1}}}]":                                             v1.PodQOSBestEffort,
		"initContainers: [{name: i, resources: {requests: {cpu: 1}}}]\ncontainers: [{name: a}]":                          v1.PodQOSBurstable,
		"resources: {limits: {cpu: 1, memory: 1}, requests: {cpu: 1, memory: 1}}\ncontainers: [{name: a}]":               v1.PodQOSGuaranteed,
		"containers: [{name: a, resources: {limits: {cpu: 1, memory: 1}, requests: {cpu: 500m, memory: 1}}}, {name: b}]": v1.PodQOSBurstable,
	} {
		if got := ComputeQOS(pod(t, spec)); got != want {
			t.Errorf("%s: %s", spec, got)
		}
	}
	recorded := &v1.Pod{Status: v1.PodStatus{QOSClass: v1.PodQOSGuaranteed}}
	if got := QOS(recorded); got != v1.PodQOSGuaranteed {
		t.Errorf("recorded: %s", got)
	}
}

func TestRequests(t *testing.T) {
	p := pod(t, `
overhead: {cpu: 10m}
initContainers:
- {name: big, resources: {requests: {cpu: 3}}}
- {name: side, restartPolicy: Always, resources: {requests: {cpu: 100m, memory: 10Mi}}}
containers:
- {name: a, resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 2}}}
- {name: b, resources: {requests: {example.com/x: 2}}}
`)
	got := Requests(p)
	for name, want := range map[v1.ResourceName]string{"cpu": "3010m", "memory": "1034Mi", "example.com/x": "2"} {
		if q := got[name]; q.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s: %s, want %s", name, q.String(), want)
		}
	}
	if limits := Limits(p); limits.Cpu().String() != "2010m" {
		t.Errorf("limits %v", limits)
	}
	cpu, memory := NonzeroRequests(pod(t, "containers: [{name: a}, {name: b, resources: {requests: {cpu: 1}}}]"))
	if cpu != 1000+DefaultMilliCPU || memory != 2*DefaultMemory {
		t.Errorf("assumed %d, %d", cpu, memory)
	}
	// A container that is being resized counts with the larger of both.
	p = pod(t, "containers: [{name: a, resources: {requests: {cpu: 1}}}]")
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "a",
		AllocatedResources: v1.ResourceList{"cpu": resource.MustParse("2")},
		Resources:          &v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("2")}}}}
	if got, spec := Requests(p), SpecRequests(p); got.Cpu().String() != "2" || spec.Cpu().String() != "1" {
		t.Errorf("resized: %v, by spec %v", got, spec)
	}
}

func TestResourceNames(t *testing.T) {
	for name, want := range map[v1.ResourceName][5]bool{ // native, huge pages, extended, attachable, scalar
		"cpu":                        {true, false, false, false, false},
		"hugepages-2Mi":              {true, true, false, false, true},
		"example.com/gpu":            {false, false, true, false, true},
		"requests.example.com/gpu":   {false, false, false, false, false},
		"kubernetes.io/batch":        {true, false, false, false, true},
		"attachable-volumes-csi-a.b": {true, false, false, true, true},
		"example.com/a b":            {false, false, false, false, false},
	} {
		got := [5]bool{IsNative(name), IsHugePages(name), IsExtended(name), IsAttachable(name), IsScalar(name)}
		if got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if !MayOvercommit("cpu") || MayOvercommit("hugepages-1Gi") || MayOvercommit("example.com/gpu") {
		t.Error("what may be overcommitted")
	}
}

func TestShouldRestart(t *testing.T) {
	always, onFailure, never := v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever
	rules := []v1.ContainerRestartRule{
		{Action: v1.ContainerRestartRuleActionRestart, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}},
		{Action: v1.ContainerRestartRuleActionRestartAllContainers, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpNotIn, Values: []int32{0, 1}}},
	}
	for _, c := range []struct {
		pod       v1.RestartPolicy
		container *v1.ContainerRestartPolicy
		code      int32
		want      bool
	}{
		{v1.RestartPolicyAlways, nil, 0, true},
		{"", nil, 0, true},
		{v1.RestartPolicyOnFailure, nil, 0, false},
		{v1.RestartPolicyOnFailure, nil, 1, true},
		{v1.RestartPolicyNever, nil, 1, false},
		{v1.RestartPolicyNever, &always, 0, true},
		{v1.RestartPolicyAlways, &onFailure, 0, false},
		{v1.RestartPolicyAlways, &never, 1, false},
		{v1.RestartPolicyAlways, &never, 42, true},
		{v1.RestartPolicyAlways, &never, 3, true},
	} {
		container := &v1.Container{RestartPolicy: c.container}
		if c.container != nil {
			container.RestartPolicyRules = rules
		}
		if got := ShouldRestart(container, &v1.PodSpec{RestartPolicy: c.pod}, c.code); got != c.want {
			t.Errorf("pod %s, container %s, exit code %d: %v", c.pod, ptr.Deref(c.container, "-"), c.code, got)
		}
	}
	all := &v1.PodSpec{Containers: []v1.Container{{}, {RestartPolicyRules: rules}}}
	if !MayRestartAll(all) || MayRestartAll(&v1.PodSpec{Containers: []v1.Container{{RestartPolicyRules: rules[:1]}}}) {
		t.Error("what may restart all containers")
	}
	if !Restartable(&v1.Container{RestartPolicy: &always}) || Restartable(&v1.Container{}) {
		t.Error("what is a sidecar")
	}
}
