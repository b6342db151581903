// Package bridge is the built-in pod network of one node: a bridge whose address is
// every pod's gateway, a veth pair per pod, and addresses from the node's pod CIDRs.
//
// Pods hold their address as a host route and reach everything, each other included,
// through the gateway. The host therefore routes each packet, connection tracking
// sees both directions of a Service's traffic, and br_netfilter is not needed.
//
// Owns: the bridge, host sides of veths, the address book under StateDir. Must not:
// know Services, CRI or the API; touch links that it did not make.
package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/host/nft"
)

// Config configures a Bridge.
type Config struct {
	// Name of the bridge link, at most 6 bytes: ports are called Name-xxxxxxxx.
	Name string
	// StateDir keeps the address book; it must survive a restart of the process.
	StateDir string
	// MTU of bridge and ports until SetMTU says another; 0 is the kernel's default.
	MTU int
	// ClusterCIDRs are all pods' addresses: what leaves them gets the node's address. None:
	// nothing is rewritten.
	ClusterCIDRs []netip.Prefix
	// AddressOnly is what SetAddressOnly says at first.
	AddressOnly bool
	// ProcSys is where sysctls are; empty is /proc/sys.
	ProcSys string
	Logger  *slog.Logger
}

// Bridge attaches sandboxes. Safe for concurrent use.
type Bridge struct {
	cfg  Config
	mu   sync.RWMutex
	pool *pool // nil until the pod CIDRs are known
	mtu  int   // of new ports
	// addressOnly: see SetAddressOnly.
	addressOnly bool
}

// ErrNoPodCIDR says that the node has no pod CIDR yet.
var ErrNoPodCIDR = errors.New("the node has no pod CIDR yet (spec.podCIDR is empty); the node-ipam controller assigns it")

// New checks the configuration and takes up the address book of an earlier process.
func New(cfg Config) (*Bridge, error) {
	if cfg.Name == "" || len(cfg.Name) > maxBridgeName {
		return nil, fmt.Errorf("bridge name %q must have 1 to %d bytes", cfg.Name, maxBridgeName)
	}
	if cfg.ProcSys == "" {
		cfg.ProcSys = "/proc/sys"
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make network state directory: %w", err)
	}
	b := &Bridge{cfg: cfg, mtu: cfg.MTU, addressOnly: cfg.AddressOnly}
	text, err := os.ReadFile(b.cidrFile())
	if errors.Is(err, os.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pod CIDRs of the last run: %w", err)
	}
	var cidrs []netip.Prefix
	for _, s := range strings.Fields(string(text)) {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("read pod CIDRs of the last run from %s: %w", b.cidrFile(), err)
		}
		cidrs = append(cidrs, p)
	}
	return b, b.SetPodCIDRs(cidrs)
}

// SetPodCIDRs gives the pod CIDRs of the node, at most one a family, and makes the
// bridge. Called again with the same CIDRs it repairs the bridge.
func (b *Bridge) SetPodCIDRs(cidrs []netip.Prefix) error {
	if len(cidrs) == 0 {
		return ErrNoPodCIDR
	}
	gateways := make([]netip.Prefix, len(cidrs))
	for i, c := range cidrs {
		gateways[i] = netip.PrefixFrom(c.Masked().Addr().Next(), c.Bits())
	}
	b.mu.RLock()
	mtu, addressOnly := b.mtu, b.addressOnly
	b.mu.RUnlock()
	if addressOnly {
		for i, g := range gateways {
			gateways[i] = netip.PrefixFrom(g.Addr(), g.Addr().BitLen())
		}
	}
	if err := b.forward(cidrs); err != nil {
		return err
	}
	link := netlink.Bridge{Name: b.cfg.Name, MTU: mtu, Addresses: gateways}
	if has6(cidrs) {
		link.Prepare = b.sysctls6
	}
	if err := netlink.EnsureBridge(link); err != nil {
		return err
	}
	if err := b.setSysctls(); err != nil {
		return err
	}
	outgoing := cidrs
	if addressOnly {
		outgoing = nil
	}
	if err := b.masquerade(outgoing); err != nil {
		return err
	}
	p, err := openPool(filepath.Join(b.cfg.StateDir, "addresses"), cidrs)
	if err != nil {
		return err
	}
	if err := writeFile(b.cidrFile(), joinPrefixes(cidrs)); err != nil {
		return fmt.Errorf("keep pod CIDRs: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pool = p
	return nil
}

func familyOf(p netip.Prefix) nft.Family {
	if p.Addr().Is6() {
		return nft.IPv6
	}
	return nft.IPv4
}

// SetMTU says what MTU new sandboxes' links have. The bridge follows by itself: the kernel gives it the
// least of its ports', so that no packet which it routes is too big for one.
func (b *Bridge) SetMTU(mtu int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mtu = mtu
}

// SetAddressOnly says whether others connect new sandboxes, maybe with addresses of the pod CIDR. The
// bridge then keeps its own addresses, at which the node serves, but leaves to them what leads to the
// pods and out. It does not while it has sandboxes of its own.
func (b *Bridge) SetAddressOnly(only bool) error {
	b.mu.RLock()
	same, p := b.addressOnly == only, b.pool
	b.mu.RUnlock()
	if same || only && p != nil && p.used() > 0 {
		return nil
	}
	b.mu.Lock()
	b.addressOnly = only
	b.mu.Unlock()
	if p == nil {
		return nil
	}
	return b.SetPodCIDRs(p.cidrs)
}

// Attached tells whether a sandbox has addresses here.
func (b *Bridge) Attached(id string) bool {
	b.mu.RLock()
	p := b.pool
	b.mu.RUnlock()
	return p != nil && p.has(id)
}

// Ready is nil once pods can be attached.
func (b *Bridge) Ready(context.Context) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.pool == nil {
		return ErrNoPodCIDR
	}
	return nil
}

// Gateways are the bridge's addresses; none before the pod CIDRs are known.
func (b *Bridge) Gateways() []netip.Addr {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.pool == nil {
		return nil
	}
	return b.pool.gateways()
}

// PodCIDRs are the ones in use; none before they are known.
func (b *Bridge) PodCIDRs() []netip.Prefix {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.pool == nil {
		return nil
	}
	return b.pool.cidrs
}

// Attach connects the network namespace at path to the bridge and returns the sandbox's
// addresses, one a family. Idempotent: a sandbox keeps its addresses until Detach.
func (b *Bridge) Attach(ctx context.Context, id, path string) ([]netip.Addr, error) {
	b.mu.RLock()
	p, mtu := b.pool, b.mtu
	b.mu.RUnlock()
	if p == nil {
		return nil, ErrNoPodCIDR
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	addrs, err := p.take(id)
	if err != nil {
		return nil, err
	}
	err = netlink.AddPort(netlink.Port{
		Bridge: b.cfg.Name, HostLink: b.portName(id), NetNS: path, Link: "eth0", MTU: mtu,
		Addresses: addrs, Gateways: p.gateways(),
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach sandbox %s: %w", id, err), p.release(id))
	}
	return addrs, nil
}

// Detach takes a sandbox off the bridge and frees its addresses. Idempotent.
func (b *Bridge) Detach(_ context.Context, id string) error {
	if err := netlink.RemoveLink(b.portName(id)); err != nil {
		return fmt.Errorf("detach sandbox %s: %w", id, err)
	}
	b.mu.RLock()
	p := b.pool
	b.mu.RUnlock()
	if p == nil {
		return nil
	}
	return p.release(id)
}

// Remove takes away the bridge, all its ports and the address book of a cluster that
// is going down. It needs no running Bridge.
func Remove(cfg Config) error {
	ports, err := netlink.PortsOf(cfg.Name)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range ports {
		errs = append(errs, netlink.RemoveLink(p))
	}
	errs = append(errs, netlink.RemoveLink(cfg.Name), nft.Remove(nft.IPv4, cfg.Name), nft.Remove(nft.IPv6, cfg.Name),
		os.RemoveAll(filepath.Join(cfg.StateDir, "addresses")))
	return errors.Join(errs...)
}

// Link names have at most 15 bytes; 8 hex digits of the sandbox tell ports apart.
const maxBridgeName = 15 - 1 - hashDigits
const hashDigits = 8

// PortPrefix begins the names of a bridge's ports.
func PortPrefix(bridge string) string { return bridge + "-" }

func (b *Bridge) portName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return PortPrefix(b.cfg.Name) + hex.EncodeToString(sum[:])[:hashDigits]
}

func (b *Bridge) cidrFile() string { return filepath.Join(b.cfg.StateDir, "pod-cidrs") }

func joinPrefixes(ps []netip.Prefix) string {
	s := make([]string, len(ps))
	for i, p := range ps {
		s[i] = p.String()
	}
	return strings.Join(s, "\n") + "\n"
}
