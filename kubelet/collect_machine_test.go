package kubelet

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/images"
	"github.com/skiff-k8s/skiff/kubelet/pods"
)

// Images go when the disk that the runtime names fills, containers that have ended by number,
// with their logs.
func TestCollectionOnEachRuntime(t *testing.T) {
	eachRuntime(t, func(m *machine) {
		t := m.T
		ctx := context.Background()
		none := 0
		m.push(m.registry+"/idle:1", busybox(t, "idle"))
		m.startKubelet(func(c *Config) {
			c.ImageGC = images.Policy{HighPercent: 1, LowPercent: 1, MinAge: time.Nanosecond} // any disk is fuller
			c.DeadContainers = pods.DeadPolicy{PerContainer: &none}
		})
		m.pod("web", nil)
		m.wait("ready", "web", ready)
		m.pull(m.registry + "/idle:1")
		has := func(name string) bool {
			return slices.ContainsFunc(m.images(), func(s string) bool { return strings.HasSuffix(s, name) })
		}
		if !has("/idle:1") {
			t.Fatal("the image was not pulled")
		}
		for range 2 { // the first time it is seen
			if err := m.kl.gc.Look(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if has("/idle:1") || !has("/busybox:1") {
			t.Errorf("left: %v", m.images())
		}

		m.pod("crash", func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{m.container("c", "exit 1")} })
		p := m.wait("restarted", "crash", func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount >= 2
		})
		m.eventually("earlier runs are gone with their logs", func() bool {
			list, err := m.cri.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(p.UID)}}})
			if err != nil || len(list.Containers) != 1 {
				return false
			}
			logs, err := filepath.Glob(m.dir + "/pods/default_crash_*/c/*.log")
			return err == nil && len(logs) == 1
		})

		// An evicted pod leaves its status alone.
		m.kl.pods.Evict(m.get("web").UID, pods.Eviction{Reason: "Evicted", Message: "the disk is full", Grace: new(int64), Reclaim: true})
		m.wait("failed", "web", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" })
		m.eventually("nothing but its status is left", func() bool {
			logs, err := filepath.Glob(m.dir + "/pods/default_web_*")
			return err == nil && len(logs) == 0 && !strings.Contains(m.sandboxNames(), "web")
		})
	})
}

// Static pods need no API server, and nothing of a restart.
func TestStandaloneOnEachRuntime(t *testing.T) {
	eachRuntime(t, func(m *machine) {
		t := m.T
		alone := func(c *Config) { c.Client = nil }
		one := m.staticPod("one", "echo ran >> /runs/one; sleep 100000")
		one.Spec.Volumes = []corev1.Volume{{Name: "runs", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: m.dir}}}}
		one.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "runs", MountPath: "/runs"}}
		m.manifest("one.yaml", one)
		if err := os.WriteFile(m.dir+"/manifests/bad.yaml", []byte("kind: Pot\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		m.startKubelet(alone)
		running := func(name string) bool {
			for _, p := range m.kl.pods.Pods() {
				if p.Name == name+"-n1" && ready(p) {
					return true
				}
			}
			return false
		}
		m.eventually("the pod runs", func() bool { return running("one") })
		if n := strings.Count(m.logs.String(), "static pod not run"); n != 1 || !strings.Contains(m.logs.String(), "bad.yaml") || m.kl.pods.StaticErrors() != 1 {
			t.Errorf("the bad manifest was told of %d times, counted %d", n, m.kl.pods.StaticErrors())
		}
		m.stopKubelet()
		m.startKubelet(alone)
		m.eventually("the pod is taken over", func() bool { return running("one") })
		if got := m.file("/one"); got != "ran\n" {
			t.Errorf("it ran %q", got)
		}
		// Changed, renamed, removed.
		one.Spec.Containers[0].Command[2] = strings.Replace(one.Spec.Containers[0].Command[2], "echo ran", "echo changed", 1)
		m.manifest("one.yaml", one)
		m.eventually("the changed one runs", func() bool { return m.file("/one") == "ran\nchanged\n" && running("one") })
		two := m.staticPod("two", "sleep 100000")
		m.manifest("two.yaml", two)
		m.eventually("both run", func() bool { return running("one") && running("two") })
		if err := os.Remove(m.dir + "/manifests/one.yaml"); err != nil {
			t.Fatal(err)
		}
		m.eventually("the removed one is gone", func() bool { return m.sandboxNames() == "two-n1" })

		// The machine starts again, still without an API server.
		m.reboot()
		m.runtime.start()
		m.startKubelet(alone)
		m.eventually("it is back", func() bool { return running("two") })

		// One comes: the pod is shown there, and goes on.
		before := m.sandboxNames()
		m.stopKubelet()
		m.startKubelet()
		m.wait("ready as a mirror", "two-n1", func(p *corev1.Pod) bool { return ready(p) && p.Annotations["kubernetes.io/config.mirror"] != "" })
		if after := m.sandboxNames(); after != before {
			t.Errorf("sandboxes %q, then %q", before, after)
		}
	})
}
