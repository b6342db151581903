package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers"
	"github.com/skiff-k8s/skiff/containers/image"
	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/network/bridge"
)

// twins is where make twins puts containerd 2.
func twins() string {
	if d := os.Getenv("TWINS"); d != "" {
		return d
	}
	wd, err := os.Getwd()
	if err != nil {
		return ""
	}
	return filepath.Join(wd, "../.cache/twins")
}

// containerd is one of its own: root, state, socket, configuration.
type containerd struct {
	m      *machine
	bin    string
	cmd    *exec.Cmd
	log    *os.File
	gone   chan struct{}
	config string
}

func newContainerd(m *machine, bin string) criRuntime {
	m.Helper()
	for _, f := range []string{filepath.Join(bin, "containerd"), filepath.Join(bin, "containerd-shim-runc-v2"), "/usr/lib/cni/bridge"} {
		if _, err := os.Stat(f); err != nil {
			m.Fatalf("install what the tests need with .ci/host and make twins: %v", err)
		}
	}
	c := &containerd{m: m, bin: bin}
	d := m.dir + "/containerd"
	certs := d + "/certs.d/_default"
	for _, dir := range []string{d, d + "/cni", certs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			m.Fatal(err)
		}
	}
	for path, text := range map[string]string{
		certs + "/hosts.toml": fmt.Sprintf("[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", m.registry),
		d + "/cni/10.conflist": fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
			"ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`),
		d + "/config.toml": fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "/run/containerd-test"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "%[1]s/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[2]s/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "%[1]s/certs.d"
`, d, m.registry),
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			m.Fatal(err)
		}
	}
	m.Cleanup(func() {
		if m.Failed() {
			raw, _ := os.ReadFile(d + "/log")
			m.Logf("containerd:\n%s", raw[max(0, len(raw)-8000):])
		}
	})
	return c
}

func (c *containerd) endpoint() string { return "unix://" + c.m.dir + "/containerd/c.sock" }

func (c *containerd) start() {
	c.m.Helper()
	var err error
	if c.log, err = os.OpenFile(c.m.dir+"/containerd/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		c.m.Fatal(err)
	}
	c.cmd = exec.Command(filepath.Join(c.bin, "containerd"), "--config", c.m.dir+"/containerd/config.toml")
	c.cmd.Env = append(os.Environ(), "PATH="+c.bin+":"+os.Getenv("PATH"))
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if err := c.cmd.Start(); err != nil {
		c.m.Fatal(err)
	}
	c.gone = make(chan struct{})
	go func() { _ = c.cmd.Wait(); close(c.gone) }()
	served(c.m, c.endpoint())
}

func (c *containerd) kill() {
	_ = c.cmd.Process.Kill()
	<-c.gone
	c.log.Close()
}

// served waits until a runtime answers.
func served(m *machine, endpoint string) {
	m.Helper()
	client, err := cri.New(cri.Config{RuntimeEndpoint: endpoint})
	if err != nil {
		m.Fatal(err)
	}
	defer client.Close()
	m.eventually("the runtime answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := client.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
		return err == nil
	})
}

// builtin is skiff's own runtime on its own bridge.
type builtin struct {
	m      *machine
	cancel context.CancelFunc
	done   chan error
	reg    image.Registries
}

func newBuiltin(m *machine) criRuntime {
	return &builtin{m: m, reg: image.Registries{PlainHTTP: []string{m.registry}}}
}

func (b *builtin) endpoint() string { return "unix://" + b.m.dir + "/cri.sock" }

type bridged struct{ *bridge.Bridge }

func (n bridged) Attach(ctx context.Context, s containers.Sandbox) (containers.Addresses, error) {
	ips, err := n.Bridge.Attach(ctx, s.ID, s.NetNSPath)
	return containers.Addresses{IPs: ips}, err
}
func (n bridged) Detach(ctx context.Context, s containers.Sandbox) error {
	return n.Bridge.Detach(ctx, s.ID)
}

func (b *builtin) start() {
	b.m.Helper()
	br, err := bridge.New(bridge.Config{Name: "skt0", StateDir: b.m.dir + "/network", Logger: slog.New(slog.NewTextHandler(b.m.logs, nil))})
	if err != nil {
		b.m.Fatal(err)
	}
	if err := br.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.88.0.0/24")}); err != nil {
		b.m.Fatal(err)
	}
	r, err := containers.New(containers.Config{
		RootDir: b.m.dir + "/containers", StateDir: b.m.dir + "/state", SocketPath: b.m.dir + "/cri.sock", CgroupRoot: b.m.cgroup, Network: bridged{br}, Registries: b.reg,
		Logger: slog.New(slog.NewTextHandler(b.m.logs, nil)).With("component", "containers"),
	})
	if err != nil {
		b.m.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel, b.done = cancel, make(chan error, 1)
	go func() { b.done <- r.Run(ctx) }()
	served(b.m, b.endpoint())
}

func (b *builtin) kill() {
	b.cancel()
	if err := <-b.done; err != nil {
		b.m.Errorf("runtime: %v", err)
	}
}
