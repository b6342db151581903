package iptables

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/skiff-k8s/skiff/proxy"
)

// part is what one port adds to the rules: lines of chains that all ports share, and chains of
// its own in the table nat.
type part struct {
	shared []line
	own    []chain
}

// line is a rule without the command that adds it to its chain.
type line struct {
	table, chain, text string
	// first goes before what is not: nobody takes a cluster IP by an external IP.
	first bool
}

type chain struct {
	name  string
	rules []string
}

// part decides the rules of a port. Pure.
func (s *scene) part(p *proxy.Port) part {
	b := builder{scene: s, p: p, name: nameOf(p), proto: protocolOf(p)}
	b.id = hash(b.name, b.proto)
	if !p.Endpoints {
		b.absent("REJECT", b.name+" has no endpoints", true, true)
	} else {
		b.absent("DROP", b.name+" has no local endpoints", len(p.Internal()) == 0, len(p.Outside()) == 0)
		b.fronts()
		b.balance()
	}
	if p.HealthPort != 0 {
		b.share(filter, nodePorts, `-m comment --comment "`+b.name+` health check node port" -m tcp -p tcp --dport `+number(p.HealthPort)+` -j ACCEPT`)
	}
	return b.out
}

type builder struct {
	*scene
	p               *proxy.Port
	name, proto, id string
	out             part
}

func (b *builder) share(table, chain, text string) {
	b.out.shared = append(b.out.shared, line{table: table, chain: chain, text: text})
}

func number(n uint16) string { return strconv.Itoa(int(n)) }

func comment(text string) string { return `-m comment --comment "` + text + `" ` }

// to matches traffic to an address and the Service's port.
func (b *builder) to(said string, a netip.Addr) string {
	return comment(said) + b.port("-d "+netip.PrefixFrom(a, a.BitLen()).String()+" ", b.p.Port)
}

func (b *builder) port(more string, n uint16) string {
	return "-m " + b.proto + " -p " + b.proto + " " + more + "--dport " + number(n)
}

// absent are the fronts without endpoints: of the whole port, or of a Local policy, which
// drops what it has nobody for, so that a balancer tries another node.
func (b *builder) absent(verdict, why string, inside, outside bool) {
	if inside {
		b.share(filter, services, b.to(why, b.p.ClusterIP)+" -j "+verdict)
	}
	if !outside {
		return
	}
	for _, a := range slices.Concat(b.p.ExternalIPs, b.p.LoadBalancerIPs) {
		b.share(filter, external, b.to(why, a)+" -j "+verdict)
	}
	if b.p.NodePort != 0 {
		b.share(filter, external, comment(why)+"-m addrtype --dst-type LOCAL "+b.port("", b.p.NodePort)+" -j "+verdict)
	}
}

// fronts lead to the port's chains.
func (b *builder) fronts() {
	p := b.p
	if len(p.Internal()) > 0 {
		b.out.shared = append(b.out.shared, line{nat, services, b.to(b.name+" cluster IP", p.ClusterIP) + " -j " + b.inside(), true})
	}
	if !p.External() {
		return
	}
	outside := outsidePrefix + b.id
	for _, a := range p.ExternalIPs {
		b.share(nat, services, b.to(b.name+" external IP", a)+" -j "+outside)
	}
	balanced := outside
	if len(p.Sources) > 0 && len(p.LoadBalancerIPs) > 0 {
		balanced = sourcesPrefix + b.id
		b.sources(balanced, outside)
	}
	for _, a := range p.LoadBalancerIPs {
		b.share(nat, services, b.to(b.name+" loadbalancer IP", a)+" -j "+balanced)
		if balanced != outside {
			// What its sources let through has another destination by then.
			b.share(filter, firewall, b.to(b.name+" traffic not accepted by "+balanced, a)+" -j DROP")
		}
	}
	if p.NodePort != 0 {
		b.share(nat, nodePorts, comment(b.name)+b.port("", p.NodePort)+" -j "+outside)
	}
	b.own(outside, b.outside())
}

func (b *builder) own(name string, rules []string) { b.out.own = append(b.out.own, chain{name, rules}) }

// inside is the chain of traffic to the cluster IP.
func (b *builder) inside() string {
	if b.p.InternalLocal {
		return localPrefix + b.id
	}
	return clusterPrefix + b.id
}

// outside are the rules of traffic from elsewhere. With a Local policy it keeps its source; what
// begins on this node is not bound by the policy, as if it came back from a balancer, and the node's
// own may have the front's address as source, which answers would not find back to.
func (b *builder) outside() (rules []string) {
	cluster := clusterPrefix + b.id
	if !b.p.ExternalLocal {
		return append(rules, comment("masquerade traffic for "+b.name+" external destinations")+"-j "+masquerade, "-j "+cluster)
	}
	if len(b.p.Cluster) > 0 {
		if b.pods.IsValid() {
			rules = append(rules, comment("pod traffic for "+b.name+" external destinations")+"-s "+b.pods.String()+" -j "+cluster)
		}
		rules = append(rules,
			comment("masquerade LOCAL traffic for "+b.name+" external destinations")+"-m addrtype --src-type LOCAL -j "+masquerade,
			comment("route LOCAL traffic for "+b.name+" external destinations")+"-m addrtype --src-type LOCAL -j "+cluster)
	}
	if len(b.p.Local) > 0 {
		rules = append(rules, "-j "+localPrefix+b.id)
	}
	return rules
}

// sources lead those that a balancer's address admits on to it.
func (b *builder) sources(name, outside string) {
	var rules []string
	from := func(s netip.Prefix) {
		rules = append(rules, comment(b.name+" loadbalancer IP")+"-s "+s.String()+" -j "+outside)
	}
	for _, s := range b.p.Sources {
		from(s)
	}
	// A balancer's address that the node has is the source of what the node itself sends there.
	if slices.ContainsFunc(b.node, func(a netip.Addr) bool {
		return slices.ContainsFunc(b.p.Sources, func(s netip.Prefix) bool { return s.Contains(a) })
	}) {
		for _, a := range b.p.LoadBalancerIPs {
			from(netip.PrefixFrom(a, a.BitLen()))
		}
	}
	b.own(name, rules)
}

// balance makes the chains that spread traffic, and those of endpoints.
func (b *builder) balance() {
	if len(b.p.Cluster) > 0 {
		b.spread(clusterPrefix+b.id, b.p.Cluster)
	}
	if len(b.p.Local) > 0 {
		b.spread(localPrefix+b.id, b.p.Local)
	}
	all := slices.Concat(b.p.Cluster, b.p.Local)
	slices.SortFunc(all, netip.AddrPort.Compare)
	for _, ep := range slices.Compact(all) {
		b.endpoint(ep)
	}
}

func (b *builder) sep(ep netip.AddrPort) string {
	return endpointPrefix + hash(b.name, b.proto, ep.String())
}

// said comments rules of endpoints, unless there are so many that comments are what costs.
func (b *builder) said(text string) string {
	if b.large {
		return ""
	}
	return comment(text)
}

func (b *builder) spread(name string, eps []netip.AddrPort) {
	rules := make([]string, 0, len(eps)+1)
	if name == b.inside() && len(b.p.Internal()) > 0 {
		to := b.to(b.name+" cluster IP", b.p.ClusterIP)
		switch {
		case b.masqueradeIn:
			rules = append(rules, to+" -j "+masquerade)
		case b.pods.IsValid():
			// Whoever routes the service range to a node from outside gets his answers from there.
			rules = append(rules, to+" ! -s "+b.pods.String()+" -j "+masquerade)
		}
	}
	if b.p.Affinity > 0 {
		for _, ep := range eps {
			sep := b.sep(ep)
			rules = append(rules, b.said(b.name+" -> "+ep.String())+"-m recent --name "+sep+" --rcheck --seconds "+
				strconv.Itoa(int(b.p.Affinity/time.Second))+" --reap -j "+sep)
		}
	}
	for i, ep := range eps {
		chance := ""
		if left := len(eps) - i; left > 1 {
			chance = "-m statistic --mode random --probability " + strconv.FormatFloat(1/float64(left), 'f', 10, 64) + " "
		}
		rules = append(rules, b.said(b.name+" -> "+ep.String())+chance+"-j "+b.sep(ep))
	}
	b.own(name, rules)
}

func (b *builder) endpoint(ep netip.AddrPort) {
	sep, a := b.sep(ep), ep.Addr()
	remember := ""
	if b.p.Affinity > 0 {
		remember = "-m recent --name " + sep + " --set "
	}
	b.own(sep, []string{
		// A pod that reaches itself would answer itself past the translation.
		b.said(b.name) + "-s " + netip.PrefixFrom(a, a.BitLen()).String() + " -j " + masquerade,
		b.said(b.name) + remember + "-m " + b.proto + " -p " + b.proto + " -j DNAT --to-destination " + ep.String(),
	})
}
