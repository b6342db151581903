package kubelet

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/internal/fakeapi"
)

// What others have on the runtime stays: containers that no kubelet made, pods of another
// cluster's kubelet, the images of both, the runtime's own image.
func TestForeignOnEachRuntime(t *testing.T) {
	eachRuntime(t, func(m *machine) {
		t := m.T
		ctx := context.Background()
		// A pod that another kubelet made, one that somebody made by crictl, and images of theirs.
		for _, n := range []string{"theirs", "plain", "idle"} {
			m.push(m.registry+"/"+n+":1", busybox(t, n))
		}
		theirs := m.sandbox("theirs", map[string]string{"io.kubernetes.pod.uid": "their-uid", "io.kubernetes.pod.name": "theirs", "io.kubernetes.pod.namespace": "default", "skiff.dev/owner": "another.n1"})
		plain := m.sandbox("plain", nil)
		m.pull(m.registry + "/idle:1")
		outside := m.outsider()

		m.startKubelet(func(c *Config) { c.Owner, c.ImageGC.MinAge = "mine.n1", time.Nanosecond })
		m.pod("web", nil)
		m.wait("ready", "web", ready)
		m.proven("beside others")
		m.stopKubelet()
		m.startKubelet(func(c *Config) { c.Owner, c.ImageGC.MinAge = "mine.n1", time.Nanosecond })
		m.proven("after a restart")
		for _, p := range m.kl.pods.Pods() {
			if p.Name == "theirs" || p.Name == "plain" {
				t.Errorf("the kubelet takes %s for its own", p.Name)
			}
		}

		// Twice, so that images are known and old enough: the age is not what is tested.
		for range 2 {
			if err := m.kl.gc.Free(ctx); err != nil {
				t.Fatal(err)
			}
		}
		have := m.images()
		for _, want := range []string{"/theirs:1", "/plain:1", "/busybox:1"} {
			if !slices.ContainsFunc(have, func(s string) bool { return strings.HasSuffix(s, want) }) {
				t.Errorf("image %s is gone: %v", want, have)
			}
		}
		if _, c := m.runtime.(*containerd); c && !slices.ContainsFunc(have, func(s string) bool { return strings.HasSuffix(s, "/pause:1") }) {
			t.Errorf("the runtime's own image is gone: %v", have)
		}
		if slices.ContainsFunc(have, func(s string) bool { return strings.HasSuffix(s, "/idle:1") }) {
			t.Errorf("an image that nobody uses was kept: %v", have)
		}
		for name, id := range map[string]string{"theirs": theirs, "plain": plain} {
			s, err := m.cri.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
			if err != nil || s.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY {
				t.Errorf("sandbox %s: %v %v", name, s, err)
			}
			list, err := m.cri.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: id}})
			if err != nil || len(list.Containers) != 1 || list.Containers[0].State != runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Errorf("containers of %s: %v %v", name, list, err)
			}
		}
		outside()
		m.delete("web")
		m.eventually("the own pod goes", func() bool { return !strings.Contains(m.sandboxNames(), "web") })
		if names := m.sandboxNames(); !strings.Contains(names, "theirs") || !strings.Contains(names, "plain") {
			t.Errorf("sandboxes: %s", names)
		}
	})
}

// outsider runs a container past CRI where the runtime has a way to; the function that is
// returned checks that it runs still.
func (m *machine) outsider() func() {
	m.Helper()
	c, ok := m.runtime.(*containerd)
	if !ok {
		return func() {}
	}
	// In the namespace of CRI itself, the nearest that one can come.
	ctr := func(args ...string) string {
		m.Helper()
		cmd := exec.Command("ctr", append([]string{"--address", strings.TrimPrefix(c.endpoint(), "unix://"), "--namespace", "k8s.io"}, args...)...)
		cmd.Env = append(cmd.Environ(), "PATH="+filepath.Clean(c.bin)+":/usr/sbin:/usr/bin:/sbin:/bin")
		out, err := cmd.CombinedOutput()
		if err != nil {
			m.Fatalf("ctr %v: %v %s", args, err, out)
		}
		return string(out)
	}
	ctr("run", "--detach", "--null-io", m.registry+"/plain:1", "outside", "sleep", "100000")
	return func() {
		if out := ctr("tasks", "ls"); !strings.Contains(out, "outside") || !strings.Contains(out, "RUNNING") {
			m.Errorf("the container beside CRI: %s", out)
		}
	}
}

// sandbox makes one with a container, as other clients of CRI do.
func (m *machine) sandbox(name string, labels map[string]string) string {
	m.Helper()
	ctx := context.Background()
	uid := labels["io.kubernetes.pod.uid"]
	if uid == "" {
		uid = name
	}
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: uid}, Labels: labels, LogDirectory: m.dir + "/logs/" + name,
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: m.cgroup + "/other"},
	}
	if labels == nil {
		cfg.Labels = map[string]string{"by": "hand"}
	}
	sb, err := m.cri.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		m.Fatal(err)
	}
	img := &runtimeapi.ImageSpec{Image: m.registry + "/" + name + ":1"}
	m.pull(img.Image)
	c, err := m.cri.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, SandboxConfig: cfg, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: img, Command: []string{"sleep", "100000"}, Labels: cfg.Labels, LogPath: "c.log",
	}})
	if err != nil {
		m.Fatal(err)
	}
	if _, err := m.cri.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		m.Fatal(err)
	}
	return sb.PodSandboxId
}

func (m *machine) pull(ref string) {
	m.Helper()
	if _, err := m.cri.Images.PullImage(context.Background(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		m.Fatal(err)
	}
}

func (m *machine) images() (tags []string) {
	m.Helper()
	list, err := m.cri.Images.ListImages(context.Background(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		m.Fatal(err)
	}
	for _, i := range list.Images {
		tags = append(tags, i.RepoTags...)
	}
	return tags
}

func (m *machine) sandboxNames() string {
	list, err := m.cri.Runtime.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, s := range list.Items {
		names = append(names, s.Metadata.Name)
	}
	return strings.Join(names, " ")
}

// Two kubelets of different clusters share a runtime: neither sees the other's pods, images
// that either uses stay.
func TestTwoKubeletsOnOneRuntime(t *testing.T) {
	if !isolated(t) {
		return
	}
	m := newMachine(t)
	m.runtime = newContainerd(m, "/usr/bin")
	m.runtime.start()
	m.startKubelet(func(c *Config) { c.Owner = "a.n1" })
	m.pod("web", nil)
	before := m.wait("ready", "web", ready)
	first, stopFirst, done := m.kl, m.cancel, m.done

	// The other has an API server where there are no pods.
	other := *m
	other.api = fakeapi.New()
	other.port = 10251
	other.startKubelet(func(c *Config) {
		c.Owner, c.RootDir, c.PodLogsDir, c.ManifestDir, c.CgroupRoot = "b.n1", m.dir+"/kubelet2", m.dir+"/pods2", "", m.cgroup+"/second"
	})
	other.proven("on the second kubelet")
	// It has cleaned up once it has looked at everything.
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if p := m.get("web"); !ready(p) || p.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID {
			t.Fatalf("%+v", p.Status)
		}
	}
	if n := len(first.pods.Pods()); n != 1 {
		t.Errorf("the first has %d pods", n)
	}
	other.stopKubelet()
	stopFirst()
	m.cancel = nil
	if err := <-done; err != nil {
		t.Error(err)
	}
}
