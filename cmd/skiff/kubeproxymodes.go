package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	proxyv1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/skiff-k8s/skiff/cluster"
)

// iptablesProxyFlags are those of the mode iptables.
type iptablesProxyFlags struct {
	localhost       bool
	period, minimum time.Duration
}

func (f *iptablesProxyFlags) bind(flags *pflag.FlagSet) {
	flags.BoolVar(&f.localhost, "iptables-localhost-nodeports", true, "in the mode iptables, open node ports at IPv4's loopback too, by the sysctl route_localnet")
	flags.DurationVar(&f.period, "iptables-sync-period", 30*time.Second, "in the mode iptables, how often to look whether somebody has flushed the rules")
	flags.DurationVar(&f.minimum, "iptables-min-sync-period", time.Second, "in the mode iptables, the least time between two changes of rules; 0: each change at once")
}

func (f *iptablesProxyFlags) set(c *cluster.ProxyConfig) error {
	c.LocalhostNodePorts = f.localhost
	var err error
	c.SyncPeriod, c.MinSyncPeriod, err = periods("iptables", f.period, f.minimum)
	return err
}

// read takes over what a configuration file says.
func (f *iptablesProxyFlags) read(file *proxyv1.KubeProxyIPTablesConfiguration) {
	if file.LocalhostNodePorts != nil {
		f.localhost = *file.LocalhostNodePorts
	}
	f.period, f.minimum = orElse(file.SyncPeriod.Duration, f.period), orElse(file.MinSyncPeriod.Duration, f.minimum)
}

// ipvsProxyFlags are those of the mode ipvs.
type ipvsProxyFlags struct {
	period, minimum  time.Duration
	scheduler        string
	exclude          []string
	strictARP        bool
	tcp, tcpFin, udp time.Duration
}

// ipvsSchedulers are the kernel's (net/netfilter/ipvs).
var ipvsSchedulers = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "fo", "ovf", "mh"}

func (f *ipvsProxyFlags) bind(flags *pflag.FlagSet) {
	flags.DurationVar(&f.period, "ipvs-sync-period", 30*time.Second, "in the mode ipvs, how often to look whether rules and the node's addresses are the same")
	flags.DurationVar(&f.minimum, "ipvs-min-sync-period", 0, "in the mode ipvs, the least time between two changes; 0: each change at once")
	flags.StringVar(&f.scheduler, "ipvs-scheduler", "", "in the mode ipvs, what chooses among endpoints; none: rr")
	flags.StringSliceVar(&f.exclude, "ipvs-exclude-cidrs", nil, "in the mode ipvs, ranges whose virtual services are left alone")
	flags.BoolVar(&f.strictARP, "ipvs-strict-arp", false, "in the mode ipvs, answer ARP for an address on the link alone that has it")
	flags.DurationVar(&f.tcp, "ipvs-tcp-timeout", 0, "in the mode ipvs, how long idle TCP connections are kept; 0: as the kernel has it")
	flags.DurationVar(&f.tcpFin, "ipvs-tcpfin-timeout", 0, "in the mode ipvs, how long TCP connections are kept after a FIN; 0: as the kernel has it")
	flags.DurationVar(&f.udp, "ipvs-udp-timeout", 0, "in the mode ipvs, how long idle UDP flows are kept; 0: as the kernel has it")
}

func (f *ipvsProxyFlags) set(c *cluster.ProxyConfig) (err error) {
	if c.SyncPeriod, c.MinSyncPeriod, err = periods("ipvs", f.period, f.minimum); err != nil {
		return err
	}
	if f.scheduler != "" && !slices.Contains(ipvsSchedulers, f.scheduler) {
		return fmt.Errorf("--ipvs-scheduler=%q is none of the kernel's: %s", f.scheduler, strings.Join(ipvsSchedulers, ", "))
	}
	for _, t := range []struct {
		name string
		is   time.Duration
	}{{"tcp", f.tcp}, {"tcpfin", f.tcpFin}, {"udp", f.udp}} {
		if t.is < 0 {
			return fmt.Errorf("--ipvs-%s-timeout=%s: must not be negative", t.name, t.is)
		}
	}
	c.IPVS = cluster.IPVSConfig{Scheduler: f.scheduler, StrictARP: f.strictARP, TCPTimeout: f.tcp, TCPFinTimeout: f.tcpFin, UDPTimeout: f.udp}
	c.IPVS.Exclude, err = prefixes("ipvs-exclude-cidrs", f.exclude)
	return err
}

// read takes over what a configuration file says.
func (f *ipvsProxyFlags) read(file *proxyv1.KubeProxyIPVSConfiguration) {
	f.period, f.minimum = orElse(file.SyncPeriod.Duration, f.period), orElse(file.MinSyncPeriod.Duration, f.minimum)
	f.scheduler, f.strictARP = orElse(file.Scheduler, f.scheduler), f.strictARP || file.StrictARP
	if len(file.ExcludeCIDRs) > 0 {
		f.exclude = file.ExcludeCIDRs
	}
	f.tcp, f.tcpFin, f.udp = orElse(file.TCPTimeout.Duration, f.tcp), orElse(file.TCPFinTimeout.Duration, f.tcpFin), orElse(file.UDPTimeout.Duration, f.udp)
}

// periods checks those of a mode.
func periods(mode string, period, minimum time.Duration) (time.Duration, *time.Duration, error) {
	switch {
	case period <= 0:
		return 0, nil, fmt.Errorf("--%s-sync-period=%s: must be more than 0", mode, period)
	case minimum < 0 || minimum > period:
		return 0, nil, fmt.Errorf("--%s-min-sync-period=%s: must be between 0 and --%s-sync-period (%s)", mode, minimum, mode, period)
	}
	return period, &minimum, nil
}

// masquerading takes over what a configuration file says of the mode's masquerading. Upstream has
// the same settings for iptables and ipvs.
func (f *proxyFlags) masquerading(file *proxyv1.KubeProxyConfiguration) {
	all, bit := file.NFTables.MasqueradeAll, file.NFTables.MasqueradeBit
	if mode, err := cluster.ParseProxyMode(f.mode); err == nil && mode != cluster.ProxyNFTables {
		all, bit = file.IPTables.MasqueradeAll, file.IPTables.MasqueradeBit
	}
	f.masqueradeAll = f.masqueradeAll || all
	if bit != nil {
		f.masqueradeBit = uint8(min(uint32(*bit), 255))
	}
}
