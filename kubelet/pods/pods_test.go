package pods

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"
)

func TestRunAndDelete(t *testing.T) {
	h := newHarness(t)
	h.start()
	begun := time.Now()
	h.create(newPod("a", nil))
	p := h.waitPod("a", "ready", ready)
	t.Logf("ready after %v", time.Since(begun))
	if p.Status.Phase != corev1.PodRunning || p.Status.PodIP != "10.244.0.2" || p.Status.HostIP != "192.0.2.1" || p.Status.StartTime == nil || p.Status.ObservedGeneration != 1 {
		t.Errorf("status %+v", p.Status)
	}
	cs := p.Status.ContainerStatuses[0]
	if !cs.Ready || !*cs.Started || cs.State.Running == nil || !strings.HasPrefix(cs.ContainerID, "fake://") || cs.Image != "img:1" {
		t.Errorf("container status %+v", cs)
	}
	var conds []string
	for _, c := range p.Status.Conditions {
		conds = append(conds, string(c.Type)+"="+string(c.Status))
	}
	if got := strings.Join(conds, " "); strings.Contains(got, "False") || len(conds) != 5 {
		t.Errorf("conditions %s", got)
	}
	for _, e := range []string{"Normal Pulled Container image \"img:1\" already present", "Normal Created Container created", "Normal Started Container started"} {
		h.wait(e, func() bool { return h.event(e) })
	}
	hosts, err := os.ReadFile(filepath.Join(h.dir, "kubelet/pods/uid-a/etc-hosts"))
	if err != nil || !strings.Contains(string(hosts), "10.244.0.2\ta\n") {
		t.Errorf("hosts file %q, %v", hosts, err)
	}

	h.del("a", 30)
	h.wait("gone", func() bool { return h.get("a") == nil })
	h.wait("nothing left", func() bool { return len(h.m.Pods()) == 0 && h.rt.Sandboxes() == 0 })
	for _, d := range []string{"kubelet/pods/uid-a", "logs/ns_a_uid-a"} {
		if _, err := os.Stat(filepath.Join(h.dir, d)); !os.IsNotExist(err) {
			t.Errorf("%s is left behind", d)
		}
	}
	if !h.event("Normal Killing Stopping container c") {
		t.Error("no Killing event")
	}
}

func TestJob(t *testing.T) {
	h := newHarness(t)
	h.rt.Started = func(c *fakecri.Container) {
		code := int32(0)
		if c.Config.Metadata.Name == "bad" {
			code = 3
			for _, m := range c.Config.Mounts {
				if m.ContainerPath == "/dev/termination-log" {
					os.WriteFile(m.HostPath, []byte("last words"), 0o644)
				}
			}
		}
		h.rt.Exit(c, code, "")
	}
	h.start()
	h.create(newPod("good", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
	h.create(newPod("bad", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Name = "bad"
	}))
	p := h.waitPod("good", "succeeded", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	if tm := p.Status.ContainerStatuses[0].State.Terminated; tm == nil || tm.Reason != "Completed" {
		t.Errorf("%+v", p.Status.ContainerStatuses[0])
	}
	if c := condition(p.Status.Conditions, corev1.PodReady); c.Status != corev1.ConditionFalse || c.Reason != "PodCompleted" {
		t.Errorf("%+v", c)
	}
	p = h.waitPod("bad", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if tm := p.Status.ContainerStatuses[0].State.Terminated; tm == nil || tm.ExitCode != 3 || tm.Reason != "Error" || tm.Message != "last words" {
		t.Errorf("%+v", p.Status.ContainerStatuses[0])
	}
	if n := len(h.rt.Containers("c")); n != 1 {
		t.Errorf("ran %d times", n)
	}
	h.del("good", 0)
	h.wait("gone", func() bool { return h.get("good") == nil })
}

func TestCrashLoop(t *testing.T) {
	h := newHarness(t)
	h.rt.Started = func(c *fakecri.Container) { h.rt.Exit(c, 1, "") }
	h.start()
	h.create(newPod("a", nil))
	p := h.waitPod("a", "crash loop", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil && p.Status.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	cs := p.Status.ContainerStatuses[0]
	if cs.RestartCount != 1 || cs.LastTerminationState.Terminated == nil || p.Status.Phase != corev1.PodRunning {
		t.Errorf("%+v", p.Status)
	}
	if want := "back-off 10s restarting failed container=c pod=a_ns(uid-a)"; cs.State.Waiting.Message != want {
		t.Errorf("message %q", cs.State.Waiting.Message)
	}
	h.wait("BackOff event", func() bool {
		return h.event("Warning BackOff Back-off restarting failed container c in pod a_ns(uid-a)")
	})
}

func TestInitAndSidecar(t *testing.T) {
	h := newHarness(t)
	h.rt.Started = func(c *fakecri.Container) {
		if c.Name == "init1" || c.Name == "init2" {
			h.rt.Exit(c, 0, "")
		}
	}
	h.start()
	h.create(newPod("a", func(p *corev1.Pod) {
		side := newContainer("side")
		side.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		p.Spec.InitContainers = []corev1.Container{newContainer("init1"), side, newContainer("init2")}
	}))
	p := h.waitPod("a", "ready", ready)
	order := []string{"init1", "side", "init2", "c"}
	for i := 1; i < len(order); i++ {
		a, b := h.rt.Containers(order[i-1]), h.rt.Containers(order[i])
		if len(a) != 1 || len(b) != 1 || a[0].ID > b[0].ID {
			t.Errorf("%s did not start before %s", order[i-1], order[i])
		}
	}
	for _, st := range p.Status.InitContainerStatuses {
		if !st.Ready {
			t.Errorf("%s not ready", st.Name)
		}
	}
	h.del("a", 30)
	h.wait("gone", func() bool { return h.get("a") == nil })
}

func TestFailedInitContainer(t *testing.T) {
	h := newHarness(t)
	h.rt.Started = func(c *fakecri.Container) {
		h.rt.Exit(c, map[string]int32{"init2": 1}[c.Name], "")
	}
	h.start()
	h.create(newPod("a", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.InitContainers = []corev1.Container{newContainer("init1"), newContainer("init2")}
	}))
	p := h.waitPod("a", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	c := condition(p.Status.Conditions, corev1.PodInitialized)
	if c.Status != corev1.ConditionFalse || c.Reason != "ContainersNotInitialized" || c.Message != "containers with incomplete status: [init2]" {
		t.Errorf("%+v", c)
	}
	if w := p.Status.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "PodInitializing" {
		t.Errorf("%+v", p.Status.ContainerStatuses[0])
	}
	if len(h.rt.Containers("c")) != 0 {
		t.Error("the main container was made")
	}
}

func TestMissingConfigMapArrives(t *testing.T) {
	h := newHarness(t)
	h.start()
	h.create(newPod("vol", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}))
	h.create(newPod("env", func(p *corev1.Pod) {
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}}
	}))
	h.wait("FailedMount", func() bool { return h.event(`MountVolume.SetUp failed for volume "v" : configmap "cm" not found`) })
	h.waitPod("env", "config error", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil && p.Status.ContainerStatuses[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "ns"}, Data: map[string]string{"K": "v"}}
	if _, err := h.client.CoreV1().ConfigMaps("ns").Create(context.Background(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.waitPod("vol", "ready", ready)
	h.waitPod("env", "ready", ready)
	c := h.rt.Containers("c")
	found := false
	for _, e := range append(c[0].Config.Envs, c[1].Config.Envs...) {
		found = found || e.Key == "K" && string(e.Value) == "v"
	}
	if !found {
		t.Error("no variable from the ConfigMap")
	}
}

// A killed kubelet: the next one takes over without touching anything.
func TestTakeOver(t *testing.T) {
	h := newHarness(t)
	h.start()
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"ok"}}}, PeriodSeconds: 1, TimeoutSeconds: 60, SuccessThreshold: 1, FailureThreshold: 1}
	h.create(newPod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[0].StartupProbe = probe, probe
	}))
	h.create(newPod("b", nil))
	h.create(newPod("deleted", nil))
	for _, n := range []string{"a", "b", "deleted"} {
		h.waitPod(n, "ready", ready)
	}
	h.stop()
	created := h.rt.Calls("CreateContainer")
	h.client.ClearActions()
	if err := h.client.CoreV1().Pods("ns").Delete(context.Background(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.wait("orphan ended", func() bool { return h.rt.Sandboxes() == 2 })
	h.wait("orphan's directory gone", func() bool {
		_, err := os.Stat(filepath.Join(h.dir, "kubelet/pods/uid-deleted"))
		return os.IsNotExist(err)
	})
	time.Sleep(1500 * time.Millisecond) // a probe period: anything that flaps has done so
	if n := h.rt.Calls("CreateContainer"); n != created {
		t.Errorf("%d containers were made", n-created)
	}
	for _, a := range h.client.Actions() {
		if a.GetVerb() == "patch" {
			t.Errorf("status was written: %v", a)
		}
	}
	if !ready(h.get("a")) || !ready(h.get("b")) {
		t.Error("readiness was lost")
	}
}

func TestProbes(t *testing.T) {
	h := newHarness(t)
	var unready, dead string // container ids
	h.rt.RunExec = func(c *fakecri.Container, cmd []string) (string, int32, error) {
		fails := false
		h.rt.Set(func() { fails = c.ID == unready && cmd[0] == "ready" || c.ID == dead && cmd[0] == "live" })
		if fails {
			return "no", 1, nil
		}
		return "", 0, nil
	}
	h.start()
	probe := func(cmd string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{cmd}}}, PeriodSeconds: 1, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1}
	}
	h.create(newPod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[0].LivenessProbe = probe("ready"), probe("live")
	}))
	h.waitPod("a", "ready", ready)
	first := h.rt.Containers("c")[0]
	h.rt.Set(func() { unready = first.ID })
	h.waitPod("a", "unready", func(p *corev1.Pod) bool { return !ready(p) })
	if !h.event("Warning Unhealthy Readiness probe failed: no") {
		t.Error("no event")
	}
	h.rt.Set(func() { unready = "" })
	h.waitPod("a", "ready again", ready)
	h.rt.Set(func() { dead = first.ID })
	h.wait("restart", func() bool { return len(h.rt.Containers("c")) == 2 })
	if h.rt.Running(first) {
		t.Error("the old container still runs")
	}
	p := h.waitPod("a", "ready after restart", func(p *corev1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	if tm := p.Status.ContainerStatuses[0].LastTerminationState.Terminated; tm == nil || tm.ExitCode != 143 {
		t.Errorf("last state %+v", p.Status.ContainerStatuses[0].LastTerminationState)
	}
	h.wait("Killing", func() bool { return h.event("Normal Killing Container c failed liveness probe, will be restarted") })
}

func TestHooksAndFasterDeletion(t *testing.T) {
	h := newHarness(t)
	var order []string
	h.rt.RunExec = func(_ *fakecri.Container, cmd []string) (string, int32, error) {
		h.rt.Set(func() { order = append(order, cmd[0]) })
		return "", 0, nil
	}
	h.rt.Started = func(c *fakecri.Container) { h.rt.Set(func() { c.IgnoreTerm = true }) }
	h.start()
	h.create(newPod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"post"}}},
			PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"pre"}}},
		}
	}))
	h.waitPod("a", "ready", ready)
	h.del("a", 3600)
	h.wait("preStop", func() bool { n := 0; h.rt.Set(func() { n = len(order) }); return n == 2 })
	h.del("a", 1)
	h.wait("gone", func() bool { return h.get("a") == nil })
	if got := strings.Join(order[:2], ","); got != "post,pre" {
		t.Errorf("hooks %s", got)
	}
}

func TestRuntimeAway(t *testing.T) {
	h := newHarness(t)
	h.start()
	h.create(newPod("a", nil))
	h.waitPod("a", "ready", ready)
	c := h.rt.Containers("c")[0]
	h.rt.Down()
	h.create(newPod("b", nil))
	h.rt.Exit(c, 1, "") // nobody hears of it
	if err := h.rt.Up(); err != nil {
		t.Fatal(err)
	}
	h.waitPod("b", "ready", ready)
	h.waitPod("a", "restarted", func(p *corev1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
}

func TestRefused(t *testing.T) {
	h := newHarness(t)
	h.apparmor = errors.New("AppArmor is not enabled on the host")
	h.start()
	for n, reason := range map[string]string{"sysctl": "SysctlForbidden", "ports2": "NodePorts", "apparmor": "AppArmor"} {
		if n == "ports2" {
			h.create(newPod("ports1", func(p *corev1.Pod) {
				p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: 80}}
			}))
			h.waitPod("ports1", "ready", ready)
		}
		h.create(newPod(n, func(p *corev1.Pod) {
			switch n {
			case "sysctl":
				p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.panic", Value: "1"}}}
			case "ports2":
				p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: 80}}
			case "apparmor":
				p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}}
			}
		}))
		p := h.waitPod(n, "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != reason || len(p.Status.ContainerStatuses) != 0 || !strings.HasPrefix(p.Status.Message, "Pod was rejected: ") {
			t.Errorf("%s: %+v", n, p.Status)
		}
	}
}

func TestDeadline(t *testing.T) {
	h := newHarness(t)
	h.start()
	h.create(newPod("a", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) }))
	p := h.waitPod("a", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if p.Status.Reason != "DeadlineExceeded" || ready(p) {
		t.Errorf("%+v", p.Status)
	}
	if c := h.rt.Containers("c")[0]; h.rt.Running(c) {
		t.Error("still runs")
	}
}

func TestReadinessGate(t *testing.T) {
	h := newHarness(t)
	h.start()
	h.create(newPod("a", func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	}))
	p := h.waitPod("a", "containers ready", func(p *corev1.Pod) bool {
		c := condition(p.Status.Conditions, corev1.ContainersReady)
		return c != nil && c.Status == corev1.ConditionTrue
	})
	if c := condition(p.Status.Conditions, corev1.PodReady); c.Reason != "ReadinessGatesNotReady" {
		t.Errorf("%+v", c)
	}
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue})
	if _, err := h.client.CoreV1().Pods("ns").UpdateStatus(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p = h.waitPod("a", "ready", ready)
	if condition(p.Status.Conditions, "example.com/gate") == nil {
		t.Error("the gate's condition was dropped")
	}
}
