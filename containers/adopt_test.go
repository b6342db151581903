package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/monitor"
)

func TestContainersOutliveTheRuntime(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	start := func(name, script string) string {
		id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
			c.Metadata.Name, c.LogPath = name, name+".log"
			c.Command = []string{"sh", "-c", script}
		})
		h.start(id)
		return id
	}
	stays := start("stays", "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done")
	ends := start("ends", "while [ ! -e /tmp/end ]; do sleep 0.05; done; echo ended; exit 7")
	lost := start("lost", "sleep 1000")
	created := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Metadata.Name, c.Command = "created", []string{"true"}
	})
	monitor, init := processesOf(t, h, lost)
	_, staying := processesOf(t, h, stays)
	_, ending := processesOf(t, h, ends)

	h.kill()
	if err := os.WriteFile("/proc/"+strconv.Itoa(ending)+"/root/tmp/end", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.eventually("container to end without a runtime", func() error { return gone(ending) })
	if err := syscall.Kill(monitor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.serve()

	if st := h.status(stays); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container that stayed: %v", st)
	}
	if _, now := processesOf(t, h, stays); now != staying {
		t.Errorf("its process is %d, was %d", now, staying)
	}
	if st := h.status(ends); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 7 || h.output(ends) != "ended\n" {
		t.Errorf("the container that ended: %v", st)
	}
	if st := h.status(lost); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetReason() != "Unknown" {
		t.Errorf("the container whose monitor was killed: %v", st)
	}
	if err := gone(init); err != nil {
		t.Errorf("its process runs unwatched: %v", err)
	}
	if got, err := h.execSync(stays, 5, "echo", "hi"); err != nil || string(got.GetStdout()) != "hi\n" {
		t.Errorf("exec in an adopted container: %v, %v", got, err)
	}
	h.start(created)
	if st := h.wait(created); st.GetExitCode() != 0 {
		t.Errorf("the container that was not started yet: %v", st)
	}
	if _, err := h.Runtime.StopContainer(context.Background(), &runtimeapi.StopContainerRequest{ContainerId: stays, Timeout: 10}); err != nil {
		t.Fatal(err)
	}
	if st := h.status(stays); st.GetExitCode() != 0 || h.output(stays) != "up\ntold\n" {
		t.Errorf("the adopted container after its stop: %v %q", st, h.output(stays))
	}
}

// gone is nil once the process has ended, reaped or not.
func gone(pid int) error {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	if state := strings.Fields(string(b)[strings.LastIndexByte(string(b), ')')+1:])[0]; state != "Z" && state != "X" {
		return fmt.Errorf("process %d is in state %s", pid, state)
	}
	return nil
}

func TestDownAfterKill(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command = []string{"sleep", "1000"}
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	h.start(id)
	h.kill()
	// The harness takes the rest down and looks for what is left.
}

// A container can be signalled as soon as it is said to run.
func TestStopRightAfterStart(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	for i := range 10 {
		id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
			// As pid 1 without a handler, sleep does not end by SIGTERM.
			c.Command, c.LogPath = []string{"sleep", "1000"}, fmt.Sprintf("%d.log", i)
			c.Linux.SecurityContext.NoNewPrivs = i%2 == 0
		})
		h.start(id)
		if err := monitor.Signal(filepath.Join(h.dir, "run/containers", id), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Runtime.StopContainer(context.Background(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		if st := h.status(id); st.GetExitCode() != 137 {
			t.Errorf("status %v", st)
		}
	}
}

func TestStopEscalates(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command = []string{"sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"}
	})
	h.start(id)
	h.eventually("trap", func() error {
		if out := h.output(id); out != "deaf\n" {
			return fmt.Errorf("output %q", out)
		}
		return nil
	})
	ctx := context.Background()
	if _, err := h.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 1}); err != nil {
		t.Fatal(err)
	}
	if st := h.status(id); st.GetExitCode() != 137 {
		t.Errorf("status %v", st)
	}
	for range 2 { // idempotent
		if _, err := h.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
		if _, err := h.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
		if _, err := h.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
			t.Error(err)
		}
		if _, err := h.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
			t.Error(err)
		}
	}
}

func TestReboot(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) { c.Command = []string{"sleep", "1000"} })
	h.start(id)
	// As near as one comes without rebooting: nothing of the running state is
	// left, and the boot is another.
	h.kill()
	root := h.dir
	if err := Down(context.Background(), testConfig(filepath.Join(root, "none"), "")); err != nil {
		t.Fatal(err)
	}
	if err := monitorKill(filepath.Join(root, "run/containers", id)); err != nil {
		t.Fatal(err)
	}
	// A machine that stops leaves a monitor no time to say how its container ended.
	if err := os.Remove(filepath.Join(root, "containers", id, "exit.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	unmountAll(t, root)
	if err := os.WriteFile(filepath.Join(root, "run/boot_id"), []byte("another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.serve()
	if st := h.status(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetReason() != "Unknown" {
		t.Errorf("container %v", st)
	}
	got, err := h.Runtime.PodSandboxStatus(context.Background(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil || got.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandbox %v, %v", got, err)
	}
	if _, err := h.Runtime.RemovePodSandbox(context.Background(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Error(err)
	}
}

func monitorKill(dir string) error {
	s, err := monitor.ReadState(dir)
	if err != nil {
		return err
	}
	return monitor.Kill(s)
}

func unmountAll(t *testing.T, below string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); strings.HasPrefix(f[4], below) {
			if err := syscall.Unmount(f[4], syscall.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		}
	}
}
