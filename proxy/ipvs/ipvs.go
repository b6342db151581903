// Package ipvs programs Services as virtual services of the kernel's load balancer IPVS, with
// the ipsets, chains and device of upstream's kube-proxy in its mode of that name.
//
// Rules of iptables masquerade and filter by sets; they are the same whatever Services there are. Upstream
// has deprecated the mode: what it was for, many Services, nftables does as well.
//
// Owns: its sets, chains and device, and all virtual services but those of excluded ranges. Must not: watch
// anything of the API, decide what a Service means (proxy does).
package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/host/iptables"
	host "github.com/skiff-k8s/skiff/host/ipvs"
	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/proxy"
	"github.com/skiff-k8s/skiff/proxy/nodeports"
)

// device carries the addresses of Services: what is sent to them is for this host, where IPVS takes it.
const device = "kube-ipvs0"

// Defaults of kube-proxy.
const (
	masqueradeBit = 14
	scheduler     = "rr"
	syncPeriod    = 30 * time.Second
)

// Config configures a Backend.
type Config struct {
	// ServiceCIDRs and PodCIDRs of the cluster, of pods at most one a family.
	ServiceCIDRs, PodCIDRs []netip.Prefix
	// NodePorts says at which addresses node ports are open.
	NodePorts nodeports.Where
	// MasqueradeAll has all traffic to cluster IPs come from the node.
	MasqueradeAll bool
	// MasqueradeBit of the packet mark; nil: the default.
	MasqueradeBit *uint8
	// NodeIPs are the node's own, which a load balancer's sources may admit.
	NodeIPs []netip.Addr
	// Scheduler chooses among endpoints; empty: rr.
	Scheduler string
	// Exclude are ranges whose virtual services are others'.
	Exclude []netip.Prefix
	// StrictARP answers for an address on the link alone that has it.
	StrictARP bool
	// Timeouts of connections without traffic; 0 leaves the kernel's.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
	// SyncPeriod is how often to look whether rules and addresses are still the same; 0: the default.
	SyncPeriod time.Duration
	// ProcSys is where sysctls are; empty is /proc/sys.
	ProcSys string
	// Clock; nil: the real one.
	Clock  clock.WithTicker
	Logger *slog.Logger
}

// Backend implements proxy.Backend.
type Backend struct {
	cfg Config

	mu       sync.Mutex // of all below: Watch works on what Apply does
	families []*family
	handle   *host.Handle
	primary  []netip.Addr
	moved    bool
}

// New makes a Backend for the families of the service CIDRs. It touches nothing.
func New(cfg Config) (*Backend, error) {
	if len(cfg.ServiceCIDRs) == 0 {
		return nil, errors.New("ipvs proxy needs a service CIDR")
	}
	if cfg.Scheduler == "" {
		cfg.Scheduler = scheduler
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
		of := func(p netip.Prefix) bool { return p.Addr().Is6() == v6 }
		if !slices.ContainsFunc(cfg.ServiceCIDRs, of) {
			continue
		}
		s := scene{v6: v6, scheduler: cfg.Scheduler, nodePorts: cfg.NodePorts, masqueradeBy: 1 << bit, masqueradeIn: cfg.MasqueradeAll, exclude: cfg.Exclude}
		if i := slices.IndexFunc(cfg.PodCIDRs, of); i >= 0 {
			s.pods = cfg.PodCIDRs[i]
		}
		b.families = append(b.families, &family{scene: s, log: cfg.Logger, sets: sets(v6), ports: map[string][]proxy.Port{}, leaving: map[lead]bool{}, resting: map[lead]bool{}})
	}
	return b, nil
}

// Families are those that there are virtual services of.
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
	defer b.mu.Unlock()
	for _, f := range b.families {
		if b.moved {
			f.held = nil
		}
	}
	b.moved = false
	if err := b.prepare(); err != nil {
		for _, f := range b.families {
			f.note(changed)
			f.held = nil
		}
		return err
	}
	var errs []error
	for _, f := range b.families {
		errs = append(errs, f.apply(b.handle, changed))
	}
	return errors.Join(errs...)
}

// prepare opens what is needed; before all is compared with the kernel, it looks which addresses there
// are and sets sysctls.
func (b *Backend) prepare() error {
	if b.handle == nil {
		variant, err := iptables.Detect()
		if err != nil {
			return err
		}
		if b.handle, err = host.Open(); err != nil {
			return err
		}
		for _, f := range b.families {
			f.tool = iptables.New(variant, f.scene.v6)
		}
		if b.cfg.TCPTimeout > 0 || b.cfg.TCPFinTimeout > 0 || b.cfg.UDPTimeout > 0 {
			if err := b.handle.SetTimeouts(b.cfg.TCPTimeout, b.cfg.TCPFinTimeout, b.cfg.UDPTimeout); err != nil {
				b.cfg.Logger.Warn("connections keep their timeouts", "err", err)
			}
		}
	}
	if !slices.ContainsFunc(b.families, func(f *family) bool { return f.held == nil }) {
		return nil
	}
	if err := netlink.EnsureDummy(device); err != nil {
		return err
	}
	// Masquerading needs connection tracking; an endpoint that is gone must not keep its clients.
	set := [][2]string{{"vs/conntrack", "1"}, {"vs/expire_nodest_conn", "1"}, {"vs/expire_quiescent_template", "1"}, {"ip_forward", "1"}}
	if b.cfg.StrictARP {
		set = append(set, [2]string{"conf/all/arp_ignore", "1"}, [2]string{"conf/all/arp_announce", "2"})
	}
	for _, kv := range set {
		if err := os.WriteFile(filepath.Join(b.cfg.ProcSys, "net/ipv4", kv[0]), []byte(kv[1]), 0o644); err != nil {
			return fmt.Errorf("set sysctl net/ipv4/%s: %w", kv[0], err)
		}
	}
	for _, f := range b.families {
		if err := b.look(f); err != nil {
			return err
		}
	}
	return nil
}

// look finds out at which addresses node ports are open.
func (b *Backend) look(f *family) error {
	all, err := netlink.Addresses(device, true)
	if err != nil {
		return err
	}
	s := &f.scene
	s.node, s.local, s.open = nil, nil, nil
	for _, a := range b.primary {
		if a.Is6() == s.v6 {
			s.node = append(s.node, a)
		}
	}
	for _, a := range all {
		if a.Is6() != s.v6 || a.IsLoopback() || a.IsLinkLocalUnicast() || slices.Contains(s.local, a) {
			continue
		}
		s.local = append(s.local, a)
		if s.nodePorts.Everywhere(s.v6) || s.nodePorts.Primary && slices.Contains(s.node, a) ||
			slices.ContainsFunc(s.nodePorts.Prefixes(s.v6), func(p netip.Prefix) bool { return p.Contains(a) }) {
			s.open = append(s.open, a)
		}
	}
	slices.SortFunc(s.local, netip.Addr.Compare)
	slices.SortFunc(s.open, netip.Addr.Compare)
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

// Watch looks after rules, addresses and destinations that leave until ctx ends, and calls refresh, which is
// to have Apply called, when they are no longer what they were.
func (b *Backend) Watch(ctx context.Context, refresh func()) error {
	tick := b.cfg.Clock.NewTicker(b.cfg.SyncPeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C():
		case <-ctx.Done():
			return nil
		}
		if b.changed() {
			refresh()
		}
	}
}

func (b *Backend) changed() (yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.families {
		if f.held == nil {
			continue
		}
		if err := f.finish(b.handle); err != nil {
			b.cfg.Logger.Warn("take away endpoints that have left", "err", err)
		}
		was := slices.Clone(f.scene.local)
		has, err := f.tool.Has("filter", canary)
		if err == nil {
			err = b.look(f)
		}
		if err != nil {
			b.cfg.Logger.Warn("look after rules and addresses", "err", err)
			continue
		}
		if !has || !slices.Equal(was, f.scene.local) {
			b.cfg.Logger.Info("rules or addresses are no longer the same", "flushed", !has)
			f.held, yes = nil, true
		}
	}
	return yes
}

// Usable tells what the kernel lacks.
func Usable() error {
	h, err := host.Open()
	if err != nil {
		return err
	}
	h.Close()
	return nil
}

// Remove takes away what a proxy in this mode left: virtual services, sets, rules and the device. Without the
// device there is nothing: the mode iptables has chains of the same names.
func Remove() error {
	if there, err := netlink.HasLink(device); err != nil || !there {
		return err
	}
	var errs []error
	for _, v := range iptables.Installed() {
		for _, v6 := range []bool{false, true} {
			if err := unload(iptables.New(v, v6)); err != nil {
				errs = append(errs, fmt.Errorf("iptables, variant %s, IPv6 %t: %w", v, v6, err))
			}
		}
	}
	for _, v6 := range []bool{false, true} {
		for _, s := range sets(v6) {
			errs = append(errs, s.Destroy())
		}
	}
	carried, err := netlink.Addresses(device, false)
	errs = append(errs, err)
	if h, err := host.Open(); err == nil { // else there are none
		defer h.Close()
		there, err := h.Services()
		errs = append(errs, err)
		for at := range there {
			// Those of node ports are at the host's own addresses.
			if slices.Contains(carried, at.At.Addr()) || isLocal(at.At.Addr()) {
				errs = append(errs, h.Delete(at))
			}
		}
	}
	return errors.Join(append(errs, netlink.RemoveLink(device))...)
}

func isLocal(a netip.Addr) bool {
	all, err := netlink.Addresses(device, true)
	return err == nil && slices.Contains(all, a)
}
