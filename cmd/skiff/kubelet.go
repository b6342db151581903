package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/kubelet"
)

// kubeletFlags are the flags of skiff kubelet.
type kubeletFlags struct {
	client    client
	file      string
	bootstrap string

	hostname, nodeIP           string
	rootDir, podLogs           string
	manifests, resolv          string
	runtime, images            string
	address                    string
	port                       int32
	serving                    serving
	certDir                    string
	rotate, rotateServer       bool
	clientCA                   string
	healthzAddress             string
	healthzPort                int32
	dns                        []string
	domain                     string
	cgroupRoot, cgroupDriver   string
	maxPods                    int32
	podPids                    int64
	labels                     map[string]string
	taints                     []string
	systemReserve, kubeReserve map[string]string
	providerID, cloudProvider  string
	anonymous, webhook         bool
	authorization              string
	profiling                  bool

	policies kubeletPolicies

	registerTaints []corev1.Taint // of the file
}

func kubeletCommand() *cobra.Command {
	return component{
		name: "kubelet", short: "Run a kubelet alone, with upstream's flags, on a container runtime of its own",
		accepted: kubeletAccepted, refused: kubeletRefused,
		bind: func(flags *pflag.FlagSet) func(*cobra.Command, *slog.Logger) error {
			f := kubeletFlags{profiling: true} // only a file says otherwise
			f.bind(flags)
			return func(cmd *cobra.Command, log *slog.Logger) error {
				if f.file != "" {
					if err := f.read(flags, log); err != nil {
						return err
					}
				}
				c, err := f.config(cmd.Context(), log)
				if err != nil {
					return err
				}
				return cluster.RunKubelet(cmd.Context(), c)
			}
		},
	}.command()
}

func (f *kubeletFlags) bind(flags *pflag.FlagSet) {
	f.client.bind(flags, 50, 100)
	flags.StringVar(&f.file, "config", "", "KubeletConfiguration file; flags count for more than its settings")
	flags.StringVar(&f.bootstrap, "bootstrap-kubeconfig", "", "kubeconfig to request a certificate with where that of --kubeconfig does not exist yet")
	flags.StringVar(&f.hostname, "hostname-override", "", "name of the node; none: the host's")
	flags.StringVar(&f.nodeIP, "node-ip", "", "addresses of the node, the primary one first; none: this host's")
	flags.StringVar(&f.rootDir, "root-dir", "/var/lib/kubelet", "directory of volumes and the kubelet's own files")
	flags.StringVar(&f.podLogs, "pod-logs-dir", "/var/log/pods", "directory of containers' logs (podLogsDir of the configuration)")
	flags.StringVar(&f.manifests, "pod-manifest-path", "", "directory or file of static pods")
	flags.StringVar(&f.resolv, "resolv-conf", "/etc/resolv.conf", "resolver configuration that pods get; empty: none")
	flags.StringVar(&f.runtime, "container-runtime-endpoint", "", "CRI socket, unix:///…")
	flags.StringVar(&f.images, "image-service-endpoint", "", "CRI socket of images; none: --container-runtime-endpoint")
	flags.StringVar(&f.address, "address", "0.0.0.0", "address to serve at")
	flags.Int32Var(&f.port, "port", 10250, "port to serve at")
	f.serving.bindTLS(flags)
	flags.StringVar(&f.certDir, "cert-dir", "/var/lib/kubelet/pki", "directory of certificates that the kubelet requests from the cluster")
	flags.BoolVar(&f.rotate, "rotate-certificates", false, "the client certificate is renewed before it ends (rotateCertificates of the configuration)")
	flags.BoolVar(&f.rotateServer, "rotate-server-certificates", false, "the serving certificate is the cluster's, requested and renewed (serverTLSBootstrap of the configuration)")
	flags.StringVar(&f.clientCA, "client-ca-file", "", "CA of clients' certificates")
	flags.StringVar(&f.healthzAddress, "healthz-bind-address", "127.0.0.1", "address of /healthz")
	flags.Int32Var(&f.healthzPort, "healthz-port", 10248, "its port; 0: none")
	flags.StringSliceVar(&f.dns, "cluster-dns", nil, "addresses of the cluster's DNS")
	flags.StringVar(&f.domain, "cluster-domain", "cluster.local", "domain of the cluster")
	flags.StringVar(&f.cgroupRoot, "cgroup-root", "", "control group above those of pods")
	flags.StringVar(&f.cgroupDriver, "cgroup-driver", "cgroupfs", "cgroupfs")
	flags.Int32Var(&f.maxPods, "max-pods", 110, "most pods")
	flags.Int64Var(&f.podPids, "pod-max-pids", -1, "most processes of a pod; -1: no limit")
	flags.StringToStringVar(&f.labels, "node-labels", nil, "labels of the node when it registers")
	flags.StringSliceVar(&f.taints, "register-with-taints", nil, "taints of the node when it registers: key=value:effect")
	flags.StringToStringVar(&f.systemReserve, "system-reserved", nil, "resources kept for the system")
	flags.StringToStringVar(&f.kubeReserve, "kube-reserved", nil, "resources kept for Kubernetes")
	f.policies.bind(flags)
	flags.StringVar(&f.cloudProvider, "cloud-provider", "", "external: a cloud-controller-manager initializes the node")
	flags.StringVar(&f.providerID, "provider-id", "", "the node's name at its provider")
	flags.BoolVar(&f.anonymous, "anonymous-auth", false, "false: requests without credentials are refused")
	flags.BoolVar(&f.webhook, "authentication-token-webhook", true, "true: the API server reviews tokens")
	flags.StringVar(&f.authorization, "authorization-mode", "Webhook", "Webhook: the API server reviews access")
}

var kubeletAccepted = []others{
	{"features are at the defaults of the version that is served", "feature-gates"},
	{"the kubelet acts on changes; nothing is synced by the clock", "sync-frequency file-check-frequency housekeeping-interval node-status-update-frequency volume-stats-agg-period"},
	{"images are pulled as pods need them", "registry-burst registry-qps runtime-request-timeout"},
	{"events are limited as they are", "event-burst event-qps"},
	{"pods are evicted at upstream's default thresholds", "eviction-hard eviction-max-pod-grace-period eviction-minimum-reclaim eviction-pressure-transition-period eviction-soft eviction-soft-grace-period kernel-memcg-notification? experimental-allocatable-ignore-eviction?"},
	{"logs rotate at 10 MiB, 5 files are kept", "container-log-max-files container-log-max-size"},
	{"both cgroup versions and hosts with swap are served; pods do not swap", "fail-cgroupv1? fail-swap-on?"},
	{"pods have groups by quality of service, and CPU quotas", "cgroups-per-qos? cpu-cfs-quota? cpu-cfs-quota-period enforce-node-allocatable local-storage-capacity-isolation?"},
	{"the process stays in the control group and with the score that it was started with", "kubelet-cgroups runtime-cgroups system-cgroups oom-score-adj max-open-files"},
	{"kernel settings and packet filters are left alone", "protect-kernel-defaults? make-iptables-util-chains? hairpin-mode"},
	{"volumes are attached by their drivers", "enable-controller-attach-detach? volume-plugin-dir experimental-mounter-path"},
	{"the API gives the node its pod CIDR", "pod-cidr"},
	{"CPUs, memory and topology are shared by all", "cpu-manager-reconcile-period cpu-manager-policy-options topology-manager-policy-options topology-manager-scope"},
	{"streams end when their ends do", "streaming-connection-idle-timeout"},
	{"50 images are reported", "node-status-max-images"},
	{"answers of the API server about clients hold as upstream's by default", "authentication-token-webhook-cache-ttl authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl"},
	{"streams and logs are always served", "enable-debugging-handlers?"},
	{"there is no plain port", "read-only-port"},
	{"the component has no such endpoint", "contention-profiling?"},
	{"a URL of static pods is looked at every 20 s", "http-check-frequency"},
}

var kubeletRefused = []others{
	{"one file configures the kubelet", "config-dir"},
	{"CPUs, memory and topology are shared by all", "cpu-manager-policy memory-manager-policy topology-manager-policy reserved-cpus reserved-memory qos-reserved"},
	{"reserved resources have no control groups of their own", "kube-reserved-cgroup system-reserved-cgroup"},
	{"registries' credentials come from Secrets and config.json", "image-credential-provider-bin-dir image-credential-provider-config"},
	{"the kubelet runs until it is told to end", "runonce? lock-file exit-on-lock-contention?"},
	{"the kubelet always serves and registers its node", "enable-server? register-node?"},
	{"sysctls are those that are safe", "allowed-unsafe-sysctls"},
	{"seccomp follows the pod", "seccomp-default?"},
	{"pods are limited by their number", "pods-per-core"},
}

func (f *kubeletFlags) config(ctx context.Context, log *slog.Logger) (cluster.KubeletConfig, error) {
	none := func(err error) (cluster.KubeletConfig, error) { return cluster.KubeletConfig{}, err }
	c := cluster.KubeletConfig{Config: kubelet.Config{
		RootDir: f.rootDir, PodLogsDir: f.podLogs, ManifestDir: f.manifests, ResolvConf: orElse(f.resolv, "-"),
		RuntimeEndpoint: f.runtime, ImageEndpoint: f.images,
		ClusterDNS: f.dns, ClusterDomain: f.domain, CgroupRoot: f.cgroupRoot, CgroupDriver: f.cgroupDriver,
		MaxPods: int64(f.maxPods), PodPidsLimit: max(f.podPids, 0), Labels: f.labels, ProviderID: f.providerID, Profiling: f.profiling, Logger: log,
	}}
	switch {
	case f.runtime == "":
		return none(fmt.Errorf("--container-runtime-endpoint is required: it says where the container runtime is"))
	case f.anonymous:
		return none(fmt.Errorf("--anonymous-auth=true is not supported; use --anonymous-auth=false"))
	case !f.webhook:
		return none(fmt.Errorf("--authentication-token-webhook=false is not supported; leave it out"))
	}
	if f.cloudProvider != "" && f.cloudProvider != "external" {
		return none(fmt.Errorf("--cloud-provider=%s is not supported; use external, or leave it out", f.cloudProvider))
	}
	if c.ExternalCloud = f.cloudProvider != ""; c.ExternalCloud && f.nodeIP != "" {
		c.ProvidedIPs = strings.Split(f.nodeIP, ",")
	}
	if err := oneOf("authorization-mode", f.authorization, "Webhook"); err != nil {
		return none(err)
	}
	if err := oneOf("cgroup-driver", f.cgroupDriver, "cgroupfs"); err != nil {
		return none(err)
	}
	name, err := hostname(f.hostname)
	if err != nil {
		return none(err)
	}
	c.NodeName = strings.ToLower(name)
	if c.NodeIPs, err = f.addresses(); err != nil {
		return none(err)
	}
	if c.Taints, err = taints("register-with-taints", f.taints); err != nil {
		return none(err)
	}
	c.Taints = append(c.Taints, f.registerTaints...)
	if c.Reserved, err = reserved(map[string]map[string]string{"system-reserved": f.systemReserve, "kube-reserved": f.kubeReserve}); err != nil {
		return none(err)
	}
	if err := f.policies.apply(&c.Config); err != nil {
		return none(err)
	}
	if err := f.serve(&c); err != nil {
		return none(err)
	}
	return c, f.connect(ctx, &c)
}

func (f *kubeletFlags) addresses() ([]string, error) {
	if f.nodeIP == "" {
		a, err := cluster.HostAddress()
		if err != nil {
			return nil, fmt.Errorf("%w; give --node-ip", err)
		}
		return []string{a.String()}, nil
	}
	out := strings.Split(f.nodeIP, ",")
	for _, s := range out {
		if _, err := netip.ParseAddr(s); err != nil {
			return nil, fmt.Errorf("--node-ip=%s is no IP address", s)
		}
	}
	return out, nil
}

// serve says where the kubelet serves, with which certificate, and to whom.
func (f *kubeletFlags) serve(c *cluster.KubeletConfig) error {
	a, err := netip.ParseAddr(f.address)
	if err != nil {
		return fmt.Errorf("--address=%s is no IP address", f.address)
	}
	if a == netip.IPv4Unspecified() {
		a = netip.IPv6Unspecified()
	}
	c.ListenAddr = netip.AddrPortFrom(a, uint16(f.port)).String()
	var ips []net.IP
	for _, s := range c.NodeIPs {
		ips = append(ips, net.ParseIP(s))
	}
	if !f.rotateServer || f.client.kubeconfig == "" {
		conf, err := f.serving.config(c.NodeName, ips...)
		if err != nil {
			return err
		}
		c.GetCertificate = cluster.Fixed(conf.Certificates[0])
	}
	if _, c.ClientCA, err = authorities("client-ca-file", f.clientCA); err != nil {
		return err
	}
	if f.healthzPort != 0 {
		c.Healthz = net.JoinHostPort(f.healthzAddress, strconv.Itoa(int(f.healthzPort)))
	}
	return nil
}

// connect makes the clients; without a kubeconfig the kubelet runs static pods only.
func (f *kubeletFlags) connect(ctx context.Context, c *cluster.KubeletConfig) error {
	if f.client.kubeconfig == "" {
		if f.bootstrap != "" {
			return fmt.Errorf("--bootstrap-kubeconfig needs --kubeconfig, the file that is made")
		}
		return nil
	}
	if f.bootstrap != "" {
		if err := cluster.BootstrapKubeconfig(ctx, f.bootstrap, f.client.kubeconfig, f.certDir, c.NodeName, c.Logger); err != nil {
			return err
		}
	}
	cfg, err := f.client.config()
	if err != nil {
		return err
	}
	if f.rotate || f.rotateServer {
		if err := c.Renew(f.certDir, cfg, f.rotate, f.rotateServer); err != nil {
			return err
		}
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	// Heartbeats have connections and limits of their own.
	heartbeat, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	c.Client, c.HeartbeatClient = client, heartbeat
	return nil
}

// taints reads key=value:effect and key:effect.
func taints(flag string, list []string) ([]corev1.Taint, error) {
	var out []corev1.Taint
	for _, s := range list {
		key, effect, ok := strings.Cut(s, ":")
		key, value, _ := strings.Cut(key, "=")
		e := corev1.TaintEffect(effect)
		if !ok || key == "" || !slices.Contains([]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}, e) {
			return nil, fmt.Errorf("--%s=%s is no taint such as key=value:NoSchedule", flag, s)
		}
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: e})
	}
	return out, nil
}

// reserved adds up what is kept back.
func reserved(flags map[string]map[string]string) (corev1.ResourceList, error) {
	sum := corev1.ResourceList{}
	for flag, list := range flags {
		for name, text := range list {
			q, err := resource.ParseQuantity(text)
			if err != nil || q.Sign() < 0 {
				return nil, fmt.Errorf("--%s: %s=%s is no amount", flag, name, text)
			}
			have := sum[corev1.ResourceName(name)]
			have.Add(q)
			sum[corev1.ResourceName(name)] = have
		}
	}
	return sum, nil
}
