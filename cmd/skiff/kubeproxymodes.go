package main

import (
	"fmt"
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
