package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/skiff-k8s/skiff/host/nft"
)

func has6(cidrs []netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Addr().Is6() })
}

// forward makes the host a router, before the bridge is there: links inherit some of it.
func (b *Bridge) forward(cidrs []netip.Prefix) error {
	if err := b.sysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	if !has6(cidrs) {
		return nil
	}
	const all = "net/ipv6/conf/all/forwarding"
	if have, err := os.ReadFile(filepath.Join(b.cfg.ProcSys, all)); err == nil && strings.TrimSpace(string(have)) == "1" {
		return nil
	}
	if err := b.keepAdvertisements(); err != nil {
		return err
	}
	return b.sysctl(all, "1")
}

// keepAdvertisements has links go on with the router advertisements that they took until now: with
// forwarding on, accept_ra=1 takes none any more, and the host would lose its own default route.
func (b *Bridge) keepAdvertisements() error {
	links, err := os.ReadDir(filepath.Join(b.cfg.ProcSys, "net/ipv6/conf"))
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("the pod CIDR is IPv6, but this kernel runs without (net.ipv6 is missing); boot without ipv6.disable=1")
	}
	if err != nil {
		return fmt.Errorf("list links that take router advertisements: %w", err)
	}
	for _, l := range links {
		if l.Name() == "all" || l.Name() == "default" || l.Name() == b.cfg.Name {
			continue
		}
		key := "net/ipv6/conf/" + l.Name() + "/accept_ra"
		have, err := os.ReadFile(filepath.Join(b.cfg.ProcSys, key))
		if errors.Is(err, os.ErrNotExist) {
			continue // the link has gone
		}
		if err != nil {
			return fmt.Errorf("read sysctl %s: %w", key, err)
		}
		if strings.TrimSpace(string(have)) != "1" {
			continue
		}
		if err := b.sysctl(key, "2"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// setSysctls of the bridge. Redirects must be off: a pod that obeys one would bypass the host, and
// with it connection tracking. (Pods take no IPv6 redirect, as the gateway that they know is not the
// link-local address which a redirect comes from.)
func (b *Bridge) setSysctls() error {
	set := [][2]string{
		{"net/ipv4/conf/all/send_redirects", "0"},
		{"net/ipv4/conf/" + b.cfg.Name + "/send_redirects", "0"},
		// DNAT to 127.0.0.0/8 is never wanted, but node ports on the bridge are.
		{"net/ipv4/conf/" + b.cfg.Name + "/rp_filter", "0"},
	}
	for _, s := range set {
		if err := b.sysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	return nil
}

// sysctls6 of the bridge, before it comes up. The host finds pods from the bridge's link-local address,
// which must not wait a second for duplicates to answer; and no pod shall configure the host's routes.
func (b *Bridge) sysctls6() error {
	conf := "net/ipv6/conf/" + b.cfg.Name
	for _, s := range [][2]string{{"/disable_ipv6", "0"}, {"/accept_dad", "0"}, {"/dad_transmits", "0"}, {"/accept_ra", "0"}, {"/accept_redirects", "0"}, {"/forwarding", "1"}} {
		if err := b.sysctl(conf+s[0], s[1]); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bridge) sysctl(key, value string) error {
	path := filepath.Join(b.cfg.ProcSys, key)
	if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set sysctl %s=%s: %w", strings.ReplaceAll(key, "/", "."), value, err)
	}
	return nil
}

// masquerade gives traffic from this node's pods to the outside the node's address: routers there
// know no pods. Pods of all nodes see each other's own addresses.
func (b *Bridge) masquerade(cidrs []netip.Prefix) error {
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		var rules []nft.Rule
		for _, own := range cidrs {
			if familyOf(own) == family {
				rules = append(rules, egress(own, b.cfg.ClusterCIDRs)...)
			}
		}
		if len(rules) == 0 {
			if err := nft.Remove(family, b.cfg.Name); err != nil {
				return fmt.Errorf("stop masquerading pods' traffic: %w", err)
			}
			continue
		}
		batch := nft.NewTable(family, b.cfg.Name).Reset()
		batch.AddChains(nft.Chain{Name: "egress", Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: 100}, Rules: rules})
		if err := batch.Commit(); err != nil {
			return fmt.Errorf("masquerade pods' traffic: %w", err)
		}
	}
	return nil
}

// egress rules of one of the node's pod CIDRs: what goes to none of the cluster's.
func egress(own netip.Prefix, clusterCIDRs []netip.Prefix) []nft.Rule {
	rule := nft.Rule{nft.InPrefix{Field: nft.Saddr, Prefix: own}}
	for _, all := range clusterCIDRs {
		if all.Addr().Is6() == own.Addr().Is6() {
			rule = append(rule, nft.InPrefix{Field: nft.Daddr, Prefix: all, Not: true})
		}
	}
	if len(rule) == 1 { // a cluster without CIDRs of the family has pods nowhere else
		return nil
	}
	return []nft.Rule{append(rule, nft.Masquerade{})}
}
