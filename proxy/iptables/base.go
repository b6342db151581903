package iptables

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/skiff-k8s/skiff/proxy/nodeports"
)

// scene is what the rules depend on besides Services.
type scene struct {
	v6           bool
	pods         netip.Prefix // not valid: traffic of pods is not told from others'
	node         []netip.Addr // the node's own addresses
	nodePorts    nodeports.Where
	localhost    bool   // node ports at loopback, of IPv4 alone
	masqueradeBy uint32 // bit of the mark
	masqueradeIn bool   // all traffic to cluster IPs
	liberal      bool   // connection tracking takes packets out of a window for valid
	large        bool   // so many endpoints that their rules have no comments
}

// jump leads from a chain of the kernel's to one of ours.
type jump struct{ table, from, to, match, said string }

const begun = "-m conntrack --ctstate NEW "

// jumps stand in the order in which they are put first, so that the last one comes first.
var jumps = []jump{
	{filter, "INPUT", external, begun, "kubernetes externally-visible service portals"},
	{filter, "FORWARD", external, begun, "kubernetes externally-visible service portals"},
	{filter, "INPUT", nodePorts, "", "kubernetes health check service ports"},
	{filter, "FORWARD", services, begun, "kubernetes service portals"},
	{filter, "OUTPUT", services, begun, "kubernetes service portals"},
	{filter, "FORWARD", forward, "", "kubernetes forwarding rules"},
	{filter, "INPUT", firewall, begun, "kubernetes load balancer firewall"},
	{filter, "OUTPUT", firewall, begun, "kubernetes load balancer firewall"},
	{filter, "FORWARD", firewall, begun, "kubernetes load balancer firewall"},
	{nat, "OUTPUT", services, "", "kubernetes service portals"},
	{nat, "PREROUTING", services, "", "kubernetes service portals"},
	{nat, "POSTROUTING", postroute, "", "kubernetes postrouting rules"},
}

// martianJumps are the kubelet's as well and stay when ours go.
var martianJumps = []jump{{filter, "INPUT", martians, "", ""}, {filter, "OUTPUT", martians, "", ""}}

func (j jump) text() string {
	said := ""
	if j.said != "" {
		said = comment(j.said)
	}
	return j.match + said + "-j " + j.to
}

// is tells whether a rule, as iptables-save writes it, is this jump.
func (j jump) is(rule string) bool {
	return strings.HasPrefix(rule, "-A "+j.from+" ") && strings.HasSuffix(rule, "-j "+j.to)
}

func (s *scene) jumps() []jump {
	if s.martians() {
		return append(jumps[:len(jumps):len(jumps)], martianJumps...)
	}
	return jumps
}

// martians are to be kept out where node ports are open at loopback: with route_localnet
// neighbours on the link could reach what listens there (CVE-2020-8558).
func (s *scene) martians() bool { return !s.v6 && s.localhost }

// chains are ours that every port shares.
func (s *scene) chains() map[string][]string {
	c := map[string][]string{
		filter: {services, external, forward, nodePorts, firewall, canary},
		nat:    {services, nodePorts, postroute, masquerade, canary},
		mangle: {canary},
	}
	if s.martians() {
		c[filter] = append(c[filter], martians)
	}
	return c
}

// base are the rules that do not depend on Services; those of services come last in it.
func (s *scene) base() (out []line) {
	mark := fmt.Sprintf("%#x/%#x", s.masqueradeBy, s.masqueradeBy)
	add := func(table, chain, text string) { out = append(out, line{table: table, chain: chain, text: text}) }
	if s.martians() {
		add(filter, martians, comment("block incoming localnet connections")+
			"-d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP")
	}
	if !s.liberal {
		// Or the kernel answers a packet out of its window, which is not translated, by a reset.
		add(filter, forward, "-m conntrack --ctstate INVALID -j DROP")
	}
	// Node ports work though FORWARD drops by policy.
	add(filter, forward, comment("kubernetes forwarding rules")+"-m mark --mark "+mark+" -j ACCEPT")
	add(filter, forward, comment("kubernetes forwarding conntrack rule")+"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	add(nat, postroute, "-m mark ! --mark "+mark+" -j RETURN")
	// Cleared, lest a packet that passes again is masqueraded again.
	add(nat, postroute, fmt.Sprintf("-j MARK --xor-mark %#x", s.masqueradeBy))
	add(nat, postroute, comment("kubernetes service traffic requiring SNAT")+"-j MASQUERADE --random-fully")
	add(nat, masquerade, s.mark())
	return append(out, s.toNodePorts()...)
}

// mark has a packet masqueraded when it leaves.
func (s *scene) mark() string { return fmt.Sprintf("-j MARK --or-mark %#x", s.masqueradeBy) }

// toNodePorts are the last rules of services: an address of a Service's own counts for more.
func (s *scene) toNodePorts() (out []line) {
	said := comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
	add := func(match, verdict string) {
		out = append(out, line{table: nat, chain: services, text: said + match + " -j " + verdict})
	}
	loopback := "127.0.0.0/8"
	if s.v6 {
		loopback = "::1/128"
	}
	open := s.martians()
	const here = "-m addrtype --dst-type LOCAL"
	if s.nodePorts.Everywhere(s.v6) {
		if open {
			add(here, nodePorts)
		} else {
			add(here+" ! -d "+loopback, nodePorts)
		}
		return out
	}
	if !open {
		add("-d "+loopback, "RETURN")
	}
	for _, p := range s.nodePorts.Prefixes(s.v6) {
		add("-d "+p.String()+" "+here, nodePorts)
	}
	if s.nodePorts.Primary {
		for _, a := range s.node {
			add("-d "+netip.PrefixFrom(a, a.BitLen()).String(), nodePorts)
		}
	}
	return out
}
