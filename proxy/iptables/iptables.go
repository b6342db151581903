// Package iptables programs Services as rules of iptables, with the chains that upstream's
// kube-proxy makes in its mode of that name, by iptables-restore: what users and network
// plugins know, and what every kernel has.
//
// A change rewrites the chains of the ports that it is about, and takes single rules out of the
// chains that all ports share. All is written anew when that fails, when the canary is gone
// (somebody has flushed the tables) and at the start.
//
// Owns: its chains. Must not: watch anything of the API, decide what a Service means (proxy does).
package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/host/iptables"
	"github.com/skiff-k8s/skiff/proxy"
	"github.com/skiff-k8s/skiff/proxy/nodeports"
)

// masqueradeBit is kube-proxy's default (--iptables-masquerade-bit 14).
const masqueradeBit = 14

// syncPeriod is kube-proxy's default (--iptables-sync-period 30s).
const syncPeriod = 30 * time.Second

// Config configures a Backend.
type Config struct {
	// ServiceCIDRs and PodCIDRs of the cluster, of pods at most one a family. Rules are made for
	// each family of ServiceCIDRs.
	ServiceCIDRs, PodCIDRs []netip.Prefix
	// NodePorts says at which addresses node ports are open; LocalhostNodePorts opens them at
	// loopback too, if it is one of these: of IPv4 alone, by the sysctl route_localnet.
	NodePorts          nodeports.Where
	LocalhostNodePorts bool
	// MasqueradeAll has all traffic to cluster IPs come from the node.
	MasqueradeAll bool
	// MasqueradeBit of the packet mark; nil: the default.
	MasqueradeBit *uint8
	// NodeIPs are the node's own, which a load balancer's sources may admit.
	NodeIPs []netip.Addr
	// SyncPeriod is how often the canary is looked for; 0: the default.
	SyncPeriod time.Duration
	// Variant of the programs; nil: the one that the host uses.
	Variant *iptables.Variant
	// ProcSys is where sysctls are; empty is /proc/sys.
	ProcSys string
	// Clock; nil: the real one.
	Clock  clock.WithTicker
	Logger *slog.Logger
}

// Backend implements proxy.Backend.
type Backend struct {
	cfg      Config
	families []*family

	mu      sync.Mutex
	primary []netip.Addr
	moved   bool // primary has changed
	flushed bool // the canary is gone
	loaded  bool // all families
}

// New makes a Backend for the families of the service CIDRs. It touches nothing.
func New(cfg Config) (*Backend, error) {
	if len(cfg.ServiceCIDRs) == 0 {
		return nil, errors.New("iptables proxy needs a service CIDR")
	}
	if cfg.SyncPeriod == 0 {
		cfg.SyncPeriod = syncPeriod
	}
	if cfg.ProcSys == "" {
		cfg.ProcSys = "/proc/sys"
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	bit := uint8(masqueradeBit)
	if cfg.MasqueradeBit != nil {
		bit = *cfg.MasqueradeBit
	}
	b := &Backend{cfg: cfg, primary: cfg.NodeIPs}
	for _, v6 := range []bool{false, true} {
		s := scene{v6: v6, nodePorts: cfg.NodePorts, masqueradeBy: 1 << bit, masqueradeIn: cfg.MasqueradeAll,
			localhost: cfg.LocalhostNodePorts && !v6 && atLoopback(cfg.NodePorts)}
		for _, p := range cfg.PodCIDRs {
			if p.Addr().Is6() == v6 {
				s.pods = p
			}
		}
		for _, p := range cfg.ServiceCIDRs {
			if p.Addr().Is6() == v6 {
				b.families = append(b.families, &family{scene: s, log: cfg.Logger, ports: map[string][]proxy.Port{}})
				break
			}
		}
	}
	return b, nil
}

// atLoopback tells whether node ports are to be open at an address of IPv4's loopback.
func atLoopback(w nodeports.Where) bool {
	if w.Everywhere(false) {
		return true
	}
	for _, p := range w.Prefixes(false) {
		if p.Overlaps(netip.MustParsePrefix("127.0.0.0/8")) {
			return true
		}
	}
	return false
}

// Families are those that there are rules of.
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

// SetPrimary tells the addresses of the Node object; the next Apply takes them over.
func (b *Backend) SetPrimary(ips []netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.primary, b.moved = ips, true
}

// Apply implements proxy.Backend.
func (b *Backend) Apply(changed map[string][]proxy.Port) error {
	b.mu.Lock()
	primary, anew := b.primary, b.moved || b.flushed
	b.moved, b.flushed = false, false
	b.mu.Unlock()
	if err := b.prepare(); err != nil {
		for _, f := range b.families {
			f.note(changed)
			f.held = f.held && !anew
		}
		return err
	}
	var errs []error
	for _, f := range b.families {
		if anew {
			f.held = false
		}
		f.scene.node = nil
		for _, a := range primary {
			if a.Is6() == f.scene.v6 {
				f.scene.node = append(f.scene.node, a)
			}
		}
		errs = append(errs, f.apply(changed))
	}
	err := errors.Join(errs...)
	b.mu.Lock()
	b.loaded = err == nil
	b.mu.Unlock()
	return err
}

// prepare chooses the programs and, before rules are written anew, reads and sets sysctls.
func (b *Backend) prepare() error {
	if b.families[0].tool == nil {
		v, err := iptables.Plain, error(nil)
		if b.cfg.Variant != nil {
			v = *b.cfg.Variant
		} else if v, err = iptables.Detect(); err != nil {
			return err
		}
		b.cfg.Logger.Info("iptables of the host", "variant", v)
		for _, f := range b.families {
			f.tool = iptables.New(v, f.scene.v6)
		}
	}
	for _, f := range b.families {
		if f.held {
			continue
		}
		liberal, err := os.ReadFile(filepath.Join(b.cfg.ProcSys, "net/netfilter/nf_conntrack_tcp_be_liberal"))
		f.scene.liberal = err == nil && len(liberal) > 0 && liberal[0] != '0'
		if !f.scene.localhost {
			continue
		}
		if err := os.WriteFile(filepath.Join(b.cfg.ProcSys, "net/ipv4/conf/all/route_localnet"), []byte("1"), 0o644); err != nil {
			return fmt.Errorf("open node ports at loopback (--iptables-localhost-nodeports=false goes without): %w", err)
		}
	}
	return nil
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

// Watch looks for the canary until ctx ends, and calls refresh, which is to have Apply called,
// when somebody has taken it away with the rules.
func (b *Backend) Watch(ctx context.Context, refresh func()) error {
	tick := b.cfg.Clock.NewTicker(b.cfg.SyncPeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C():
		case <-ctx.Done():
			return nil
		}
		b.mu.Lock()
		loaded := b.loaded && !b.flushed
		b.mu.Unlock()
		if !loaded {
			continue
		}
		for _, f := range b.families {
			gone, err := f.flushed()
			if err != nil {
				b.cfg.Logger.Warn("look for the canary", "err", err)
				continue
			}
			if gone == "" {
				continue
			}
			b.cfg.Logger.Warn("somebody has flushed the rules; writing them anew", "table", gone)
			b.mu.Lock()
			b.flushed = true
			b.mu.Unlock()
			refresh()
			break
		}
	}
}
