package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/host/nft"
)

// nodeLink is the name of the bridge that joins further nodes to this host, and of the
// table that gives them the host's address to the outside.
func (c *Config) nodeLink() string { return c.Bridge + "l" }

// nodePort is the host's end of a further node's link. Link names have at most 15 bytes.
func (c *Config) nodePort(name string) string {
	sum := sha256.Sum256([]byte(name))
	return c.nodeLink() + hex.EncodeToString(sum[:])[:8]
}

// hostOf is the host's address in a subnet of nodes.
func hostOf(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next() }

// ensureNodeLink makes the bridge and all that lets the nodes behind it reach the outside. Idempotent.
func (c *Config) ensureNodeLink() error {
	b := netlink.Bridge{Name: c.nodeLink()}
	for _, s := range c.NodeSubnets {
		b.Addresses = append(b.Addresses, netip.PrefixFrom(hostOf(s), s.Bits()))
	}
	if err := netlink.EnsureBridge(b); err != nil {
		return err
	}
	for _, s := range c.NodeSubnets {
		set := [][2]string{
			{"net/ipv4/ip_forward", "1"},
			// What comes from a node's pods may go back another way, through a Service.
			{"net/ipv4/conf/" + b.Name + "/rp_filter", "0"},
			// A redirect would lead around the host, and with it around connection tracking.
			{"net/ipv4/conf/" + b.Name + "/send_redirects", "0"},
		}
		if s.Addr().Is6() {
			set = [][2]string{{"net/ipv6/conf/all/forwarding", "1"}, {"net/ipv6/conf/" + b.Name + "/proxy_ndp", "1"}}
		}
		for _, kv := range set {
			if err := setSysctl(kv[0], kv[1]); err != nil {
				return err
			}
		}
		if err := c.masqueradeNodes(s); err != nil {
			return err
		}
	}
	// Nodes have routes via the first one's address as if it were on the link.
	for _, ip := range c.NodeIPs {
		if !ip.Is6() {
			continue
		}
		if err := netlink.EnsureNeighborProxy(b.Name, ip); err != nil {
			return err
		}
	}
	return nil
}

// masqueradeNodes gives what nodes send to the outside the host's address: nobody there knows their
// subnet. Pods' traffic has its node's address by then.
func (c *Config) masqueradeNodes(subnet netip.Prefix) error {
	family := nft.IPv4
	if subnet.Addr().Is6() {
		family = nft.IPv6
	}
	rule := nft.Rule{nft.InPrefix{Field: nft.Saddr, Prefix: subnet}, nft.InPrefix{Field: nft.Daddr, Prefix: subnet, Not: true}}
	for _, pods := range c.node().PodCIDRs {
		if pods.Addr().Is6() == subnet.Addr().Is6() {
			rule = append(rule, nft.InPrefix{Field: nft.Daddr, Prefix: pods, Not: true})
		}
	}
	batch := nft.NewTable(family, c.nodeLink()).Reset()
	batch.AddChains(nft.Chain{
		Name: "egress", Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: 100},
		Rules: []nft.Rule{append(rule, nft.Masquerade{})},
	})
	if err := batch.Commit(); err != nil {
		return fmt.Errorf("masquerade nodes' traffic: %w", err)
	}
	return nil
}

// ensureNamespace makes a further node's network namespace and its link. Idempotent.
func (c *Config) ensureNamespace(p Paths, s NodeSpec) error {
	path := p.NetNS(s.Name)
	if err := netlink.EnsureNamespace(path); err != nil {
		return err
	}
	u := netlink.Uplink{Bridge: c.nodeLink(), HostLink: c.nodePort(s.Name), NetNS: path, Link: "eth0"}
	for i, a := range s.Addresses {
		u.Addresses = append(u.Addresses, netip.PrefixFrom(a, c.NodeSubnets[i].Bits()))
		u.Gateways = append(u.Gateways, hostOf(c.NodeSubnets[i]))
	}
	for _, a := range c.node().NodeIPs {
		u.OnLink = append(u.OnLink, a)
	}
	return netlink.EnsureUplink(u)
}

func (c *Config) removeNamespace(p Paths, name string) error {
	return errors.Join(netlink.RemoveLink(c.nodePort(name)), netlink.RemoveNamespace(p.NetNS(name)))
}

func (c *Config) removeNodeLink(p Paths) error {
	ports, err := netlink.PortsOf(c.nodeLink())
	errs := []error{err}
	for _, l := range ports {
		errs = append(errs, netlink.RemoveLink(l))
	}
	err = os.Remove(filepath.Dir(p.NetNS("x")))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(append(errs, netlink.RemoveLink(c.nodeLink()), nft.Remove(nft.IPv4, c.nodeLink()), nft.Remove(nft.IPv6, c.nodeLink()), err)...)
}

func setSysctl(name, value string) error {
	path := filepath.Join("/proc/sys", name)
	if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set sysctl %s=%s: %w", strings.ReplaceAll(name, "/", "."), value, err)
	}
	return nil
}
