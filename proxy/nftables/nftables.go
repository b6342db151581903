// Package nftables programs Services as elements of a few maps in one nftables table per
// address family: the rules are the same for one Service and for ten thousand, and one
// changed endpoint changes a handful of elements.
//
// Owns: its tables. Must not: watch anything, decide what a Service means (proxy does).
package nftables

import (
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/host/nft"
	"github.com/skiff-k8s/skiff/proxy"
)

// masqueradeBit is kube-proxy's default (--iptables-masquerade-bit 14).
const masqueradeBit = 14

// Config configures a Backend.
type Config struct {
	// Table is the name of the tables, one a family.
	Table string
	// ServiceCIDRs and PodCIDRs of the cluster, of pods at most one a family. There is a
	// table for each family of ServiceCIDRs.
	ServiceCIDRs, PodCIDRs []netip.Prefix
	// NodePorts says at which addresses node ports are open.
	NodePorts Where
	// MasqueradeAll has all traffic to cluster IPs come from the node.
	MasqueradeAll bool
	// MasqueradeBit of the packet mark; 0: the default.
	MasqueradeBit uint8
	// NodeIPs are the node's own, which a load balancer's sources may admit.
	NodeIPs []netip.Addr
	Logger  *slog.Logger
}

// Backend implements proxy.Backend.
type Backend struct {
	families []*family

	mu      sync.Mutex
	primary []netip.Addr
	moved   bool // primary has changed
}

// New makes a Backend for the families of the service CIDRs. It touches nothing; the
// first Apply replaces what an earlier process left, in one step.
func New(cfg Config) (*Backend, error) {
	if cfg.Table == "" || len(cfg.ServiceCIDRs) == 0 {
		return nil, errors.New("nftables proxy needs a table name and a service CIDR")
	}
	bit := cfg.MasqueradeBit
	if bit == 0 {
		bit = masqueradeBit
	}
	b := &Backend{primary: cfg.NodeIPs}
	for _, v6 := range []bool{false, true} {
		s := scene{v6: v6, nodePorts: cfg.NodePorts, masqueradeBy: 1 << bit, masqueradeIn: cfg.MasqueradeAll}
		for _, p := range cfg.ServiceCIDRs {
			if p.Addr().Is6() == v6 {
				s.services = append(s.services, p)
			}
		}
		for _, p := range cfg.PodCIDRs {
			if p.Addr().Is6() == v6 {
				s.pods = p
			}
		}
		if len(s.services) > 0 {
			b.families = append(b.families, newFamily(s, cfg.Table, cfg.Logger))
		}
	}
	return b, nil
}

// Families are those that there are tables of.
func (b *Backend) Families() (out []corev1.IPFamily) {
	for _, f := range b.families {
		if f.scene.v6 {
			out = append(out, corev1.IPv6Protocol)
		} else {
			out = append(out, corev1.IPv4Protocol)
		}
	}
	return out
}

// Remove takes the tables away.
func Remove(table string) error {
	return errors.Join(nft.Remove(nft.IPv4, table), nft.Remove(nft.IPv6, table))
}

// SetPrimary tells the addresses of the Node object; the next Apply takes them over.
func (b *Backend) SetPrimary(ips []netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.primary, b.moved = ips, true
}

// Apply implements proxy.Backend.
func (b *Backend) Apply(changed map[string][]proxy.Port) error {
	b.mu.Lock()
	primary, moved := b.primary, b.moved
	b.moved = false
	b.mu.Unlock()
	var errs []error
	for _, f := range b.families {
		if moved {
			f.held = nil
		}
		f.primary = nil
		for _, a := range primary {
			if a.Is6() == f.scene.v6 {
				f.primary = append(f.primary, a)
			}
		}
		errs = append(errs, f.apply(changed))
	}
	return errors.Join(errs...)
}

// NodePortAddresses implements proxy.Backend.
func (b *Backend) NodePortAddresses(v6 bool) ([]netip.Addr, error) {
	for _, f := range b.families {
		if f.scene.v6 != v6 || f.scene.nodePorts.Everywhere(v6) {
			continue
		}
		b.mu.Lock()
		primary := b.primary
		b.mu.Unlock()
		return f.scene.nodePorts.Addresses(v6, primary)
	}
	return nil, nil
}
