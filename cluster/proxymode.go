package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/proxy"
	"github.com/skiff-k8s/skiff/proxy/iptables"
	"github.com/skiff-k8s/skiff/proxy/ipvs"
	"github.com/skiff-k8s/skiff/proxy/nftables"
	"github.com/skiff-k8s/skiff/proxy/nodeports"
)

// ProxyMode is what a proxy programs Services by.
type ProxyMode string

// The modes, as upstream names them.
const (
	ProxyNFTables ProxyMode = "nftables"
	ProxyIPTables ProxyMode = "iptables"
	ProxyIPVS     ProxyMode = "ipvs"
)

var proxyModes = []ProxyMode{ProxyNFTables, ProxyIPTables, ProxyIPVS}

// IPVSConfig is what the mode ipvs has besides.
type IPVSConfig struct {
	// Scheduler chooses among endpoints; empty: rr.
	Scheduler string
	// Exclude are ranges whose virtual services are others'.
	Exclude []netip.Prefix
	// StrictARP answers for an address on the link alone that has it.
	StrictARP bool
	// Timeouts of connections without traffic; 0 leaves the kernel's.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
}

// ParseProxyMode reads a mode; none is nftables.
func ParseProxyMode(s string) (ProxyMode, error) {
	if s == "" {
		return ProxyNFTables, nil
	}
	if m := ProxyMode(s); slices.Contains(proxyModes, m) {
		return m, nil
	}
	names := make([]string, len(proxyModes))
	for i, m := range proxyModes {
		names[i] = string(m)
	}
	return "", fmt.Errorf("%q is no mode of a proxy; there are %s", s, strings.Join(names, ", "))
}

// proxyRules are what a mode programs.
type proxyRules interface {
	proxy.Backend
	Families() []corev1.IPFamily
	// SetPrimary tells the addresses of the Node object; the next Apply takes them over.
	SetPrimary([]netip.Addr)
}

// watcher are rules that others may flush, or that have more to do than to be applied.
type watcher interface {
	// Watch calls refresh, until ctx ends, when Apply is to be called though no Service has changed.
	Watch(ctx context.Context, refresh func()) error
}

// rules makes what the mode programs.
func (c *ProxyConfig) rules() (proxyRules, error) {
	ports, err := nodeports.Parse(c.NodePorts)
	if err != nil {
		return nil, fmt.Errorf("addresses of node ports: %w", err)
	}
	switch c.Mode {
	case ProxyNFTables:
		return nftables.New(nftables.Config{Table: c.Table, ServiceCIDRs: c.ServiceCIDRs, PodCIDRs: c.PodCIDRs, NodePorts: ports,
			NodeIPs: c.NodeIPs, MasqueradeAll: c.MasqueradeAll, MasqueradeBit: c.MasqueradeBit, Logger: c.Logger})
	case ProxyIPTables:
		if err := iptables.Usable(); err != nil {
			return nil, fmt.Errorf("--proxy-mode=iptables: %w", err)
		}
		ipt := iptables.Config{ServiceCIDRs: c.ServiceCIDRs, PodCIDRs: c.PodCIDRs, NodePorts: ports, LocalhostNodePorts: c.LocalhostNodePorts,
			NodeIPs: c.NodeIPs, MasqueradeAll: c.MasqueradeAll, SyncPeriod: c.SyncPeriod, Logger: c.Logger}
		if c.MasqueradeBit != 0 {
			ipt.MasqueradeBit = &c.MasqueradeBit
		}
		return iptables.New(ipt)
	case ProxyIPVS:
		if err := errors.Join(iptables.Usable(), ipvs.Usable()); err != nil {
			return nil, fmt.Errorf("--proxy-mode=ipvs: %w", err)
		}
		c.Logger.Warn("the proxy mode ipvs is deprecated upstream and may go; the mode nftables does what it is for")
		v := ipvs.Config{ServiceCIDRs: c.ServiceCIDRs, PodCIDRs: c.PodCIDRs, NodePorts: ports, NodeIPs: c.NodeIPs, MasqueradeAll: c.MasqueradeAll,
			Scheduler: c.IPVS.Scheduler, Exclude: c.IPVS.Exclude, StrictARP: c.IPVS.StrictARP, TCPTimeout: c.IPVS.TCPTimeout,
			TCPFinTimeout: c.IPVS.TCPFinTimeout, UDPTimeout: c.IPVS.UDPTimeout, SyncPeriod: c.SyncPeriod, Logger: c.Logger}
		if c.MasqueradeBit != 0 {
			v.MasqueradeBit = &c.MasqueradeBit
		}
		return ipvs.New(v)
	}
	_, err = ParseProxyMode(string(c.Mode))
	return nil, err
}

// minSyncPeriod bounds how often a mode is programmed, unless it says otherwise: each
// change of iptables has a price of its own, whatever its size.
func minSyncPeriod(m ProxyMode) time.Duration {
	if m == ProxyIPTables {
		return time.Second
	}
	return 0
}

// proxyMode is that of the node's proxy.
func (c PodNetworkConfig) proxyMode() ProxyMode {
	if c.ProxyMode == "" {
		return ProxyNFTables
	}
	return c.ProxyMode
}

// OtherProxyModes are all but one: what a proxy that runs alone takes away, as upstream's does.
func OtherProxyModes(m ProxyMode) []ProxyMode {
	return slices.DeleteFunc(slices.Clone(proxyModes), func(o ProxyMode) bool { return o == m })
}

// sharing are those of some modes that have chains of a mode's names, and could not go without these.
func (m ProxyMode) sharing(modes []ProxyMode) (shared, others []ProxyMode) {
	for _, o := range modes {
		if m != ProxyNFTables && o != ProxyNFTables {
			shared = append(shared, o)
		} else {
			others = append(others, o)
		}
	}
	return shared, others
}

// removeModes takes away what proxies in these modes left.
func removeModes(modes []ProxyMode, table string) error {
	var errs []error
	for _, m := range modes {
		errs = append(errs, m.remove(table))
	}
	return errors.Join(errs...)
}

func (m ProxyMode) remove(table string) error {
	switch m {
	case ProxyIPTables:
		return iptables.Remove()
	case ProxyIPVS:
		return ipvs.Remove()
	}
	return nftables.Remove(table)
}

// RemoveProxyRules takes away what proxies that ran alone left in the kernel, in whatever mode.
func RemoveProxyRules(table string) error { return removeModes(proxyModes, table) }

// proxyModesFile lists the modes that a node's proxy has had whose rules may still be there. Rules of
// iptables do not say whose they are: only what is listed is taken away, so that another cluster's
// proxy on this host keeps its own.
func (p Paths) proxyModesFile() string { return filepath.Join(p.Run(), "proxy-modes") }

func (p Paths) proxyModes() ([]ProxyMode, error) {
	text, err := os.ReadFile(p.proxyModesFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read modes of the proxy: %w", err)
	}
	var out []ProxyMode
	for _, name := range strings.Fields(string(text)) {
		m, err := ParseProxyMode(name)
		if err != nil {
			return nil, fmt.Errorf("read modes of the proxy: %s: %w", p.proxyModesFile(), err)
		}
		out = append(out, m)
	}
	return out, nil
}

func (p Paths) noteProxyModes(modes ...ProxyMode) error {
	var text strings.Builder
	for _, m := range modes {
		text.WriteString(string(m) + "\n")
	}
	if err := writeIfChanged(p.proxyModesFile(), []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("note modes of the proxy: %w", err)
	}
	return nil
}

// removeProxyRules takes away what the node's proxy left, in all modes that it has had.
func (n *NodeConfig) removeProxyRules(p Paths) error {
	modes, err := p.proxyModes()
	return errors.Join(err, removeModes(append(modes, ProxyNFTables), n.servicesTable()))
}

// changeProxyMode notes that a node's proxy now has a mode. Those that it had before are to be removed; then
// forget is called.
func (p Paths) changeProxyMode(now ProxyMode) (former []ProxyMode, forget func() error, err error) {
	had, err := p.proxyModes()
	if err != nil {
		return nil, nil, err
	}
	former = slices.DeleteFunc(had, func(m ProxyMode) bool { return m == now })
	return former, func() error { return p.noteProxyModes(now) }, p.noteProxyModes(append([]ProxyMode{now}, former...)...)
}
