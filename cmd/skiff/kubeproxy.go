package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	proxyv1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/proxy/nodeports"
)

// proxyTable is the name of the tables of a proxy that runs alone.
const proxyTable = "skiff-services"

// proxyFlags are the flags of skiff kube-proxy.
type proxyFlags struct {
	client           client
	file             string
	hostname         string
	mode             string
	clusterCIDR      string
	nodePorts        []string
	masqueradeAll    bool
	masqueradeBit    uint8
	iptables         iptablesProxyFlags
	ipvs             ipvsProxyFlags
	healthz, metrics string
	cleanup          bool
	profiling        bool
}

var proxyAccepted = []others{
	{"each change is programmed at once, by itself", "config-sync-period"},
	{"connection tracking stays as the host has it", "conntrack-max-per-core conntrack-min conntrack-tcp-be-liberal? conntrack-tcp-timeout-close-wait conntrack-tcp-timeout-established conntrack-udp-timeout conntrack-udp-timeout-stream"},
	{"the process keeps the score that it was started with", "oom-score-adj"},
	{"the families are those of the service CIDR", "bind-address"},
	{"the proxy goes on without its health port", "bind-address-hard-fail?"},
	{"pods' traffic is told from others' by the cluster CIDR", "detect-local-mode"},
	{"features are at the defaults of the version that is served", "feature-gates"},
	{"metrics are served as they are", "show-hidden-metrics-for-version"},
}

var proxyRefused = []others{
	{"pods' traffic is told from others' by the cluster CIDR", "pod-bridge-interface pod-interface-name-prefix"},
	{"the configuration is not written", "write-config-to"},
	{"the node needs no start of its own", "init-only?"},
}

func kubeProxyCommand() *cobra.Command {
	return component{
		name: "kube-proxy", short: "Run a proxy alone, with upstream's flags",
		accepted: proxyAccepted, refused: proxyRefused,
		bind: func(flags *pflag.FlagSet) func(*cobra.Command, *slog.Logger) error {
			var f proxyFlags
			f.bind(flags)
			return func(cmd *cobra.Command, log *slog.Logger) error {
				if f.cleanup {
					return cluster.RemoveProxyRules(proxyTable)
				}
				c, err := f.config(log)
				if err != nil {
					return err
				}
				return cluster.RunProxy(cmd.Context(), c)
			}
		},
	}.command()
}

func (f *proxyFlags) bind(flags *pflag.FlagSet) {
	f.client.bind(flags, 5, 10)
	f.client.bindMaster(flags)
	flags.StringVar(&f.file, "config", "", "KubeProxyConfiguration file; its settings count for more than flags")
	flags.StringVar(&f.hostname, "hostname-override", "", "name of the node; none: the host's")
	flags.StringVar(&f.mode, "proxy-mode", "nftables", "what Services are programmed by: nftables, iptables or ipvs, which upstream has deprecated (docs/services.md)")
	flags.StringVar(&f.clusterCIDR, "cluster-cidr", "", "CIDR of pods, one a family; others' traffic to cluster IPs is masqueraded")
	flags.StringSliceVar(&f.nodePorts, "nodeport-addresses", nil, "CIDRs of addresses at which node ports are open, and keywords for such: primary (the Node object's), all, localhost (which the mode nftables can not serve); none: primary in the mode nftables, all in others")
	f.iptables.bind(flags)
	f.ipvs.bind(flags)
	flags.BoolVar(&f.masqueradeAll, "masquerade-all", false, "have all traffic to cluster IPs come from the node")
	flags.Uint8Var(&f.masqueradeBit, "iptables-masquerade-bit", 14, "bit of the packet mark for what is to be masqueraded")
	flags.StringVar(&f.healthz, "healthz-bind-address", "0.0.0.0:10256", "address of /healthz; empty: none")
	flags.StringVar(&f.metrics, "metrics-bind-address", "127.0.0.1:10249", "address of /metrics; empty: none")
	flags.BoolVar(&f.profiling, "profiling", false, "serve profiles of the process below /debug/pprof/, beside its metrics")
	flags.BoolVar(&f.cleanup, "cleanup", false, "take the rules away and end")
}

func (f *proxyFlags) config(log *slog.Logger) (cluster.ProxyConfig, error) {
	none := func(err error) (cluster.ProxyConfig, error) { return cluster.ProxyConfig{}, err }
	if f.file != "" {
		if err := f.read(log); err != nil {
			return none(err)
		}
	}
	mode, err := cluster.ParseProxyMode(f.mode)
	if err != nil {
		return none(fmt.Errorf("--proxy-mode: %w", err))
	}
	if len(f.nodePorts) == 0 && mode == cluster.ProxyNFTables {
		f.nodePorts = []string{"primary"}
	}
	if f.masqueradeBit > 31 {
		return none(fmt.Errorf("--iptables-masquerade-bit=%d is none of the 32 bits of a mark, 0 to 31", f.masqueradeBit))
	}
	if _, err := nodeports.Parse(f.nodePorts); err != nil {
		return none(fmt.Errorf("--nodeport-addresses: %w", err))
	}
	c := cluster.ProxyConfig{Mode: mode, Former: cluster.OtherProxyModes(mode), Table: proxyTable, NodePorts: f.nodePorts, MasqueradeAll: f.masqueradeAll, MasqueradeBit: f.masqueradeBit, Profiling: f.profiling, Logger: log}
	switch mode {
	case cluster.ProxyIPTables:
		err = f.iptables.set(&c)
	case cluster.ProxyIPVS:
		err = f.ipvs.set(&c)
	}
	if err != nil {
		return none(err)
	}
	if c.PodCIDRs, err = prefixes("cluster-cidr", strings.FieldsFunc(f.clusterCIDR, func(r rune) bool { return r == ',' })); err != nil {
		return none(err)
	}
	if c.NodeName, err = hostname(f.hostname); err != nil {
		return none(err)
	}
	c.NodeName = strings.ToLower(c.NodeName)
	if c.Healthz, err = withPort("healthz-bind-address", f.healthz, 10256); err != nil {
		return none(err)
	}
	if c.Metrics, err = withPort("metrics-bind-address", f.metrics, 10249); err != nil {
		return none(err)
	}
	cfg, err := f.client.config()
	if err != nil {
		return none(err)
	}
	if c.Client, err = kubernetes.NewForConfig(cfg); err != nil {
		return none(fmt.Errorf("--kubeconfig: %w", err))
	}
	return c, nil
}

// withPort adds a port to an address that has none.
func withPort(name, address string, port int) (string, error) {
	if address == "" {
		return "", nil
	}
	if ip, err := netip.ParseAddr(address); err == nil {
		return netip.AddrPortFrom(ip, uint16(port)).String(), nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return "", fmt.Errorf("--%s=%s is neither an IP address nor address:port", name, address)
	}
	return address, nil
}

// read takes over what a configuration file says.
func (f *proxyFlags) read(log *slog.Logger) error {
	var file proxyv1.KubeProxyConfiguration
	if err := readConfig(f.file, "kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration", &file); err != nil {
		return err
	}
	conn := file.ClientConnection
	f.client.kubeconfig = orElse(conn.Kubeconfig, f.client.kubeconfig)
	f.client.qps, f.client.burst = orElse(conn.QPS, f.client.qps), orElse(int(conn.Burst), f.client.burst)
	f.client.contentType = orElse(conn.ContentType, f.client.contentType)
	f.hostname = orElse(file.HostnameOverride, f.hostname)
	f.mode = orElse(string(file.Mode), f.mode)
	f.clusterCIDR = orElse(file.ClusterCIDR, f.clusterCIDR)
	f.profiling = f.profiling || file.EnableProfiling
	f.iptables.read(&file.IPTables)
	f.ipvs.read(&file.IPVS)
	f.masquerading(&file)
	if len(file.NodePortAddresses) > 0 {
		f.nodePorts = file.NodePortAddresses
	}
	f.healthz, f.metrics = orElse(file.HealthzBindAddress, f.healthz), orElse(file.MetricsBindAddress, f.metrics)
	for _, r := range []struct {
		field string
		set   bool
	}{
		{"detectLocal.bridgeInterface", file.DetectLocal.BridgeInterface != ""},
		{"detectLocal.interfaceNamePrefix", file.DetectLocal.InterfaceNamePrefix != ""},
		{"windowsRunAsService", file.WindowsRunAsService},
	} {
		if r.set {
			return fmt.Errorf("--config: %s: %s is not supported; leave it out", f.file, r.field)
		}
	}
	if len(file.FeatureGates) > 0 {
		log.Warn("setting has no effect", "field", "featureGates", "because", "features are at the defaults of the version that is served")
	}
	return nil
}
