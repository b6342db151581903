package containers

import (
	"context"
	"fmt"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/apparmor"
	hostarmor "github.com/skiff-k8s/skiff/host/apparmor"
)

func confined(kind runtimeapi.SecurityProfile_ProfileType, name string) func(*runtimeapi.ContainerConfig) {
	return func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.Apparmor = &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: name}
	}
}

// What asks for a profile runs under it or not at all. make guest has the kernel for it; on one
// without AppArmor nothing runs that asks for a profile.
func TestAppArmor(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	const local, runtime, unconfined = runtimeapi.SecurityProfile_Localhost, runtimeapi.SecurityProfile_RuntimeDefault, runtimeapi.SecurityProfile_Unconfined
	refused := func(reason string, change func(*runtimeapi.ContainerConfig)) {
		t.Helper()
		id, err := h.tryCreate(sb, cfg, img, change)
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%q, %v; want it refused: %s", id, err, reason)
		}
	}
	kernel := hostarmor.This()
	if kernel.Check() != nil {
		refused("AppArmor is not enabled on the host", confined(local, "anything"))
		refused("AppArmor is not enabled on the host", confined(runtime, ""))
		for what, change := range map[string]func(*runtimeapi.ContainerConfig){"nothing": func(*runtimeapi.ContainerConfig) {}, "unconfined": confined(unconfined, "")} {
			if out, st := h.run(img, change, "echo", "ran"); out != "ran\n" || st.GetExitCode() != 0 {
				t.Errorf("%s: %q, %v", what, out, st)
			}
		}
		return
	}

	const denies = "skiff-test-deny-write"
	if err := kernel.Load(context.Background(), "profile "+denies+" flags=(attach_disconnected) {\n  file,\n  deny /** w,\n}\n"); err != nil {
		t.Fatal(err)
	}
	refused("not found", confined(local, "skiff-test-none"))
	refused("not found", func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.ApparmorProfile = "localhost/skiff-test-none"
	})
	const look = "cat /proc/self/attr/current; touch /x && echo wrote; kill -0 1 && echo signalled; mkdir -p /m; mount -t tmpfs none /m 2>/dev/null && echo mounted; true"
	all := func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}}
		c.Linux.SecurityContext.Seccomp = nil
	}
	for what, c := range map[string]struct {
		change func(*runtimeapi.ContainerConfig)
		want   string
	}{
		"nothing":    {all, apparmor.DefaultName + " (enforce)\nwrote\nsignalled\n"},
		"default":    {func(c *runtimeapi.ContainerConfig) { all(c); confined(runtime, "")(c) }, apparmor.DefaultName + " (enforce)\nwrote\nsignalled\n"},
		"unconfined": {func(c *runtimeapi.ContainerConfig) { all(c); confined(unconfined, "")(c) }, "unconfined\nwrote\nsignalled\nmounted\n"},
		"privileged": {func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.Privileged = true }, "unconfined\nwrote\nsignalled\nmounted\n"},
	} {
		if out, _ := h.run(img, c.change, "sh", "-c", look); out != c.want {
			t.Errorf("%s: %q, want %q", what, out, c.want)
		}
	}
	out, _ := h.run(img, confined(local, denies), "sh", "-c", "cat /proc/self/attr/current; touch /x 2>&1 || true")
	if !strings.HasPrefix(out, denies+" (enforce)\n") || !strings.Contains(out, "Permission denied") {
		t.Errorf("under a profile of the host: %q", out)
	}

	// The host's knobs stay the host's, even writable ones.
	knobs := func(c *runtimeapi.ContainerConfig) {
		all(c)
		c.Linux.SecurityContext.MaskedPaths, c.Linux.SecurityContext.ReadonlyPaths = nil, nil
	}
	for path, may := range map[string]bool{
		"/proc/sys/kernel/domainname": false, "/proc/sys/vm/swappiness": false, "/proc/sys/kernel/shm_rmid_forced": true, "/proc/self/oom_score_adj": true,
	} {
		out, _ := h.run(img, knobs, "sh", "-c", fmt.Sprintf("x=$(cat %[1]s); echo $x > %[1]s && echo wrote", path))
		if strings.Contains(out, "wrote") != may {
			t.Errorf("%s: %q, may be written: %v", path, out, may)
		}
	}

	// What is run in a container is under its profile too.
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command = []string{"sleep", "1000"}
		confined(local, denies)(c)
	})
	h.start(id)
	got, err := h.execSync(id, 60, "sh", "-c", "cat /proc/self/attr/current; touch /x")
	if err != nil || string(got.GetStdout()) != denies+" (enforce)\n" || got.GetExitCode() == 0 {
		t.Errorf("exec: %q %q %v", got.GetStdout(), got.GetStderr(), err)
	}
	// No signal of the host's is let in by that profile; the container ends all the same.
	if _, err := h.Runtime.StopContainer(context.Background(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 60}); err != nil {
		t.Errorf("stop: %v", err)
	}
	if st := h.wait(id); st.GetExitCode() != 137 {
		t.Errorf("after it was killed: %v", st)
	}
	// One is left for Down, which has nothing but signals and control groups.
	h.start(h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Metadata.Name, c.Command = "left", []string{"sleep", "1000"}
		confined(local, denies)(c)
	}))
}
