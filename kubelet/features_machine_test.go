package kubelet

import (
	"context"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// What a runtime lacks is found out, and what pods ask of it is refused in clear words.
func TestFeaturesOfEachRuntime(t *testing.T) {
	eachRuntime(t, func(m *machine) {
		t := m.T
		old := strings.Contains(m.Name(), "containerd-1.6")
		m.startKubelet()
		m.pod("web", nil)
		m.wait("ready", "web", ready)
		m.pod("mapped", func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(false) })
		mapped := func() bool {
			raw, err := m.exec("mapped", "c", "cat", "/proc/self/uid_map")
			return err == nil && !strings.Contains(raw, "4294967295") && strings.Contains(raw, "65536")
		}
		supported := false
		for _, h := range m.kl.node.RuntimeConditions().Handlers {
			supported = supported || h.Name == "" && h.GetFeatures().GetUserNamespaces()
		}
		switch {
		case old && supported:
			t.Error("containerd 1.6 tells of user namespaces")
		case supported:
			m.wait("ready", "mapped", ready)
			if !mapped() {
				t.Error("the pod's users are the host's")
			}
		default:
			m.eventually("the pod is refused for the reason", func() bool { return m.event("mapped", "FailedCreatePodSandBox", "user namespaces") })
			rt, err := m.cri.Pods(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range rt {
				if p.Name == "mapped" {
					t.Error("a sandbox was made")
				}
			}
		}
		events := strings.Contains(m.logs.String(), "the runtime has no container events")
		if old != events {
			t.Errorf("runtime without events: %v, noticed: %v", old, events)
		}
	})
}

// A runtime that has systemd make control groups would put containers elsewhere than the
// kubelet thinks: the node says so and starts nothing.
func TestSystemdDriver(t *testing.T) {
	if !isolated(t) {
		return
	}
	m := newMachine(t)
	c := newContainerd(m, twins()).(*containerd)
	m.runtime = c
	c.configure("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n    SystemdCgroup = true\n")
	c.start()
	m.startKubelet()
	m.pod("web", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	m.eventually("the node says what is wrong", func() bool {
		ok, why := m.nodeReady()
		return !ok && strings.Contains(why, "SystemdCgroup = false")
	})
	if p := m.get("web"); p.Status.Phase == corev1.PodRunning {
		t.Errorf("%+v", p.Status)
	}
	// Mended, it works.
	c.kill()
	c.configure("")
	c.start()
	m.wait("ready", "web", ready)
}

// configure adds to the runtime's configuration.
func (c *containerd) configure(more string) {
	c.m.Helper()
	path := c.m.dir + "/containerd/config.toml"
	if c.config == "" {
		raw, err := os.ReadFile(path)
		if err != nil {
			c.m.Fatal(err)
		}
		c.config = string(raw)
	}
	if err := os.WriteFile(path, []byte(c.config+more), 0o644); err != nil {
		c.m.Fatal(err)
	}
}

func (m *machine) event(object, reason, text string) bool {
	list, err := m.api.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return false
	}
	for _, e := range list.Items {
		if e.InvolvedObject.Name == object && e.Reason == reason && strings.Contains(e.Message, text) {
			return true
		}
	}
	return false
}
