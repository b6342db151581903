package pods

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/probes"
)

// results answers for probes by "container id/kind".
type results map[string]probes.Result

func (r results) Result(id string, k probes.Kind) probes.Result {
	return r[fmt.Sprintf("%s/%s", id, k)]
}

// state builds a runtime's view: "sandbox" or "nosandbox" or "deadsandbox", then
// containers as name:running, name:exit0, name:created …; ids are names.
func state(pod *corev1.Pod, words string) *cri.Pod {
	p := &cri.Pod{UID: pod.UID}
	at := time.Unix(1000, 0)
	for i, w := range strings.Fields(words) {
		name, st, ok := strings.Cut(w, ":")
		if !ok {
			if w != "nosandbox" {
				p.Sandboxes = append(p.Sandboxes, &cri.Sandbox{ID: "sb", Ready: w == "sandbox", IPs: []string{"10.0.0.1"}, CreatedAt: at})
			}
			continue
		}
		c := &cri.Container{ID: name, Name: name, SandboxID: "sb", CreatedAt: at.Add(time.Duration(i) * time.Second), StartedAt: at, FinishedAt: at}
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for j := range list {
				if list[j].Name == name {
					c.Hash = cri.HashContainer(&list[j])
				}
			}
		}
		switch {
		case st == "running":
			c.State = cri.StateRunning
		case st == "created":
			c.State = cri.StateCreated
		case strings.HasPrefix(st, "exit"):
			c.State = cri.StateExited
			fmt.Sscanf(st, "exit%d", &c.ExitCode)
		}
		p.Containers = append([]*cri.Container{c}, p.Containers...)
	}
	return p
}

func (a actions) String() string {
	var out []string
	if a.KillPod {
		out = append(out, "killpod")
	}
	if a.CreateSandbox {
		out = append(out, fmt.Sprintf("sandbox%d", a.Attempt))
	}
	for _, k := range a.Kill {
		out = append(out, "kill:"+k.ID)
	}
	for kind, list := range map[string][]int{"init": a.InitToStart} {
		for _, i := range list {
			out = append(out, fmt.Sprintf("%s%d", kind, i))
		}
	}
	for _, i := range a.ToStart {
		out = append(out, fmt.Sprintf("c%d", i))
	}
	for _, i := range a.EphemeralToStart {
		out = append(out, fmt.Sprintf("eph%d", i))
	}
	return strings.Join(out, " ")
}

func TestComputeActions(t *testing.T) {
	two := func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{newContainer("a"), newContainer("b")} }
	init := func(names ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			two(p)
			for _, n := range names {
				c := newContainer(strings.TrimSuffix(n, "+"))
				if strings.HasSuffix(n, "+") {
					c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
				}
				p.Spec.InitContainers = append(p.Spec.InitContainers, c)
			}
		}
	}
	with := func(fs ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, f := range fs {
				f(p)
			}
		}
	}
	never := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	onFailure := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }
	for _, tc := range []struct {
		name, state string
		pod         func(*corev1.Pod)
		probes      results
		want        string
	}{
		{"new", "nosandbox", two, nil, "killpod sandbox0 c0 c1"},
		{"sandbox only", "sandbox", two, nil, "c0 c1"},
		{"all run", "sandbox a:running b:running", two, nil, ""},
		{"one ended", "sandbox a:exit0 b:running", two, nil, "c0"},
		{"one ended, on failure", "sandbox a:exit0 b:running", with(two, onFailure), nil, ""},
		{"one failed, on failure", "sandbox a:exit1 b:running", with(two, onFailure), nil, "c0"},
		{"all ended, never", "sandbox a:exit0 b:exit1", with(two, never), nil, "killpod"},
		{"all succeeded, on failure", "sandbox a:exit0 b:exit0", with(two, onFailure), nil, "killpod"},
		{"created only", "sandbox a:created b:running", two, nil, "c0"},
		{"sandbox died", "deadsandbox a:exit0 b:exit0", two, nil, "killpod sandbox1 c0 c1"},
		{"sandbox died, never", "deadsandbox a:exit0 b:exit0", with(two, never), nil, "killpod"},
		{"sandbox died, on failure, part done", "deadsandbox a:exit0 b:exit137", with(two, onFailure), nil, "killpod sandbox1 c1"},
		{"liveness failed", "sandbox a:running b:running", two, results{"a/Liveness": probes.Failure}, "kill:a c0"},
		{"liveness failed, never", "sandbox a:running b:running", with(two, never), results{"a/Liveness": probes.Failure}, "kill:a"},
		{"startup failed", "sandbox a:running b:running", two, results{"b/Startup": probes.Failure}, "kill:b c1"},
		{"image changed", "sandbox a:running b:running", func(p *corev1.Pod) { two(p) }, nil, ""},

		{"init first", "sandbox", init("i", "j"), nil, "init0"},
		{"init new pod", "nosandbox", init("i", "j"), nil, "killpod sandbox0 init0"},
		{"init runs", "sandbox i:running", init("i", "j"), nil, ""},
		{"init done", "sandbox i:exit0", init("i", "j"), nil, "init1"},
		{"all init done", "sandbox i:exit0 j:exit0", init("i", "j"), nil, "c0 c1"},
		{"init failed", "sandbox i:exit1", init("i", "j"), nil, "init0"},
		{"init failed, never", "sandbox i:exit1", with(init("i", "j"), never), nil, "killpod"},
		{"first init pruned", "sandbox j:exit0", init("i", "j"), nil, "c0 c1"},
		{"all init pruned, main runs", "sandbox a:running b:exit1", init("i", "j"), nil, "c1"},

		{"sidecar started", "sandbox s:running", init("s+", "j"), nil, "init1"},
		{"sidecar waits for its startup probe", "sandbox s:running", with(init("s+", "j"), func(p *corev1.Pod) { p.Spec.InitContainers[0].StartupProbe = &corev1.Probe{} }), nil, ""},
		{"sidecar's startup probe done", "sandbox s:running", with(init("s+", "j"), func(p *corev1.Pod) { p.Spec.InitContainers[0].StartupProbe = &corev1.Probe{} }), results{"s/Startup": probes.Success}, "init1"},
		{"sidecar last", "sandbox i:exit0 s:running", init("i", "s+"), nil, "c0 c1"},
		{"sidecar died while main runs", "sandbox s:exit1 a:running b:running", init("s+"), nil, "init0"},
		{"sidecar keeps no pod alive", "sandbox s:running a:exit0 b:exit0", with(init("s+"), never), nil, "killpod"},
		{"sidecar died at the end", "sandbox s:exit1 a:exit0 b:exit0", with(init("s+"), never), nil, "killpod"},
		{"sidecar before running init", "sandbox s:exit1 j:running", init("s+", "j"), nil, "init0"},
	} {
		pod := newPod("p", tc.pod)
		if got := computeActions(pod, state(pod, tc.state), tc.probes, nil).String(); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}

	pod := newPod("p", two)
	rt := state(pod, "sandbox a:running b:running")
	pod.Spec.Containers[0].Image = "other:2"
	if got := computeActions(pod, rt, results{}, nil); got.String() != "kill:a c0" || got.Kill[0].Message != "Container a definition changed, will be restarted" {
		t.Errorf("changed image: %v", got)
	}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
	if got := computeActions(pod, state(pod, "sandbox a:running b:running"), results{}, nil).String(); got != "eph0" {
		t.Errorf("ephemeral container: %q", got)
	}
}

func TestRestartRules(t *testing.T) {
	c := newContainer("a")
	c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyNever)
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}}}
	pod := newPod("p", nil)
	for code, want := range map[int32]bool{42: true, 1: false, 0: false} {
		if restartsAfter(pod, &c, code) != want {
			t.Errorf("exit code %d: want restart %v", code, want)
		}
	}
}

func TestCrashLoopDelays(t *testing.T) {
	now := time.Unix(10000, 0)
	var c *crashLoop
	if !c.until(now, now).IsZero() {
		t.Error("the first restart has to wait")
	}
	for _, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		c = c.restarted(now, now)
		end := now.Add(time.Second) // it ran for a second
		until := c.until(end, end)
		if until.Sub(end) != want*time.Second {
			t.Errorf("wait %v, want %vs", until.Sub(end), want)
		}
		if !c.until(until, end).IsZero() {
			t.Error("still waits at the end of the wait")
		}
		now = until
	}
	end := now.Add(11 * time.Minute)
	if !c.until(end, end).IsZero() || c.restarted(end, end).wait != firstCrashWait {
		t.Error("ten minutes of running are not forgiven")
	}
}

func TestPhase(t *testing.T) {
	run, wait := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	done := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	crash := func(st *corev1.ContainerStatus, code int32) { st.State, st.LastTerminationState = wait, done(code) }
	for _, tc := range []struct {
		name     string
		policy   corev1.RestartPolicy
		a, b     corev1.ContainerState
		crashA   bool
		terminal bool
		want     corev1.PodPhase
	}{
		{"waiting", "Always", wait, wait, false, false, "Pending"},
		{"one waiting", "Always", run, wait, false, false, "Pending"},
		{"running", "Always", run, run, false, false, "Running"},
		{"one crashing", "Always", wait, run, true, false, "Running"},
		{"all ended, always", "Always", done(0), done(1), false, false, "Running"},
		{"all ended, always, deleted", "Always", done(0), done(1), false, true, "Failed"},
		{"all ended well, deleted", "Always", done(0), done(0), false, true, "Succeeded"},
		{"all ended well, never", "Never", done(0), done(0), false, false, "Succeeded"},
		{"one failed, never", "Never", done(0), done(1), false, false, "Failed"},
		{"one failed, on failure", "OnFailure", done(0), done(1), false, false, "Running"},
		{"one still runs, never", "Never", run, done(1), false, false, "Running"},
	} {
		pod := newPod("p", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = tc.policy
			p.Spec.Containers = []corev1.Container{newContainer("a"), newContainer("b")}
		})
		st := []corev1.ContainerStatus{{Name: "a", State: tc.a}, {Name: "b", State: tc.b}}
		if tc.crashA {
			crash(&st[0], 1)
		}
		if got := phaseOf(pod, st, tc.terminal, true); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestStatusOfLostContainer(t *testing.T) {
	pod := newPod("p", nil)
	old := &corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ContainerID: "x://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	in := statusInput{Pod: pod, Runtime: &cri.Pod{}, Old: old, Probes: results{}, RuntimeName: "x", Now: time.Unix(1, 0)}
	s := makeStatus(in)
	cs := s.ContainerStatuses[0]
	if s.Phase != corev1.PodRunning || cs.RestartCount != 1 || cs.LastTerminationState.Terminated == nil || cs.LastTerminationState.Terminated.Reason != "ContainerStatusUnknown" {
		t.Errorf("%s %+v", s.Phase, cs)
	}
	in.Terminal = true
	s = makeStatus(in)
	if s.Phase != corev1.PodFailed || s.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("terminal: %s %+v", s.Phase, s.ContainerStatuses[0])
	}
}

func TestStatusPatchKeepsForeignConditions(t *testing.T) {
	base := newPod("p", nil)
	base.Status.Conditions = []corev1.PodCondition{{Type: "example.com/x", Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	next := base.Status.DeepCopy()
	next.Phase = corev1.PodRunning
	next.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(5, 0)}}
	patch, err := statusPatch(base, *next)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"uid":"uid-p"`, `"phase":"Running"`, `"type":"Ready"`} {
		if !strings.Contains(string(patch), want) {
			t.Errorf("%s lacks %s", patch, want)
		}
	}
	if strings.Contains(string(patch), `"$patch":"delete"`) {
		t.Errorf("deletes something: %s", patch)
	}
	if patch, err := statusPatch(base, base.Status); err != nil || patch != nil {
		t.Errorf("nothing to change: %s, %v", patch, err)
	}
}
