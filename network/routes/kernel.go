package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// kernel is the edge: what the tables mean there.
type kernel struct {
	cfg Config
	h   *netlink.Handle

	mu      sync.Mutex
	devices map[underlay]int // VXLAN links by index
	last    map[underlay]netlink.VXLAN
}

func openKernel(cfg Config) (*kernel, error) {
	h, err := netlink.Open()
	if err != nil {
		return nil, err
	}
	return &kernel{cfg: cfg, h: h, devices: map[underlay]int{}, last: map[underlay]netlink.VXLAN{}}, nil
}

func (k *kernel) close() { k.h.Close() }

// linkName of the VXLAN link over an IP version.
func linkName(base string, u underlay) string { return fmt.Sprintf("%s-vx%d", base, u) }

// underlay of a VXLAN link of ours; 0 for others'. Any goroutine may ask.
func (k *kernel) underlay(link int) underlay {
	k.mu.Lock()
	defer k.mu.Unlock()
	for u, d := range k.devices {
		if d == link {
			return u
		}
	}
	return 0
}

func ours(clusterCIDRs []netip.Prefix, r netlink.Route) bool {
	return r.Protocol == Protocol && (len(clusterCIDRs) == 0 ||
		slices.ContainsFunc(clusterCIDRs, func(c netip.Prefix) bool { return c.Contains(r.Dst.Addr()) && c.Bits() <= r.Dst.Bits() }))
}

// read what the machine is like, and what there is of ours.
func (k *kernel) read(s self) (host, table, error) {
	links, err := k.h.Links()
	if err != nil {
		return host{}, table{}, err
	}
	routes, err := k.h.Routes()
	if err != nil {
		return host{}, table{}, err
	}
	devices, podLink := map[underlay]int{}, 0
	for _, l := range links {
		for _, u := range underlays {
			if l.Name == linkName(k.cfg.Link, u) && l.Kind == "vxlan" {
				devices[u] = l.Index
			}
		}
		if l.Name == k.cfg.PodLink {
			podLink = l.Index
		}
	}
	k.mu.Lock()
	k.devices = devices
	k.mu.Unlock()
	clear(k.last)
	h := newHost(links, routes, func(r netlink.Route) bool {
		return r.Link == podLink || k.underlay(r.Link) != 0 || ours(k.cfg.ClusterCIDRs, r)
	})
	have := newTable()
	for _, r := range routes {
		if !ours(k.cfg.ClusterCIDRs, r) {
			continue
		}
		known := route{gateway: r.Gateway, link: r.Link, source: r.Source, onLink: r.OnLink}
		for u, index := range devices {
			if index == r.Link {
				known.over, known.link = u, 0
			}
		}
		have.routes[r.Dst] = known
	}
	for u, index := range devices {
		if err := k.readDevice(have, u, index); err != nil {
			return host{}, table{}, err
		}
	}
	return h, have, nil
}

func (k *kernel) readDevice(have table, u underlay, index int) error {
	forwards, err := k.h.Forwardings(index)
	if err != nil {
		return err
	}
	for _, f := range forwards {
		have.remotes[remote{u, f.MAC}] = f.Remote
	}
	neighbours, err := k.h.Neighbours(index)
	if err != nil {
		return err
	}
	for _, n := range neighbours {
		have.neighbours[neighbour{u, n.IP}] = n.MAC
	}
	return nil
}

// ensure makes the VXLAN links that are needed. made tells that one is new, or was made anew.
func (k *kernel) ensure(h host, s self, over map[underlay]bool) (made bool, err error) {
	for _, u := range underlays {
		if !over[u] {
			continue
		}
		local := s.ip(u == 6)
		mtu := h.mtu([]netip.Addr{local})
		if mtu == 0 {
			return made, fmt.Errorf("no link has this node's address %s", local)
		}
		v := netlink.VXLAN{Name: linkName(k.cfg.Link, u), VNI: s.tunnel.VNI, Port: s.tunnel.Port, Local: local, MAC: s.tunnel.MAC, MTU: mtu - u.overhead()}
		for _, c := range s.podCIDRs {
			v.Addresses = append(v.Addresses, c.Addr())
		}
		if last, ok := k.last[u]; ok && sameVXLAN(last, v) {
			continue
		}
		index, isNew, err := k.h.EnsureVXLAN(v)
		if err != nil {
			return made, err
		}
		if err := k.sysctls(v.Name, s.cidr(true).IsValid()); err != nil {
			return made, err
		}
		made = made || isNew
		k.last[u] = v
		k.mu.Lock()
		k.devices[u] = index
		k.mu.Unlock()
	}
	return made, nil
}

func sameVXLAN(a, b netlink.VXLAN) bool {
	aa, ba := a.Addresses, b.Addresses
	return a.Name == b.Name && a.VNI == b.VNI && a.Port == b.Port && a.Local == b.Local && a.MAC == b.MAC && a.MTU == b.MTU && slices.Equal(aa, ba)
}

// drop the VXLAN links that nobody needs any more.
func (k *kernel) drop(over map[underlay]bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for u := range k.devices {
		if over[u] {
			continue
		}
		if err := netlink.RemoveLink(linkName(k.cfg.Link, u)); err != nil {
			return err
		}
		delete(k.devices, u)
		delete(k.last, u)
	}
	return nil
}

// sysctls of a VXLAN link. Packets of a node that sees no route here while this one sees a route there
// come in by VXLAN and are answered by the route: 2 is the loosest that the reverse path filter of
// "all" leaves.
func (k *kernel) sysctls(link string, v6 bool) error {
	set := [][2]string{{"net/ipv4/conf/" + link + "/rp_filter", "2"}}
	if v6 {
		set = append(set, [2]string{"net/ipv6/conf/" + link + "/accept_ra", "0"}, [2]string{"net/ipv6/conf/" + link + "/disable_ipv6", "0"})
	}
	for _, s := range set {
		path := filepath.Join(k.cfg.ProcSys, s[0])
		if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == s[1] {
			continue
		}
		if err := os.WriteFile(path, []byte(s[1]), 0o644); err != nil {
			return fmt.Errorf("set sysctl %s=%s: %w", strings.ReplaceAll(s[0], "/", "."), s[1], err)
		}
	}
	return nil
}

func (k *kernel) device(u underlay) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if index, ok := k.devices[u]; ok {
		return index, nil
	}
	return 0, fmt.Errorf("there is no VXLAN link over IPv%d", u)
}

// apply one change.
func (k *kernel) apply(c change) error {
	switch {
	case c.route != nil && c.delete:
		return k.h.DeleteRoute(netlink.Route{Dst: c.dst, Protocol: Protocol})
	case c.route != nil:
		r := netlink.Route{Dst: c.dst, Gateway: c.route.gateway, Link: c.route.link, Source: c.route.source, Protocol: Protocol, OnLink: c.route.onLink}
		if c.route.over != 0 {
			var err error
			if r.Link, err = k.device(c.route.over); err != nil {
				return fmt.Errorf("add route to %s: %w", c.dst, err)
			}
		}
		if c.replaces {
			return k.h.ReplaceRoute(r)
		}
		return k.h.AddRoute(r)
	case c.neighbour != nil:
		index, err := k.device(c.neighbour.over)
		if err != nil {
			return absent(c.delete, err)
		}
		n := netlink.Neighbour{Link: index, IP: c.neighbour.ip, MAC: c.mac}
		if c.delete {
			return k.h.DeleteNeighbour(n)
		}
		return k.h.SetNeighbour(n)
	case c.remote != nil:
		index, err := k.device(c.remote.over)
		if err != nil {
			return absent(c.delete, err)
		}
		f := netlink.Forwarding{Link: index, MAC: c.remote.mac, Remote: c.ip}
		if c.delete {
			return k.h.DeleteForwarding(f)
		}
		return k.h.SetForwarding(f)
	}
	return nil
}

// absent: entries of a link that has gone are gone.
func absent(deleting bool, err error) error {
	if deleting {
		return nil
	}
	return err
}

// Remove takes away the routes and links of a cluster that is going down. It needs no running Router.
func Remove(link string, clusterCIDRs []netip.Prefix) error {
	h, err := netlink.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	routes, err := h.Routes()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range routes {
		if ours(clusterCIDRs, r) {
			errs = append(errs, h.DeleteRoute(r))
		}
	}
	for _, u := range underlays {
		errs = append(errs, netlink.RemoveLink(linkName(link, u)))
	}
	return errors.Join(errs...)
}
