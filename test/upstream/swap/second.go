package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	secondName    = "second"
	secondAddress = "192.168.77.3"
	// registryAddress is where both nodes reach the test images.
	registryAddress = nodeAddress + ":5000"
	// plugins is where Debian has the CNI plugins.
	plugins = "/usr/lib/cni"
)

// second is a machine with upstream's kubelet, containerd and proxy: network, mount and UTS
// namespaces, linked with the first node's by what is the other end of its link.
type second struct {
	l   *lab
	dir string
	pid int // of the process that holds the namespaces
}

// withSecond is a cluster of skiff's that a node of upstream's has joined by a token.
func withSecond(ctx context.Context, l *lab) error {
	if err := l.bring(ctx); err != nil {
		return err
	}
	if _, err := l.start("registry", filepath.Join(l.cache, "registry"), "-layout", filepath.Join(l.cache, "images"), "-listen", registryAddress); err != nil {
		return err
	}
	s := &second{l: l, dir: filepath.Join(filepath.Dir(l.work), "s")} // not among what is kept of a failed row
	if err := s.machine(ctx); err != nil {
		return fmt.Errorf("make the second machine: %w", err)
	}
	if err := l.ready(ctx); err != nil {
		return err
	}
	if err := l.loadImages(ctx); err != nil {
		return err
	}
	if err := s.join(ctx); err != nil {
		return fmt.Errorf("join the second machine: %w", err)
	}
	first, err := l.kube(ctx, "", "get", "nodes", "-o", `jsonpath={.items[?(@.metadata.name!="`+secondName+`")].metadata.name}`)
	if err != nil {
		return err
	}
	l.nodes = []string{first, secondName}
	return nil
}

// machine makes the namespaces, what is mounted in them, and the link.
func (s *second) machine(ctx context.Context) error {
	if _, err := exec.LookPath("runc"); err != nil {
		return fmt.Errorf("%w: apt-get install runc", err)
	}
	if _, err := os.Stat(filepath.Join(plugins, "bridge")); err != nil {
		return fmt.Errorf("%w: apt-get install containernetworking-plugins", err)
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	restore, err := keepSysctls("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes")
	if err != nil {
		return err
	}
	s.l.tidy = append(s.l.tidy, restore, removeGroups)
	if err := errors.Join(removeGroups(), makeGroups()); err != nil {
		return err
	}
	made := filepath.Join(s.dir, "made")
	// Paths that containerd and the kubelet have no flags for.
	holder, err := s.l.start("second", "unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-euc", `
		mount --make-rshared /
		for d in /run/containerd /run/netns /var/lib/kubelet /var/log/containers; do mkdir -p $d; mount -t tmpfs second $d; mount --make-shared $d; done
		echo `+secondName+` > /proc/sys/kernel/hostname
		ip link set lo up
		touch `+made+`
		exec sleep infinity`)
	if err != nil {
		return err
	}
	s.pid = holder.cmd.Process.Pid
	if err := wait(ctx, time.Minute, "namespaces", func() error { _, err := os.Stat(made); return err }); err != nil {
		return err
	}
	if text, err := exec.CommandContext(ctx, "ip", "link", "set", "swap1", "netns", strconv.Itoa(s.pid), "name", "eth0").CombinedOutput(); err != nil {
		return fmt.Errorf("move the link: %w: %s", err, text)
	}
	return s.run(ctx, "sh", "-euc", `
		ip addr add `+secondAddress+`/24 dev eth0
		ip link set eth0 up
		ip route add default via `+nodeAddress+`
		echo 1 > /proc/sys/net/ipv4/ip_forward
		# Pods of one bridge reach each other through Services too: what comes back is to be translated.
		echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables`)
}

// inside is how a program is started in the machine, in the control group of its system.
func (s *second) inside(argv ...string) []string {
	ns := fmt.Sprintf("/proc/%d/ns/", s.pid)
	return append([]string{"nsenter", "--net=" + ns + "net", "--mount=" + ns + "mnt", "--uts=" + ns + "uts", "--",
		"sh", "-euc", `for g in /sys/fs/cgroup/*/` + systemGroup + `/cgroup.procs; do echo $$ > $g; done; exec "$@"`, "sh"}, argv...)
}

func (s *second) run(ctx context.Context, argv ...string) error {
	argv = s.inside(argv...)
	if text, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("on the second machine: %w: %s", err, text)
	}
	return nil
}

// join starts all that runs on the machine; the node is ready then.
func (s *second) join(ctx context.Context) error {
	if err := s.configure(ctx); err != nil {
		return err
	}
	// It looks for its shim, which must be of the same version.
	search := "PATH=" + filepath.Join(s.l.cache, "twins") + ":" + os.Getenv("PATH")
	if _, err := s.l.start("second-containerd", s.inside("env", search, s.l.twin("containerd"), "--config", s.path("containerd.toml"))...); err != nil {
		return err
	}
	if err := wait(ctx, time.Minute, "containerd", func() error { // a kubelet that finds no runtime ends
		conn, err := net.Dial("unix", s.path("c.sock"))
		if err != nil {
			return err
		}
		return conn.Close()
	}); err != nil {
		return err
	}
	if _, err := s.l.start("second-kubelet", s.inside(s.l.twin("kubelet"), "--config="+s.path("kubelet.yaml"), "--root-dir="+s.path("kubelet"),
		"--bootstrap-kubeconfig="+s.path("bootstrap.kubeconfig"), "--kubeconfig="+s.path("kubeconfig"), "--cert-dir="+s.path("pki"),
		"--hostname-override="+secondName, "--node-ip="+secondAddress)...); err != nil {
		return err
	}
	if err := s.network(ctx); err != nil {
		return err
	}
	if err := s.l.startProxyOn(secondName, s.inside(s.l.twin("kube-proxy"))...); err != nil {
		return err
	}
	if err := wait(ctx, time.Minute, "the second node", func() error {
		_, err := s.l.kube(ctx, "", "wait", "node/"+secondName, "--for=condition=Ready", "--timeout=20s")
		return err
	}); err != nil {
		return err
	}
	return wait(ctx, time.Minute, "the kubelet's serving certificate", func() error {
		_, err := s.l.kube(ctx, "", "get", "--raw", "/api/v1/nodes/"+secondName+"/proxy/healthz")
		return err
	})
}

// network gives the machine's runtime the pod CIDR that the cluster gave the node, and the machine
// a route to the first node's pods; that one makes its own.
func (s *second) network(ctx context.Context) error {
	var cidr string
	if err := wait(ctx, time.Minute, "a pod CIDR of the second node", func() (err error) {
		cidr, err = s.l.kube(ctx, "", "get", "node", secondName, "-o", "jsonpath={.spec.podCIDR}")
		if err == nil && cidr == "" {
			err = errors.New("there is none")
		}
		return err
	}); err != nil {
		return err
	}
	link, err := net.InterfaceByName("swap0") // the other end has the same MTU
	if err != nil {
		return err
	}
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "pods", "plugins": []any{
		map[string]any{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "mtu": link.MTU,
			"ipam": map[string]any{"type": "host-local", "dataDir": s.path("cni-data"),
				"ranges": []any{[]any{map[string]any{"subnet": cidr}}}, "routes": []any{map[string]any{"dst": "0.0.0.0/0"}}}},
		map[string]any{"type": "portmap", "snat": true, "capabilities": map[string]any{"portMappings": true}},
	}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.path("cni/10-pods.conflist"), conf, 0o644); err != nil {
		return err
	}
	routes, err := s.l.kube(ctx, "", "get", "nodes", "-o", `jsonpath={range .items[?(@.metadata.name!="`+secondName+`")]}{.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}`)
	if err != nil {
		return err
	}
	for line := range strings.Lines(routes) {
		f := strings.Fields(line)
		if len(f) != 2 {
			return fmt.Errorf("pod CIDR and address of a node are %q", line)
		}
		if err := s.run(ctx, "ip", "route", "add", f[0], "via", f[1]); err != nil {
			return err
		}
	}
	return nil
}

func (s *second) path(name string) string { return filepath.Join(s.dir, name) }

// bootstrap writes a kubeconfig with a new token, which can do nothing but ask for the certificate of
// a node.
func (s *second) bootstrap(ctx context.Context) error {
	text, err := exec.CommandContext(ctx, s.l.skiff, "token", "create", "--data-dir", s.l.dir).Output()
	if err != nil {
		return fmt.Errorf("skiff token create: %w", err)
	}
	_, token, ok := strings.Cut(string(text), "--token ")
	if !ok {
		return fmt.Errorf("skiff token create printed no --token: %s", text)
	}
	token, _, _ = strings.Cut(strings.Fields(token)[0], "@")
	c := clientcmdapi.NewConfig()
	c.Clusters["swap"] = &clientcmdapi.Cluster{Server: "https://" + nodeAddress + ":6443", CertificateAuthority: s.l.pki("ca.crt")}
	c.AuthInfos["token"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["swap"] = &clientcmdapi.Context{Cluster: "swap", AuthInfo: "token"}
	c.CurrentContext = "swap"
	return clientcmd.WriteToFile(*c, s.path("bootstrap.kubeconfig"))
}

func (s *second) configure(ctx context.Context) error {
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	for path, text := range map[string]string{
		"hosts/_default/hosts.toml": fmt.Sprintf("[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", registryAddress),
		"containerd.toml":           fmt.Sprintf(containerdConfig, s.path("containerd"), s.path("run"), s.path("c.sock"), s.path("hosts"), runc, plugins, s.path("cni")),
		"kubelet.yaml":              fmt.Sprintf(kubeletConfig, s.l.pki("ca.crt"), s.path("c.sock"), s.path("pods"), s.path("plugins"), secondGroup),
		"cni/README":                "The configuration of CNI comes once the node has a pod CIDR.\n",
	} {
		path = s.path(path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return s.bootstrap(ctx)
}

// The second runtime's name is what tests of RuntimeClasses use.
const containerdConfig = `version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = %q
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "registry.k8s.io/pause:3.10.2"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = %q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.test-handler]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = %q
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%q]
  conf_dir = %q
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {x509: {clientCAFile: %q}, webhook: {enabled: true}, anonymous: {enabled: false}}
authorization: {mode: Webhook}
rotateCertificates: true
serverTLSBootstrap: true
containerRuntimeEndpoint: "unix://%s"
podLogsDir: %q
volumePluginDir: %q
clusterDNS: ["10.96.0.10"]
clusterDomain: cluster.local
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
enforceNodeAllocatable: []
evictionHard: {memory.available: "1Mi", nodefs.available: "1%%", imagefs.available: "1%%"}
imageGCHighThresholdPercent: 100
`
