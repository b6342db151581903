package main

import (
	"github.com/spf13/pflag"

	"github.com/skiff-k8s/skiff/cluster"
)

// podNetworkFlags say how pods are connected. Those that are given change what a data directory says.
type podNetworkFlags struct {
	mode, confDir string
	binDirs       []string
	policy        bool
	proxyMode     string
	port          uint16
	given         func(name string) bool
}

func (p *podNetworkFlags) bind(f *pflag.FlagSet) {
	f.StringVar(&p.mode, "pod-network", "auto", "how other nodes' pods are reached: auto (routes on one link, VXLAN elsewhere), vxlan (always) or routes (only); the same on all nodes (docs/network.md)")
	f.Uint16Var(&p.port, "vxlan-port", cluster.DefaultVXLANPort, "UDP port of VXLAN; the same on all nodes")
	f.StringVar(&p.confDir, "cni-conf-dir", "", "directory in which CNI configurations are waited for, that then make the pod network; none: cni/net.d of the data directory, and skiff's bridge until there is one")
	f.StringSliceVar(&p.binDirs, "cni-bin-dir", nil, "directories of CNI plugins; none: /opt/cni/bin and /usr/lib/cni")
	f.BoolVar(&p.policy, "network-policy", true, "enforce NetworkPolicies; false: leave them to another network's engine (docs/network.md)")
	f.StringVar(&p.proxyMode, "proxy-mode", "nftables", "what the node's proxy programs Services by: nftables, iptables or ipvs (docs/services.md)")
	p.given = f.Changed
}

func (p *podNetworkFlags) change() cluster.PodNetworkChange {
	var c cluster.PodNetworkChange
	if p.given("pod-network") {
		c.Mode = &p.mode
	}
	if p.given("vxlan-port") {
		c.VXLANPort = &p.port
	}
	if p.given("cni-conf-dir") {
		c.CNIConfDir = &p.confDir
	}
	if p.given("proxy-mode") {
		c.ProxyMode = &p.proxyMode
	}
	if p.given("network-policy") {
		c.Policy = &p.policy
	}
	c.CNIBinDirs = p.binDirs
	return c
}
