package pods

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"
)

func TestUserNamespaces(t *testing.T) {
	h := newHarness(t)
	h.start()
	own := func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(false) }
	first := func(c *fakecri.Container) uint32 {
		u := c.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions
		if u == nil || u.Uids[0].Length != 65536 {
			t.Fatalf("user namespace %v", u)
		}
		for _, m := range c.Config.Mounts {
			if len(m.UidMappings) != 1 || m.UidMappings[0].HostId != u.Uids[0].HostId {
				t.Errorf("mount %s is not mapped", m.ContainerPath)
			}
		}
		return u.Uids[0].HostId
	}
	h.create(newPod("a", own))
	h.waitPod("a", "ready", ready)
	h.stop()
	h.start() // what was given out is known after a restart
	h.create(newPod("b", own))
	h.waitPod("b", "ready", ready)
	cs := h.rt.Containers("c")
	if a, b := first(cs[1]), first(cs[0]); a != 65536 || b != 131072 {
		t.Errorf("ids from %d and %d", a, b)
	}
	h.del("a", 1)
	h.wait("gone", func() bool { return h.get("a") == nil && len(h.m.Pods()) == 1 })
	h.create(newPod("d", own))
	h.waitPod("d", "ready", ready)
	if got := first(h.rt.Containers("c")[0]); got != 65536 {
		t.Errorf("freed ids are not used again: %d", got)
	}
}

func TestResize(t *testing.T) {
	h := newHarness(t)
	h.start()
	list := func(cpu, mem string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(mem)}
	}
	h.create(newPod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("100m", "50Mi"), Limits: list("200m", "100Mi")}
	}))
	h.waitPod("a", "ready", ready)
	run := h.rt.Containers("c")[0]
	resize := func(gen int64, requests, limits corev1.ResourceList) {
		t.Helper()
		p := h.get("a")
		p.Generation = gen
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
		if _, err := h.client.CoreV1().Pods("ns").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	resize(2, list("500m", "60Mi"), list("1", "200Mi"))
	p := h.waitPod("a", "resized", func(p *corev1.Pod) bool {
		cs := p.Status.ContainerStatuses[0]
		return p.Status.ObservedGeneration == 2 && cs.Resources.Limits.Memory().String() == "200Mi" && condition(p.Status.Conditions, corev1.PodResizeInProgress) == nil
	})
	cs := p.Status.ContainerStatuses[0]
	if cs.AllocatedResources.Cpu().String() != "500m" || cs.RestartCount != 0 || !h.rt.Running(run) {
		t.Errorf("%+v", cs)
	}
	h.rt.Set(func() {
		if r := run.Config.Linux.Resources; r.CpuShares != 512 || r.CpuQuota != 100000 && r.CpuQuota != 0 || r.MemoryLimitInBytes != 200<<20 {
			t.Errorf("the runtime has %+v", r)
		}
	})
	// A policy of restarting: done means that the new container has its limits.
	p = h.get("a")
	p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
	if _, err := h.client.CoreV1().Pods("ns").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	resize(10, list("500m", "60Mi"), list("1", "210Mi"))
	h.wait("ResizeCompleted", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return strings.Count(strings.Join(h.seen, "\n"), "ResizeCompleted") == 2
	})
	p = h.waitPod("a", "restarted", func(p *corev1.Pod) bool {
		return p.Status.ObservedGeneration == 10 && condition(p.Status.Conditions, corev1.PodResizeInProgress) == nil
	})
	cs = p.Status.ContainerStatuses[0]
	if cs.RestartCount != 1 || cs.Resources.Limits.Memory().String() != "210Mi" || cs.State.Running == nil {
		t.Errorf("%+v", cs)
	}
	run = h.rt.Containers("c")[0]
	// Less than it uses (20 MiB): it stays as well.
	p = h.get("a")
	p.Spec.Containers[0].ResizePolicy = nil
	if _, err := h.client.CoreV1().Pods("ns").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	resize(11, list("500m", "10Mi"), list("1", "10Mi"))
	p = h.waitPod("a", "below its use", func(p *corev1.Pod) bool {
		c := condition(p.Status.Conditions, corev1.PodResizeInProgress)
		return c != nil && c.Reason == corev1.PodReasonError
	})
	if c := condition(p.Status.Conditions, corev1.PodResizeInProgress); !strings.Contains(c.Message, "memory limit (10485760) below current usage (20971520)") || p.Status.ContainerStatuses[0].Resources.Limits.Memory().String() != "210Mi" {
		t.Errorf("%+v %+v", c, p.Status.ContainerStatuses[0].Resources)
	}
	resize(12, list("500m", "60Mi"), list("1", "210Mi"))
	h.waitPod("a", "as before", func(p *corev1.Pod) bool { return condition(p.Status.Conditions, corev1.PodResizeInProgress) == nil })
	// More than the node has: it stays as it is, and says so.
	resize(13, list("9", "60Mi"), list("9", "200Mi"))
	p = h.waitPod("a", "refused", func(p *corev1.Pod) bool {
		c := condition(p.Status.Conditions, corev1.PodResizePending)
		return c != nil && c.Reason == corev1.PodReasonInfeasible && p.Status.ObservedGeneration == 13
	})
	if cs := p.Status.ContainerStatuses[0]; cs.AllocatedResources.Cpu().String() != "500m" || cs.Resources.Requests.Cpu().String() != "500m" {
		t.Errorf("%+v", cs)
	}
	// A new kubelet knows what was granted.
	h.stop()
	h.start()
	h.wait("taken over", func() bool { return len(h.m.Pods()) == 1 })
	time.Sleep(100 * time.Millisecond)
	if q := h.get("a").Status.ContainerStatuses[0].AllocatedResources[corev1.ResourceCPU]; q.String() != "500m" || !h.rt.Running(run) {
		t.Errorf("after a restart %s is granted", q.String())
	}
	resize(14, list("500m", "60Mi"), list("1", "210Mi"))
	h.waitPod("a", "taken back", func(p *corev1.Pod) bool { return condition(p.Status.Conditions, corev1.PodResizePending) == nil })
}

func TestRestartAllContainers(t *testing.T) {
	h := newHarness(t)
	starts := map[string]int{}
	h.rt.Started = func(c *fakecri.Container) {
		n := 0
		h.rt.Set(func() { starts[c.Name]++; n = starts[c.Name] })
		if c.Name == "init" {
			h.rt.Exit(c, 0, "")
		}
		if c.Name == "c" && n == 1 {
			h.rt.Exit(c, 42, "")
		}
	}
	h.start()
	h.create(newPod("a", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.InitContainers = []corev1.Container{newContainer("init")}
		p.Spec.Containers = append(p.Spec.Containers, newContainer("d"))
		c := &p.Spec.Containers[0]
		c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyNever)
		c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}}}
	}))
	p := h.waitPod("a", "restarted", func(p *corev1.Pod) bool {
		c := condition(p.Status.Conditions, corev1.AllContainersRestarting)
		return ready(p) && c != nil && c.Status == corev1.ConditionFalse && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	if p.Status.Phase != corev1.PodRunning {
		t.Errorf("phase %s", p.Status.Phase)
	}
	h.rt.Set(func() {
		if starts["init"] != 2 || starts["c"] != 2 || starts["d"] > 2 {
			t.Errorf("starts %v", starts)
		}
	})
	if n := h.rt.Sandboxes(); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
}
