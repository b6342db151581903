package core

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const goodPod = `
metadata: {name: p, namespace: n}
spec:
  containers: [{name: c, image: a}]
`

func TestPodCreation(t *testing.T) {
	r := resourceNamed(t, "pods")
	p := parse[*v1.Pod](t, r, `
metadata: {name: p, namespace: n, labels: {app: x}}
spec:
  schedulingGates: [{name: example.com/g}]
  containers: [{name: c, image: a, resources: {limits: {cpu: 1, memory: 1Gi}}, lifecycle: {stopSignal: SIGUSR1}}]
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: DoNotSchedule, labelSelector: {}, matchLabelKeys: [app]}]
status: {phase: Running, podIP: 10.0.0.1}
`)
	expect(t, created(t, r, p))
	if p.Status.Phase != v1.PodPending || p.Status.PodIP != "" {
		t.Errorf("a client's status was kept: %+v", p.Status)
	}
	if p.Status.QOSClass != v1.PodQOSGuaranteed {
		t.Errorf("QoS class %q", p.Status.QOSClass)
	}
	if c := p.Status.Conditions; len(c) != 1 || c[0].Reason != v1.PodReasonSchedulingGated {
		t.Errorf("conditions %v", c)
	}
	if p.Spec.Containers[0].Lifecycle != nil {
		t.Error("a field of a gate that is off was kept")
	}
	if e := p.Spec.TopologySpreadConstraints[0].LabelSelector.MatchExpressions; len(e) != 1 || e[0].Values[0] != "x" {
		t.Errorf("matchLabelKeys were not merged: %v", e)
	}
}

func TestPodUpdate(t *testing.T) {
	r := resourceNamed(t, "pods")
	const why = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n…"
	for name, c := range map[string]struct {
		old    func(*v1.Pod)
		change func(*v1.Pod)
		want   []string
	}{
		"image":             {change: func(p *v1.Pod) { p.Spec.Containers[0].Image = "b" }},
		"empty image":       {change: func(p *v1.Pod) { p.Spec.Containers[0].Image = "" }, want: []string{"spec.containers[0].image: Required value"}},
		"deadline set":      {change: func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) }},
		"added toleration":  {change: func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Key: "k", Operator: "Exists"}} }},
		"labels":            {change: func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }},
		"node name":         {change: func(p *v1.Pod) { p.Spec.NodeName = "x" }, want: []string{why}},
		"command":           {change: func(p *v1.Pod) { p.Spec.Containers[0].Command = []string{"x"} }, want: []string{why}},
		"added container":   {change: func(p *v1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) }, want: []string{"spec.containers[1].name: Duplicate value: \"c\"", "spec.containers: Forbidden: pod updates may not add or remove containers"}},
		"status is ignored": {change: func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }},
		"deadline later": {
			old:    func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) },
			change: func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](6) },
			want:   []string{"spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"}},
		"changed toleration": {
			old:    func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Key: "k", Operator: "Exists"}} },
			change: func(p *v1.Pod) { p.Spec.Tolerations[0].Key = "l" },
			want:   []string{"spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"}},
		"gate removed": {
			old:    func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "a/b"}} },
			change: func(p *v1.Pod) { p.Spec.SchedulingGates = nil }},
		"gate added": {
			change: func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "a/b"}} },
			want:   []string{"spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'a/b'"}},
		"node selector narrows while gated": {
			old:    func(p *v1.Pod) { p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "a/b"}} },
			change: func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"k": "v"} }},
		"node selector is not gated": {
			change: func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"k": "v"} }, want: []string{why}},
		"grace period was negative": {
			old:    func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](-1) },
			change: func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) }},
	} {
		t.Run(name, func(t *testing.T) {
			old := parse[*v1.Pod](t, r, goodPod)
			if c.old != nil {
				c.old(old)
			}
			p := old.DeepCopy()
			c.change(p)
			expect(t, updated(t, r.Strategy, p, old), c.want...)
		})
	}
}

func TestPodStatusUpdate(t *testing.T) {
	r := resourceNamed(t, "pods")
	status := subresource(t, r, "status")
	ended := func(code int32) []v1.ContainerStatus {
		return []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code}}}}
	}
	running := []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	for name, c := range map[string]struct {
		policy v1.RestartPolicy
		before []v1.ContainerStatus
		want   []string
	}{
		"always restarts":            {v1.RestartPolicyAlways, ended(0), nil},
		"never restarts":             {v1.RestartPolicyNever, ended(1), []string{"status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"}},
		"failed and may restart":     {v1.RestartPolicyOnFailure, ended(1), nil},
		"succeeded, must not return": {v1.RestartPolicyOnFailure, ended(0), []string{"status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"}},
	} {
		t.Run(name, func(t *testing.T) {
			old := parse[*v1.Pod](t, r, goodPod)
			old.Spec.RestartPolicy, old.Status.ContainerStatuses, old.Status.QOSClass = c.policy, c.before, v1.PodQOSBestEffort
			old.OwnerReferences = []metav1.OwnerReference{{Name: "o"}}
			p := old.DeepCopy()
			p.Status.ContainerStatuses, p.Status.QOSClass, p.OwnerReferences = running, "", nil
			p.Spec.NodeName = "ignored"
			expect(t, updated(t, status, p, old), c.want...)
			if p.Spec.NodeName != "" || len(p.OwnerReferences) != 1 || p.Status.QOSClass != v1.PodQOSBestEffort {
				t.Error("the status endpoint changed more than status")
			}
		})
	}
}

func TestPodResize(t *testing.T) {
	r := resourceNamed(t, "pods")
	resize := subresource(t, r, "resize")
	old := parse[*v1.Pod](t, r, `
metadata: {name: p, namespace: n}
spec:
  containers: [{name: c, image: a, resources: {requests: {cpu: 100m, memory: 1Gi}}}]
`)
	expect(t, created(t, r, old))
	change := func(f func(*v1.Pod)) *v1.Pod {
		p := old.DeepCopy()
		f(p)
		return p
	}
	cpu := parse[*v1.Pod](t, r, `
metadata: {name: p, namespace: n}
spec:
  containers: [{name: c, image: b, resources: {requests: {cpu: 200m, memory: 1Gi}}}]
`)
	expect(t, updated(t, resize, cpu, old))
	if cpu.Spec.Containers[0].Image != "a" || cpu.Spec.Containers[0].Resources.Requests.Cpu().String() != "200m" {
		t.Errorf("a resize makes %+v", cpu.Spec.Containers[0])
	}
	expect(t, updated(t, resize, change(func(p *v1.Pod) { delete(p.Spec.Containers[0].Resources.Requests, "cpu") }), old),
		"spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed")
	expect(t, updated(t, resize, change(func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests.DeepCopy()
	}), old), "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing")
	expect(t, updated(t, resize, change(func(p *v1.Pod) { p.Spec.Containers[0].Name = "d" }), old),
		"spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize")
}

func TestEphemeralContainers(t *testing.T) {
	r := resourceNamed(t, "pods")
	s := subresource(t, r, "ephemeralcontainers")
	old := parse[*v1.Pod](t, r, goodPod)
	p := parse[*v1.Pod](t, r, `
metadata: {name: p, namespace: n}
spec:
  containers: [{name: c, image: ignored}]
  ephemeralContainers: [{name: d, image: busybox, targetContainerName: c, ports: [{containerPort: 1}]}, {name: c, image: x, targetContainerName: z}]
`)
	expect(t, updated(t, s, p, old),
		"spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
		`spec.ephemeralContainers[1].name: Duplicate value: "c"`,
		`spec.ephemeralContainers[1].targetContainerName: Not found: "z"`)
	if p.Spec.Containers[0].Image != "a" {
		t.Error("the endpoint changed a container")
	}
	with := old.DeepCopy()
	with.Spec.EphemeralContainers = p.Spec.EphemeralContainers[:1]
	with.Spec.EphemeralContainers[0].Ports = nil
	expect(t, updated(t, s, old.DeepCopy(), with), "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"d\" may not be removed\n")
}

func TestPodGrace(t *testing.T) {
	for name, c := range map[string]struct {
		node  string
		phase v1.PodPhase
		own   *int64
		asked *int64
		want  int64
	}{
		"scheduled":           {node: "n", own: ptr.To[int64](30), want: 30},
		"asked for less":      {node: "n", own: ptr.To[int64](30), asked: ptr.To[int64](5), want: 5},
		"asked for none":      {node: "n", own: ptr.To[int64](30), asked: ptr.To[int64](0), want: 0},
		"not scheduled":       {own: ptr.To[int64](30), want: 0},
		"failed":              {node: "n", phase: v1.PodFailed, own: ptr.To[int64](30), want: 0},
		"succeeded":           {node: "n", phase: v1.PodSucceeded, own: ptr.To[int64](30), want: 0},
		"negative means soon": {node: "n", own: ptr.To[int64](-7), want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1.Pod{Spec: v1.PodSpec{NodeName: c.node, TerminationGracePeriodSeconds: c.own}, Status: v1.PodStatus{Phase: c.phase}}
			o := &metav1.DeleteOptions{GracePeriodSeconds: c.asked}
			if !podGrace(p, o) || *o.GracePeriodSeconds != c.want {
				t.Errorf("grace period %d, want %d", *o.GracePeriodSeconds, c.want)
			}
		})
	}
}

func TestPodRow(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 10, 0, 0, time.UTC)
	r := resourceNamed(t, "pods")
	for name, c := range map[string]struct {
		status string
		want   []any
	}{
		"pending":  {`phase: Pending`, []any{"p", "0/2", "Pending", "0", "10m", "<none>", "node", "<none>", "0/1"}},
		"gated":    {`{phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: SchedulingGated}]}`, []any{"p", "0/2", "SchedulingGated", "0", "10m", "<none>", "node", "<none>", "0/1"}},
		"creating": {`{phase: Pending, containerStatuses: [{name: c, state: {waiting: {reason: ContainerCreating}}}]}`, []any{"p", "0/2", "ContainerCreating", "0", "10m", "<none>", "node", "<none>", "0/1"}},
		"first init container": {`{phase: Pending, initContainerStatuses: [{name: i, state: {running: {}}}, {name: s, state: {waiting: {reason: PodInitializing}}}]}`,
			[]any{"p", "0/2", "Init:0/2", "0", "10m", "<none>", "node", "<none>", "0/1"}},
		"init failed": {`{phase: Pending, initContainerStatuses: [{name: i, restartCount: 3, state: {terminated: {exitCode: 2, reason: Error}}, lastState: {terminated: {finishedAt: "2026-01-01T00:09:00Z"}}}]}`,
			[]any{"p", "0/2", "Init:Error", "3 (60s ago)", "10m", "<none>", "node", "<none>", "0/1"}},
		"init killed": {`{phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 137, signal: 9}}}]}`,
			[]any{"p", "0/2", "Init:Signal:9", "0", "10m", "<none>", "node", "<none>", "0/1"}},
		"running with sidecar": {`{phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}, {type: g/g, status: "True"}],
  initContainerStatuses: [{name: i, state: {terminated: {exitCode: 0}}, restartCount: 7}, {name: s, started: true, ready: true, restartCount: 1, state: {running: {}}}],
  containerStatuses: [{name: c, ready: true, state: {running: {}}}]}`,
			[]any{"p", "2/2", "Running", "1", "10m", "10.0.0.1", "node", "<none>", "1/1"}},
		"crash loop": {`{phase: Running, containerStatuses: [{name: c, restartCount: 4, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {finishedAt: "2026-01-01T00:07:00Z"}}}]}`,
			[]any{"p", "0/2", "CrashLoopBackOff", "4 (3m ago)", "10m", "<none>", "node", "<none>", "0/1"}},
		"completed": {`{phase: Succeeded, containerStatuses: [{name: c, state: {terminated: {exitCode: 0, reason: Completed}}}]}`,
			[]any{"p", "0/2", "Completed", "0", "10m", "<none>", "node", "<none>", "0/1"}},
		"one failed, last completed": {`{phase: Failed, containerStatuses: [{name: a, state: {terminated: {exitCode: 0, reason: Completed}}}, {name: c, state: {terminated: {exitCode: 1, reason: Error}}}]}`,
			[]any{"p", "0/2", "Error", "0", "10m", "<none>", "node", "<none>", "0/1"}},
		"evicted": {`{phase: Failed, reason: Evicted}`, []any{"p", "0/2", "Evicted", "0", "10m", "<none>", "node", "<none>", "0/1"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := parse[*v1.Pod](t, r, `
metadata: {name: p, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  nodeName: node
  readinessGates: [{conditionType: g/g}]
  initContainers: [{name: i, image: a}, {name: s, image: a, restartPolicy: Always}]
  containers: [{name: c, image: a}]
status: `+indentFlow(c.status))
			got := r.Row(p, now)
			if len(got) != len(c.want) {
				t.Fatalf("got %v", got)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("%s: %q, want %q", r.Columns[i].Name, got[i], c.want[i])
				}
			}
		})
	}
	p := parse[*v1.Pod](t, r, goodPod)
	p.DeletionTimestamp = &metav1.Time{Time: now}
	if got := r.Row(p, now)[2]; got != "Terminating" {
		t.Errorf("a pod on its way out shows %q", got)
	}
	p.Status.Reason = "NodeLost"
	if got := r.Row(p, now)[2]; got != "Unknown" {
		t.Errorf("a pod of a lost node shows %q", got)
	}
}

// indentFlow makes a bare "key: value" a flow mapping.
func indentFlow(s string) string {
	if s[0] != '{' {
		return "{" + s + "}"
	}
	return s
}

func TestPodFields(t *testing.T) {
	r := resourceNamed(t, "pods")
	p := parse[*v1.Pod](t, r, goodPod)
	p.Spec.NodeName, p.Status.PodIPs = "n1", []v1.PodIP{{IP: "10.0.0.9"}}
	set := r.Fields(p)
	for label, want := range map[string]string{
		"spec.nodeName": "n1", "spec.restartPolicy": "Always", "spec.hostNetwork": "false", "status.podIP": "10.0.0.9",
		"spec.schedulerName": "default-scheduler", "spec.serviceAccountName": "", "status.nominatedNodeName": "",
	} {
		if set[label] != want {
			t.Errorf("%s is %q, want %q", label, set[label], want)
		}
	}
}
