package containers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/image"
)

func TestStatsAndLimits(t *testing.T) {
	h := newHarness(t)
	ctx := context.Background()
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command = []string{"sh", "-c", "dd if=/dev/zero of=/file bs=1M count=3 2>/dev/null; while :; do :; done"}
		c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.CpuShares = 64<<20, 100
	})
	h.start(id)
	h.eventually("figures", func() error {
		got, err := h.Runtime.PodSandboxStats(ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: sb})
		if err != nil {
			return err
		}
		s := got.GetStats().GetLinux()
		c := s.GetContainers()
		if len(c) != 1 || c[0].GetCpu().GetUsageNanoCores().GetValue() == 0 || c[0].GetMemory().GetWorkingSetBytes().GetValue() == 0 ||
			c[0].GetMemory().GetAvailableBytes().GetValue() == 0 || s.GetProcess().GetProcessCount().GetValue() != 1 ||
			s.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 {
			return fmt.Errorf("%v", s)
		}
		return nil
	})
	list, err := h.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil || len(list.GetStats()) != 1 {
		t.Fatal(list, err)
	}
	_, err = h.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, CpuQuota: 50000, CpuPeriod: 100000},
	})
	if err != nil {
		t.Fatal(err)
	}
	res := h.status(id).GetResources().GetLinux()
	if res.GetMemoryLimitInBytes() != 128<<20 || res.GetCpuShares() != 100 || res.GetCpuQuota() != 50000 {
		t.Errorf("resources %v", res)
	}
	got, err := h.execSync(id, 60, "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max")
	if err != nil || string(got.GetStdout()) != "134217728\n" {
		t.Errorf("limit in the container: %v, %v", got, err)
	}
	h.eventually("disk usage, which is measured now and then", func() error {
		fs, err := h.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		if err == nil && (fs.GetImageFilesystems()[0].GetUsedBytes().GetValue() == 0 || fs.GetContainerFilesystems()[0].GetUsedBytes().GetValue() < 3<<20) {
			err = fmt.Errorf("%v", fs)
		}
		return err
	})
}

func TestLogRotation(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command = []string{"sh", "-c", "echo before; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo after"}
	})
	h.start(id)
	log := h.status(id).GetLogPath()
	h.eventually("first line", func() error {
		if out := h.output(id); out != "before\n" {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Runtime.ReopenContainerLog(context.Background(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.execSync(id, 60, "touch", "/tmp/go"); err != nil {
		t.Fatal(err)
	}
	h.wait(id)
	if out := h.output(id); out != "after\n" {
		t.Errorf("the new file has %q", out)
	}
}

func TestImageMount(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	for name, tt := range map[string]struct{ sub, script, want string }{
		"whole": {"", "cat /mnt/data/file; touch /mnt/x 2>/dev/null || echo ro", "contentro\n"},
		"part":  {"data", "cat /mnt/file; echo", "content\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			out, _ := h.run(img, func(c *runtimeapi.ContainerConfig) {
				c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mnt", Image: &runtimeapi.ImageSpec{Image: img}, ImageSubPath: tt.sub, Readonly: true}}
			}, "sh", "-c", tt.script)
			if out != tt.want {
				t.Errorf("output %q", out)
			}
		})
	}
	h.t = t
	sb, cfg := h.sandbox(nil)
	_, err := h.tryCreate(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mnt", Image: &runtimeapi.ImageSpec{Image: img}, ImageSubPath: "none", Readonly: true}}
	})
	if err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a path that is not there: %v", err)
	}
	if _, err := h.tryCreate(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mnt", Image: &runtimeapi.ImageSpec{Image: img}}}
	}); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("an image to write to: %v", err)
	}
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mnt", Image: &runtimeapi.ImageSpec{Image: img}, Readonly: true}}
	})
	if got := h.status(id); got.GetMounts()[0].GetImage().GetImageRef() != got.GetImageId() || got.GetImageId() == "" {
		t.Errorf("the mount is of image %q, the container of %q", got.GetMounts()[0].GetImage().GetImageRef(), got.GetImageId())
	}
}

func TestPropagation(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	out, st := h.run(img, func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mnt", HostPath: t.TempDir(), Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}}
	}, "sh", "-c", "touch /mnt/x && echo ok")
	if out != "ok\n" {
		t.Errorf("output %q, %v", out, st)
	}
}

func TestUserNamespace(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	ids := []*runtimeapi.IDMapping{{ContainerId: 0, HostId: 200000, Length: 65536}}
	status, err := h.Runtime.Status(context.Background(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !status.GetRuntimeHandlers()[0].GetFeatures().GetUserNamespaces() {
		t.Skip("needs ID-mapped mounts of the temporary directory's file system")
	}
	userns := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	sb, cfg := h.sandbox(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns
	})
	volume := t.TempDir()
	if err := os.Chmod(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mnt", HostPath: volume, UidMappings: ids, GidMappings: ids}}
		c.Command = []string{"sh", "-c", "id -u; cat /proc/self/uid_map | tr -s ' '; stat -c %u /bin/busybox /data/file; touch /x && chmod 600 /x && stat -c %u /x; touch /mnt/f && stat -c %u /mnt/f; hostname"}
	})
	h.start(id)
	st := h.wait(id)
	want := "0\n 0 200000 65536\n0\n1000\n0\n0\npod-host\n"
	if out := h.output(id); out != want {
		t.Errorf("got %q, want %q; %v", out, want, st)
	}
	var uid uint32
	if info, err := os.Stat(filepath.Join(volume, "f")); err != nil {
		t.Error(err)
	} else if uid = ownerOf(info); uid != 0 {
		t.Errorf("the volume's file belongs to %d on the host", uid)
	}
}

func TestManyPodsAtOnce(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	began := time.Now()
	var wg sync.WaitGroup
	ids := make([]string, 50)
	for i := range ids {
		wg.Go(func() {
			sb, cfg := h.sandbox(nil)
			ids[i] = h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
				c.Command, c.LogPath = []string{"sh", "-c", fmt.Sprintf("echo %d; sleep 1000", i)}, fmt.Sprintf("%d.log", i)
			})
			h.start(ids[i])
		})
	}
	wg.Wait()
	t.Logf("%d pods in %s", len(ids), time.Since(began))
	h.eventually("output", func() error {
		for i, id := range ids {
			if out := h.output(id); out != fmt.Sprintf("%d\n", i) {
				return fmt.Errorf("pod %d printed %q", i, out)
			}
		}
		return nil
	})
	began = time.Now()
	list, err := h.Runtime.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(list.GetItems()) != len(ids) {
		t.Fatal(len(list.GetItems()), err)
	}
	for _, sb := range list.GetItems() {
		wg.Go(func() {
			if _, err := h.Runtime.RemovePodSandbox(context.Background(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb.GetId()}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("gone in %s", time.Since(began))
}

func TestRuntimeTellsAboutItself(t *testing.T) {
	h := newHarness(t)
	ctx := context.Background()
	v, err := h.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil || v.GetRuntimeName() != "skiff" || v.GetRuntimeApiVersion() != "v1" {
		t.Error(v, err)
	}
	s, err := h.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil || len(s.GetStatus().GetConditions()) != 2 || len(s.GetRuntimeHandlers()) != 2 {
		t.Error(s, err)
	}
	for _, c := range s.GetStatus().GetConditions() {
		if !c.GetStatus() {
			t.Errorf("%s: %s", c.GetType(), c.GetMessage())
		}
	}
	c, err := h.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil || c.GetLinux().GetCgroupDriver() != runtimeapi.CgroupDriver_CGROUPFS {
		t.Error(c, err)
	}
	if _, err := h.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "other", Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "x"}}}); err == nil {
		t.Error("an unknown runtime handler was taken")
	}
	h.eventually("built-in images", func() error {
		l, err := h.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
		if err == nil && len(l.GetImages()) != 2 {
			err = fmt.Errorf("%v", l.GetImages())
		}
		return err
	})
	names, err := h.LoadImages(ctx, filepath.Join(h.dir, "none.tar"), nil)
	if err == nil || !strings.Contains(err.Error(), "none.tar") {
		t.Error(names, err)
	}
	tag, err := name.NewTag("registry.test/loaded:1")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(h.dir, "one.tar")
	if err := tarball.WriteToFile(archive, tag, busyboxImage(t, nil)); err != nil {
		t.Fatal(err)
	}
	if names, err := h.LoadImages(ctx, archive, func(image.Progress) {}); err != nil || len(names) != 1 || names[0] != "registry.test/loaded:1" {
		t.Error(names, err)
	}
}
