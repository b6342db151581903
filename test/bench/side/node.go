package side

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/skiff-k8s/skiff/containers/image"
	"github.com/skiff-k8s/skiff/containers/oci"
)

// HelloImage is what pods run, on either side: it ships with skiff, and is pulled from a
// registry of this package by containerd.
const HelloImage = image.HelloRepository + ":v1"

// Node is upstream's kubelet with containerd, runc and the standard CNI plugins.
type Node struct {
	k        *Cluster
	registry *http.Server
	// restore are kernel settings that the kubelet changes.
	restore map[string][]byte
}

// plugins is where Debian has the CNI plugins.
const plugins = "/usr/lib/cni"

// nodeGroup is the control group below which everything of the node runs.
const nodeGroup = "upstream-bench"

// MissingNode says what a node of upstream's lacks.
func MissingNode(twins string) error {
	if err := Missing(twins, "kubelet", "containerd", "containerd-shim-runc-v2"); err != nil {
		return err
	}
	if _, err := exec.LookPath("runc"); err != nil {
		return fmt.Errorf("%w: apt-get install runc", err)
	}
	if _, err := os.Stat(filepath.Join(plugins, "bridge")); err != nil {
		return fmt.Errorf("%w: apt-get install containernetworking-plugins", err)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cpuacct"); err != nil {
		return fmt.Errorf("the recipe of the node needs cgroup v1: %w", err)
	}
	return nil
}

// StartNode adds a node to a control plane of upstream.
func (k *Cluster) StartNode(ctx context.Context) (n *Node, err error) {
	n = &Node{k: k, restore: map[string][]byte{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Stop())
		}
	}()
	for _, path := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"} {
		if n.restore[path], err = os.ReadFile("/proc/sys/" + path); err != nil {
			return n, err
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return n, err
	}
	for _, dir := range []string{"/run/containerd", "/run/netns", "/var/log/containers"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return n, err
		}
		if err := syscall.Mount("bench", dir, "tmpfs", 0, ""); err != nil {
			return n, fmt.Errorf("mount over %s: %w", dir, err)
		}
	}
	if err := makeGroups(); err != nil {
		return n, err
	}
	address, err := n.serveImages()
	if err != nil {
		return n, err
	}
	if err := n.configure(address); err != nil {
		return n, err
	}
	for _, argv := range [][]string{
		{"containerd", filepath.Join(k.c.Twins, "containerd"), "--config", k.path("containerd.toml")},
		{"kubelet", filepath.Join(k.c.Twins, "kubelet"), "--config=" + k.path("kubelet.yaml"), "--kubeconfig=" + k.path("kubelet.kubeconfig"),
			"--root-dir=" + k.path("kubelet"), "--hostname-override=" + k.Config.NodeName, "--node-ip=" + k.Config.NodeIPs[0].String()},
	} {
		p, err := k.Exec(argv[0], argv[1:]...)
		if err != nil {
			return n, err
		}
		// What it starts, shims, runc, plugins, is accounted with it.
		if err := joinGroup(argv[0], p.PID); err != nil {
			return n, err
		}
		if argv[0] == "containerd" { // a kubelet that finds no runtime ends
			if err := served(ctx, k.path("run/c.sock")); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// served returns once somebody listens at a unix socket.
func served(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the runtime: %w", err)
		}
	}
}

// serveImages runs a registry with the one image there is.
func (n *Node) serveImages() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	n.registry = &http.Server{Handler: registry.New(registry.Logger(discard()))}
	go func() { _ = n.registry.Serve(l) }() // until Stop
	img, err := image.HelloImage(HelloImage, oci.Hello.Read)
	if err != nil {
		return "", err
	}
	ref, err := name.ParseReference(l.Addr().String() + strings.TrimPrefix(HelloImage, "skiff.local"))
	if err != nil {
		return "", err
	}
	return l.Addr().String(), remote.Write(ref, img)
}

func (n *Node) configure(registry string) error {
	k := n.k
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	kubeconfig, err := k.Kubeconfig("system:node:"+k.Config.NodeName, "system:nodes")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return err
	}
	for path, content := range map[string]string{
		"kubelet.kubeconfig":        string(text),
		"hosts/_default/hosts.toml": fmt.Sprintf("[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", registry),
		"cni/10-bench.conflist": `{"cniVersion":"1.0.0","name":"bench","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,
"ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}],"dataDir":"` + k.path("cni-data") + `"}}]}`,
		"containerd.toml": fmt.Sprintf(containerdConfig, k.path("containerd"), k.path("run/containerd"), k.path("run/c.sock"),
			HelloImage, k.path("hosts"), runc, plugins, k.path("cni")),
		"kubelet.yaml": fmt.Sprintf(kubeletConfig, k.pki("ca.crt"), k.path("run/c.sock"), k.path("log/pods"), nodeGroup),
	} {
		path = k.path(path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

const containerdConfig = `version = 3
root = %q
state = %q
[grpc]
  address = %q
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.images".registry]
  config_path = %q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = %q
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%q]
  conf_dir = %q
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {x509: {clientCAFile: %q}, anonymous: {enabled: false}}
containerRuntimeEndpoint: "unix://%s"
podLogsDir: %q
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
enforceNodeAllocatable: []
evictionHard: {memory.available: "1Mi", nodefs.available: "1%%", imagefs.available: "1%%"}
registerNode: true
`

// Stop ends pods and node, and takes away what they made outside of the directory.
func (n *Node) Stop() error {
	err := n.k.Stop()
	if n.registry != nil {
		err = errors.Join(err, n.registry.Close())
	}
	for path, value := range n.restore {
		if value != nil {
			err = errors.Join(err, os.WriteFile("/proc/sys/"+path, value, 0o644))
		}
	}
	return errors.Join(err, removeGroups())
}

// CPU is what the kubelet has used, or the runtime with all that it starts, pods included.
func (n *Node) CPU(name string) (float64, error) {
	own, err := GroupCPU(nodeGroup + "/" + name)
	if err != nil || name != "containerd" {
		return own, err
	}
	pods, err := GroupCPU(nodeGroup + "/kubepods")
	return own + pods, err
}

// GroupCPU is the CPU time in seconds of a control group with all below it; none of one that is not.
func GroupCPU(group string) (float64, error) {
	text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/cpuacct", group, "cpuacct.usage"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return ns / 1e9, err
}
