package ipvs

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/skiff-k8s/skiff/host/iptables"
	"github.com/skiff-k8s/skiff/proxy/nodeports"
)

// scene is what a family's rules and sets depend on besides Services.
type scene struct {
	v6           bool
	scheduler    string
	pods         netip.Prefix // not valid: traffic of pods is not told from others'
	node         []netip.Addr // addresses of the Node object
	local        []netip.Addr // the host's addresses, but those of the device
	open         []netip.Addr // of these, where node ports are
	nodePorts    nodeports.Where
	masqueradeBy uint32
	masqueradeIn bool
	exclude      []netip.Prefix // virtual services there are others'
}

// Chains, as upstream names them in this mode.
const (
	services   = "KUBE-SERVICES"
	postroute  = "KUBE-POSTROUTING"
	nodePort   = "KUBE-NODE-PORT"
	balanced   = "KUBE-LOAD-BALANCER"
	masquerade = "KUBE-MARK-MASQ"
	forward    = "KUBE-FORWARD"
	firewall   = "KUBE-PROXY-FIREWALL"
	ranges     = "KUBE-SOURCE-RANGES-FIREWALL"
	access     = "KUBE-IPVS-FILTER"
	accessOut  = "KUBE-IPVS-OUT-FILTER"
	canary     = "KUBE-PROXY-CANARY"
)

type jump struct{ table, from, to, said string }

var jumps = []jump{
	{"nat", "OUTPUT", services, "kubernetes service portals"},
	{"nat", "PREROUTING", services, "kubernetes service portals"},
	{"nat", "POSTROUTING", postroute, "kubernetes postrouting rules"},
	{"filter", "FORWARD", forward, "kubernetes forwarding rules"},
	{"filter", "INPUT", nodePort, "kubernetes health check rules"},
	{"filter", "INPUT", firewall, "kube-proxy firewall rules"},
	{"filter", "INPUT", access, "kubernetes ipvs access filter"},
	// Before IPVS, which takes what the host sends when it leaves mangle and has it go elsewhere.
	{"mangle", "OUTPUT", accessOut, "kubernetes ipvs access filter"},
}

func (j jump) is(rule string) bool {
	return strings.HasPrefix(rule, "-A "+j.from+" ") && strings.HasSuffix(rule, "-j "+j.to)
}

var chains = map[string][]string{
	"nat":    {services, postroute, nodePort, balanced, masquerade},
	"filter": {forward, nodePort, firewall, ranges, access, canary},
	"mangle": {accessOut, firewall, ranges},
}

var tables = []string{"mangle", "filter", "nat"}

// rules are the same whatever Services there are: these are elements of sets.
func (s *scene) rules() map[string][]string {
	in := func(set, dirs string) string { return "-m set --match-set " + setName(set, s.v6) + " " + dirs }
	mark := fmt.Sprintf("%#x/%#x", s.masqueradeBy, s.masqueradeBy)
	loopback := "127.0.0.0/8"
	if s.v6 {
		loopback = "::1/128"
	}
	var nat, filter, mangle []string
	r := func(to *[]string, chain string, words ...string) {
		*to = append(*to, "-A "+chain+" "+strings.Join(words, " "))
	}
	r(&nat, services, "-s", loopback, "-j RETURN")
	r(&nat, services, in(balancers, "dst,dst"), "-j", balanced)
	switch {
	case s.masqueradeIn:
		r(&nat, services, in(clusterIPs, "dst,dst"), "-j", masquerade)
	case s.pods.IsValid():
		r(&nat, services, in(clusterIPs, "dst,dst"), "! -s", s.pods.String(), "-j", masquerade)
	}
	r(&nat, services, in(externalIPs, "dst,dst"), "-j", masquerade)
	r(&nat, services, "-m addrtype --dst-type LOCAL -j", nodePort)
	r(&nat, balanced, in(balancerLocal, "dst,dst"), "-j RETURN")
	r(&nat, balanced, "-j", masquerade)
	for _, p := range []struct{ proto, all, local, dirs string }{
		{"tcp", nodeTCP, nodeTCPLocal, "dst"}, {"udp", nodeUDP, nodeUDPLocal, "dst"}, {"sctp", nodeSCTP, nodeSCTPLocal, "dst,dst"},
	} {
		r(&nat, nodePort, "-p", p.proto, in(p.local, p.dirs), "-j RETURN")
		r(&nat, nodePort, "-p", p.proto, in(p.all, p.dirs), "-j", masquerade)
	}
	// An address of the device is no source that answers find back to.
	r(&nat, postroute, in(bound, "src"), "-j MASQUERADE --random-fully")
	r(&nat, postroute, in(loopBack, "dst,dst,src"), "-j MASQUERADE --random-fully")
	r(&nat, postroute, "-m mark ! --mark", mark, "-j RETURN")
	r(&nat, postroute, fmt.Sprintf("-j MARK --xor-mark %#x", s.masqueradeBy))
	r(&nat, postroute, "-j MASQUERADE --random-fully")
	r(&nat, masquerade, fmt.Sprintf("-j MARK --or-mark %#x", s.masqueradeBy))

	r(&filter, forward, "-m mark --mark", mark, "-j ACCEPT")
	r(&filter, forward, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	r(&filter, nodePort, "-p tcp", in(healthPorts, "dst"), "-j ACCEPT")
	const begun = "-m conntrack --ctstate NEW"
	r(&filter, access, begun, in(absentInside, "dst,dst"), "-j DROP")
	if s.pods.IsValid() {
		r(&filter, access, begun, in(absentOutside, "dst,dst"), "! -s", s.pods.String(), "-j DROP")
	} else {
		r(&filter, access, begun, in(absentOutside, "dst,dst"), "-j DROP")
	}
	for _, set := range []string{balancers, clusterIPs, externalIPs, externalLocal} {
		r(&filter, access, in(set, "dst,dst"), "-j RETURN")
	}
	r(&filter, access, "-p tcp", in(healthPorts, "dst"), "-j RETURN")
	// What listens on the host is not reached by addresses of Services.
	r(&filter, access, begun, in(bound, "dst"), "-j REJECT")
	r(&mangle, accessOut, begun, in(absentInside, "dst,dst"), "-j DROP")
	r(&mangle, accessOut, "-j", firewall)
	for _, t := range []*[]string{&filter, &mangle} {
		r(t, firewall, in(guarded, "dst,dst"), "-j", ranges)
		r(t, ranges, in(sourceNets, "dst,dst,src"), "-j RETURN")
		r(t, ranges, in(sourceAddrs, "dst,dst,src"), "-j RETURN")
		r(t, ranges, begun, "-j DROP")
	}
	return map[string][]string{"nat": nat, "filter": filter, "mangle": mangle}
}

// text is the rules in the language of iptables-restore; have are the rules that a table has. Pure.
func (s *scene) text(have map[string][]string) []byte {
	var out bytes.Buffer
	rules := s.rules()
	for _, table := range tables {
		fmt.Fprintf(&out, "*%s\n", table)
		for _, c := range chains[table] {
			fmt.Fprintf(&out, ":%s - [0:0]\n", c)
		}
		for _, j := range jumps {
			if j.table == table && !slices.ContainsFunc(have[table], j.is) {
				fmt.Fprintf(&out, "-I %s -m comment --comment %q -j %s\n", j.from, j.said, j.to)
			}
		}
		for _, r := range rules[table] {
			out.WriteString(r + "\n")
		}
		out.WriteString("COMMIT\n")
	}
	return out.Bytes()
}

// load writes the rules.
func (s *scene) load(tool *iptables.Tool) error {
	have := map[string][]string{}
	for _, table := range tables {
		var err error
		if _, have[table], err = tool.Save(table); err != nil {
			return err
		}
	}
	return tool.Load(s.text(have))
}

// unload takes them away.
func unload(tool *iptables.Tool) error {
	var out bytes.Buffer
	for _, table := range tables {
		there, rules, err := tool.Save(table)
		if err != nil {
			return err
		}
		var lines, ends []string
		for _, j := range jumps {
			for _, r := range rules {
				if j.table == table && j.is(r) {
					lines = append(lines, "-D"+strings.TrimPrefix(r, "-A"))
				}
			}
		}
		var own []string
		for _, c := range chains[table] {
			if there[c] {
				own = append(own, fmt.Sprintf(":%s - [0:0]", c))
				ends = append(ends, "-X "+c)
			}
		}
		if len(own)+len(lines) == 0 {
			continue
		}
		fmt.Fprintf(&out, "*%s\n", table)
		for _, l := range own {
			out.WriteString(l + "\n")
		}
		for _, l := range append(lines, ends...) {
			out.WriteString(l + "\n")
		}
		out.WriteString("COMMIT\n")
	}
	if out.Len() == 0 {
		return nil
	}
	return tool.Load(out.Bytes())
}
