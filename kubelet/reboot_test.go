package kubelet

import (
	"context"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// After a reboot each pod is back by its policy; what had ended does not run again.
func TestRebootOnEachRuntime(t *testing.T) {
	eachRuntime(t, func(m *machine) {
		t := m.T
		static := m.staticPod("static", "sleep 100000")
		m.manifest("static.yaml", static)
		m.startKubelet()
		volumes := func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{
				{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
				{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: m.dir + "/runs"}}},
			}
			for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
				for i := range list {
					list[i].VolumeMounts = []corev1.VolumeMount{{Name: "disk", MountPath: "/disk"}, {Name: "memory", MountPath: "/memory"}, {Name: "host", MountPath: "/runs"}}
				}
			}
		}
		if err := os.MkdirAll(m.dir+"/runs", 0o755); err != nil {
			t.Fatal(err)
		}
		running := func(name string, policy corev1.RestartPolicy) {
			m.pod(name, func(p *corev1.Pod) {
				p.Spec.RestartPolicy = policy
				p.Spec.InitContainers = []corev1.Container{m.container("init", "echo init >> /runs/"+name)}
				p.Spec.Containers = []corev1.Container{m.container("c", "echo main >> /runs/"+name+"; echo x >> /disk/x; echo x >> /memory/x; sleep 100000")}
				volumes(p)
			})
		}
		over := func(name string, policy corev1.RestartPolicy, code string) {
			m.pod(name, func(p *corev1.Pod) {
				p.Spec.RestartPolicy = policy
				p.Spec.Containers = []corev1.Container{m.container("c", "echo main >> /runs/"+name+"; exit "+code)}
				volumes(p)
			})
		}
		running("always", corev1.RestartPolicyAlways)
		running("onfailure", corev1.RestartPolicyOnFailure)
		running("never", corev1.RestartPolicyNever)
		over("done", corev1.RestartPolicyNever, "0")
		over("failed", corev1.RestartPolicyNever, "1")
		over("doneonce", corev1.RestartPolicyOnFailure, "0")
		// One of two has ended well: only the other is to come back.
		m.pod("half", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
			p.Spec.Containers = []corev1.Container{m.container("c", "sleep 100000"), m.container("ended", "echo main >> /runs/half")}
			volumes(p)
		})
		m.pod("gone", nil)
		for _, n := range []string{"always", "onfailure", "never", "gone", "static-n1"} {
			m.wait("ready", n, ready)
		}
		for n, phase := range map[string]corev1.PodPhase{"done": corev1.PodSucceeded, "failed": corev1.PodFailed, "doneonce": corev1.PodSucceeded} {
			m.wait("over", n, func(p *corev1.Pod) bool { return p.Status.Phase == phase })
		}
		m.wait("half done", "half", func(p *corev1.Pod) bool {
			s := p.Status.ContainerStatuses
			return len(s) == 2 && s[0].State.Running != nil && s[1].State.Terminated != nil
		})
		before := map[string]*corev1.Pod{}
		for _, n := range []string{"always", "onfailure", "done", "failed", "doneonce"} {
			before[n] = m.get(n)
		}
		for _, n := range []string{"always", "onfailure", "never"} {
			m.eventually(n+" has written", func() bool { return m.file("/runs/"+n) == "init\nmain\n" })
		}
		for _, n := range []string{"always", "onfailure"} {
			m.eventually(n+" has written all", func() bool { got, err := m.exec(n, "c", "cat", "/memory/x"); return err == nil && got == "x\n" })
		}
		boot := m.bootID()

		m.reboot()
		m.delete("gone") // while the node was down
		m.runtime.start()
		m.startKubelet()

		for _, n := range []string{"always", "onfailure"} {
			p := m.wait("back", n, func(p *corev1.Pod) bool {
				return ready(p) && p.Status.ContainerStatuses[0].ContainerID != before[n].Status.ContainerStatuses[0].ContainerID
			})
			if s := p.Status.ContainerStatuses[0]; s.RestartCount != 1 || s.LastTerminationState.Terminated == nil {
				t.Errorf("%s: %+v", n, s)
			}
			if s := p.Status.InitContainerStatuses[0]; s.RestartCount != 1 || s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
				t.Errorf("%s: init %+v", n, s)
			}
			m.eventually(n+" runs anew", func() bool { return m.file("/runs/"+n) == "init\nmain\ninit\nmain\n" })
			for command, want := range map[string]string{"cat /disk/x": "x\nx\n", "cat /memory/x": "x\n", "mount | grep ' /memory ' | grep -c tmpfs": "1\n"} {
				m.eventually(n+": "+command+" says "+want, func() bool {
					got, err := m.exec(n, "c", "/bin/sh", "-c", command)
					return err == nil && got == want
				})
			}
		}
		p := m.wait("failed", "never", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if got := m.file("/runs/never"); got != "init\nmain\n" || p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("never ran %q: %+v", got, p.Status)
		}
		m.wait("half back", "half", func(p *corev1.Pod) bool {
			s := p.Status.ContainerStatuses
			return s[0].State.Running != nil && s[0].RestartCount == 1
		})
		m.wait("back", "static-n1", func(p *corev1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
		m.eventually("the node tells the boot", func() bool {
			n, err := m.api.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
			return err == nil && n.Status.NodeInfo.BootID != boot && n.Status.NodeInfo.BootID == m.bootID()
		})
		m.eventually("an event tells of it", func() bool { return m.event("n1", "Rebooted", m.bootID()) })
		m.eventually("nothing is left of the pod that was deleted meanwhile", func() bool {
			rt, err := m.cri.Pods(context.Background())
			if err != nil {
				return false
			}
			for _, p := range rt {
				if p.Name == "gone" {
					return false
				}
			}
			return true
		})
		for n, phase := range map[string]corev1.PodPhase{"done": corev1.PodSucceeded, "failed": corev1.PodFailed, "doneonce": corev1.PodSucceeded} {
			p := m.get(n)
			if got := m.file("/runs/" + n); p.Status.Phase != phase || got != "main\n" || p.Status.ContainerStatuses[0].State.Terminated == nil ||
				p.Status.ContainerStatuses[0].State.Terminated.ExitCode != before[n].Status.ContainerStatuses[0].State.Terminated.ExitCode {
				t.Errorf("%s ran %q: %+v", n, got, p.Status)
			}
		}
		if got := m.file("/runs/half"); got != "main\n" {
			t.Errorf("what had ended well ran again: %q", got)
		}

		// A second one: counts grow.
		m.reboot()
		m.runtime.start()
		m.startKubelet()
		m.wait("back again", "always", func(p *corev1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 2 })
		m.wait("back again", "static-n1", func(p *corev1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 2 })
	})
}

func (m *machine) bootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		m.Fatal(err)
	}
	return string(raw[:len(raw)-1])
}

func (m *machine) file(path string) string {
	raw, _ := os.ReadFile(m.dir + path)
	return string(raw)
}
