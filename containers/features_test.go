package containers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Each case is one container that looks around and says what it sees.
func TestContainerFeatures(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	hostDir := t.TempDir()
	if err := os.WriteFile(filepath.Join(hostDir, "f"), []byte("from host"), 0o644); err != nil {
		t.Fatal(err)
	}
	sec := func(c *runtimeapi.ContainerConfig) *runtimeapi.LinuxContainerSecurityContext {
		return c.Linux.SecurityContext
	}
	for name, tt := range map[string]struct {
		change func(*runtimeapi.ContainerConfig)
		script string
		want   string
	}{
		"root by default": {nil, "id -u; id -g", "0\n0\n"},
		"user and groups": {func(c *runtimeapi.ContainerConfig) { sec(c).RunAsUser = &runtimeapi.Int64Value{Value: 1000} }, "id", "uid=1000(user) gid=1001(user) groups=1001(user),2000(extra)\n"},
		"user by name":    {func(c *runtimeapi.ContainerConfig) { sec(c).RunAsUsername = "user" }, "id -u", "1000\n"},
		"unknown uid":     {func(c *runtimeapi.ContainerConfig) { sec(c).RunAsUser = &runtimeapi.Int64Value{Value: 4242} }, "id -u; id -g", "4242\n0\n"},
		"group": {func(c *runtimeapi.ContainerConfig) {
			sec(c).RunAsUser, sec(c).RunAsGroup = &runtimeapi.Int64Value{Value: 1000}, &runtimeapi.Int64Value{Value: 5}
		}, "id -g", "5\n"},
		"supplemental": {func(c *runtimeapi.ContainerConfig) { sec(c).SupplementalGroups = []int64{77} }, "id -G", "0 77\n"},
		"strict groups": {func(c *runtimeapi.ContainerConfig) {
			sec(c).RunAsUser, sec(c).SupplementalGroupsPolicy = &runtimeapi.Int64Value{Value: 1000}, runtimeapi.SupplementalGroupsPolicy_Strict
			sec(c).SupplementalGroups = []int64{77}
		}, "id -G", "1001 77\n"},
		"read-only root":            {func(c *runtimeapi.ContainerConfig) { sec(c).ReadonlyRootfs = true }, "touch /x 2>/dev/null || echo no", "no\n"},
		"working directory is made": {func(c *runtimeapi.ContainerConfig) { c.WorkingDir = "/made/here" }, "pwd", "/made/here\n"},
		"mount": {func(c *runtimeapi.ContainerConfig) {
			c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mnt/x", HostPath: hostDir}}
		}, "cat /mnt/x/f; touch /mnt/x/g && echo w", "from hostw\n"},
		"read-only mount": {func(c *runtimeapi.ContainerConfig) {
			c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mnt/x", HostPath: hostDir, Readonly: true}}
		}, "touch /mnt/x/h 2>/dev/null || echo no", "no\n"},
		"recursive read-only mount": {func(c *runtimeapi.ContainerConfig) {
			c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/mnt/x", HostPath: hostDir, Readonly: true, RecursiveReadOnly: true}}
		}, "touch /mnt/x/h 2>/dev/null || echo no", "no\n"},
		"file mount": {func(c *runtimeapi.ContainerConfig) {
			c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/etc/one", HostPath: filepath.Join(hostDir, "f")}}
		}, "cat /etc/one", "from host"},
		"proc/sys read-only": {nil, "echo 1 2>/dev/null >/proc/sys/net/ipv4/ip_forward || echo no", "no\n"},
		"own pid namespace":  {nil, "echo $$", "1\n"},
		"no new namespaces":  {nil, "unshare -U true 2>/dev/null || echo no", "no\n"},
		"unconfined may": {func(c *runtimeapi.ContainerConfig) {
			sec(c).Seccomp.ProfileType = runtimeapi.SecurityProfile_Unconfined
		}, "grep Seccomp: /proc/self/status", "Seccomp:\t0\n"},
		"filter is on":      {nil, "grep Seccomp: /proc/self/status", "Seccomp:\t2\n"},
		"no new privileges": {func(c *runtimeapi.ContainerConfig) { sec(c).NoNewPrivs = true }, "grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t1\n"},
		"capabilities":      {nil, "grep CapEff /proc/self/status", "CapEff:\t00000000a80425fb\n"},
		"capabilities dropped": {func(c *runtimeapi.ContainerConfig) {
			sec(c).Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"KILL"}}
		}, "grep CapEff /proc/self/status", "CapEff:\t0000000000000020\n"},
		"privileged":           {func(c *runtimeapi.ContainerConfig) { sec(c).Privileged = true }, "grep Seccomp: /proc/self/status; test -e /dev/kmsg && echo dev; echo 1 > /proc/sys/net/ipv4/ip_forward && echo rw", "Seccomp:\t0\ndev\nrw\n"},
		"devices":              {nil, "echo x > /dev/null && head -c 1 /dev/zero | wc -c; mknod /tmp/d b 7 0 && dd if=/tmp/d of=/dev/null count=1 2>/dev/null || echo no", "1\nno\n"},
		"shared memory":        {nil, "stat -f -c %T /dev/shm; touch /dev/shm/x && echo w", "tmpfs\nw\n"},
		"loopback is up":       {nil, "ping -c 1 -W 2 127.0.0.1 >/dev/null && echo up", "up\n"},
		"memory limit":         {func(c *runtimeapi.ContainerConfig) { c.Linux.Resources.MemoryLimitInBytes = 32 << 20 }, "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max", "33554432\n"},
		"a long line":          {nil, "head -c 40000 /dev/zero | tr '\\0' x; echo", strings.Repeat("x", 40000) + "\n"},
		"no signal is ignored": {nil, "grep SigIgn /proc/self/status; true", "SigIgn:\t0000000000000000\n"},
		"no signal is blocked": {nil, "grep SigBlk /proc/self/status", "SigBlk:\t0000000000000000\n"},
		"the usual mask":       {nil, "umask; mkdir /d; stat -c %a /d", "0022\n755\n"},
		"no descriptor leaks":  {nil, "ls /proc/self/fd", "0\n1\n2\n3\n"},
		"open files":           {nil, "ulimit -Sn; ulimit -Hn", manyFiles(t)},
		"huge pages without a controller": {func(c *runtimeapi.ContainerConfig) {
			c.Linux.Resources.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 0}}
		}, "echo ok", "ok\n"},
		"no newline at the end": {nil, "printf abc", "abc"},
	} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			out, _ := h.run(img, tt.change, "sh", "-c", tt.script)
			if out != tt.want {
				t.Errorf("got %q, want %q", out, tt.want)
			}
		})
	}
	h.t = t
}

func TestOOMIsTold(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	_, st := h.run(img, func(c *runtimeapi.ContainerConfig) { c.Linux.Resources.MemoryLimitInBytes = 16 << 20 },
		"sh", "-c", "a=xxxxxxxxxxxxxxxx; while :; do a=$a$a; done")
	if st.GetReason() != "OOMKilled" || st.GetExitCode() != 137 {
		t.Errorf("status %v", st)
	}
}

func TestImageDecides(t *testing.T) {
	h := newHarness(t)
	img := h.pull("decides", busyboxImage(t, func(c *v1.Config) {
		c.Entrypoint, c.Cmd = []string{"sh", "-c"}, []string{"id -u; pwd; cat /data/file; stat -c %u:%g:%a /data/file; trap 'exit 4' USR1; echo ready; while :; do sleep 0.05; done"}
		c.User, c.WorkingDir, c.StopSignal = "user", "/tmp", "SIGUSR1"
		c.Volumes = map[string]struct{}{"/data": {}}
	}))
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(*runtimeapi.ContainerConfig) {})
	h.start(id)
	h.eventually("container to be ready", func() error {
		if out := h.output(id); !strings.HasSuffix(out, "ready\n") {
			return fmt.Errorf("output %q", out)
		}
		return nil
	})
	if out := h.output(id); out != "1000\n/tmp\ncontent1000:1001:600\nready\n" {
		t.Errorf("output %q", out)
	}
	if _, err := h.Runtime.StopContainer(context.Background(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 20}); err != nil {
		t.Fatal(err)
	}
	if st := h.status(id); st.GetExitCode() != 4 || st.GetStopSignal() != runtimeapi.Signal_SIGNAL_SIGUSR1 {
		t.Errorf("status %v", st)
	}
}

func TestSharedProcessNamespace(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	pod := func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	}
	sb, cfg := h.sandbox(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	first := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) { pod(c); c.Command = []string{"sleep", "888"} })
	h.start(first)
	second := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		pod(c)
		c.Metadata.Name, c.LogPath = "second", "second.log"
		c.Command = []string{"sh", "-c", "ps -o pid,args; (sleep 0.1 & ) ; sleep 0.5; ps -o stat | grep -c Z"}
	})
	h.start(second)
	h.wait(second)
	out := h.output(second)
	if !strings.Contains(out, "sleep 888") || !strings.Contains(out, "1 ") || !strings.HasSuffix(out, "\n0\n") {
		t.Errorf("output %q", out)
	}
	if _, err := h.Runtime.StopContainer(context.Background(), &runtimeapi.StopContainerRequest{ContainerId: first, Timeout: 0}); err != nil {
		t.Fatal(err)
	}
}

func TestSysctlsAndHostNamespaces(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1", "net.ipv4.ip_local_port_range": "1024 2000"}
		c.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"10.96.0.10"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"}}
	})
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command = []string{"cat", "/proc/sys/kernel/shm_rmid_forced", "/proc/sys/net/ipv4/ip_local_port_range", "/etc/resolv.conf", "/etc/hostname"}
	})
	h.start(id)
	h.wait(id)
	if out := h.output(id); out != "1\n1024\t2000\nsearch a.b\nnameserver 10.96.0.10\noptions ndots:5\npod-host\n" {
		t.Errorf("output %q", out)
	}
	sb, cfg = h.sandbox(func(c *runtimeapi.PodSandboxConfig) {
		o := c.Linux.SecurityContext.NamespaceOptions
		o.Network, o.Pid, o.Ipc = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE
	})
	id = h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.LogPath = "host.log"
		o := c.Linux.SecurityContext.NamespaceOptions
		o.Network, o.Pid, o.Ipc = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE
		c.Command = []string{"sh", "-c", "readlink /proc/self/ns/net; readlink /proc/self/ns/pid; readlink /proc/self/ns/ipc"}
	})
	h.start(id)
	h.wait(id)
	want := ""
	for _, ns := range []string{"net", "pid", "ipc"} {
		l, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		want += l + "\n"
	}
	if out := h.output(id); out != want {
		t.Errorf("host namespaces: got %q, want %q", out, want)
	}
}

func TestEventsAndFilters(t *testing.T) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	events, err := h.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// The subscription stands once an event comes through.
	var sb string
	var cfg *runtimeapi.PodSandboxConfig
	got := make(chan *runtimeapi.ContainerEventResponse, 100)
	go func() {
		defer close(got)
		for {
			e, err := events.Recv()
			if err != nil {
				return
			}
			got <- e
		}
	}()
	h.eventually("events to flow", func() error {
		sb, cfg = h.sandbox(nil)
		select {
		case <-got:
			return nil
		case <-time.After(100 * time.Millisecond):
			return fmt.Errorf("none yet")
		}
	})
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command, c.Labels = []string{"sh", "-c", "exit 9"}, map[string]string{"a": "b"}
	})
	h.start(id)
	var kinds []runtimeapi.ContainerEventType
	for e := range got {
		if e.GetContainerId() != id {
			continue
		}
		kinds = append(kinds, e.GetContainerEventType())
		if e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			if e.GetContainersStatuses()[0].GetExitCode() != 9 || e.GetPodSandboxStatus().GetId() != sb {
				t.Errorf("event %v", e)
			}
			break
		}
	}
	if len(kinds) != 3 {
		t.Errorf("events %v", kinds)
	}
	for _, tt := range []struct {
		filter *runtimeapi.ContainerFilter
		want   int
	}{
		{nil, 1},
		{&runtimeapi.ContainerFilter{Id: id[:10]}, 1},
		{&runtimeapi.ContainerFilter{PodSandboxId: "none"}, 0},
		{&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"a": "b"}}, 1},
		{&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"a": "c"}}, 0},
		{&runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}}, 0},
	} {
		l, err := h.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: tt.filter})
		if err != nil || len(l.GetContainers()) != tt.want {
			t.Errorf("filter %v: %d, %v", tt.filter, len(l.GetContainers()), err)
		}
	}
}

func ownerOf(info os.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// manyFiles is what a container's open files are limited to, soft and hard.
func manyFiles(t *testing.T) string {
	t.Helper()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	n := min(l.Max, 1<<20)
	return fmt.Sprintf("%d\n%d\n", n, n)
}
