package ipvs

import (
	"net/netip"
	"slices"
	"strings"

	host "github.com/skiff-k8s/skiff/host/ipvs"
	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/proxy"
)

// Sets have upstream's names and types. The last three are ours: upstream leads what a Local policy
// has nobody for to other nodes, whence answers do not find back.
const (
	loopBack      = "KUBE-LOOP-BACK"   // an endpoint that reaches itself through a Service
	clusterIPs    = "KUBE-CLUSTER-IP"  // fronts
	externalIPs   = "KUBE-EXTERNAL-IP" // fronts that are masqueraded
	externalLocal = "KUBE-EXTERNAL-IP-LOCAL"
	balancers     = "KUBE-LOAD-BALANCER"
	balancerLocal = "KUBE-LOAD-BALANCER-LOCAL" // of these, what keeps its source
	guarded       = "KUBE-LOAD-BALANCER-FW"    // reached by some sources only:
	sourceAddrs   = "KUBE-LOAD-BALANCER-SOURCE-IP"
	sourceNets    = "KUBE-LOAD-BALANCER-SOURCE-CIDR"
	nodeTCP       = "KUBE-NODE-PORT-TCP"
	nodeTCPLocal  = "KUBE-NODE-PORT-LOCAL-TCP"
	nodeUDP       = "KUBE-NODE-PORT-UDP"
	nodeUDPLocal  = "KUBE-NODE-PORT-LOCAL-UDP"
	nodeSCTP      = "KUBE-NODE-PORT-SCTP-HASH"
	nodeSCTPLocal = "KUBE-NODE-PORT-LOCAL-SCTP-HASH"
	healthPorts   = "KUBE-HEALTH-CHECK-NODE-PORT"
	bound         = "KUBE-IPVS-IPS"     // addresses of the device
	absentInside  = "KUBE-ABSENT"       // fronts that a Local policy has nobody for
	absentOutside = "KUBE-ABSENT-OUTER" // the same, but for pods and the node itself
)

var setTypes = []netlink.IPSet{
	{Name: loopBack, Type: "hash:ip,port,ip"}, {Name: clusterIPs, Type: "hash:ip,port"}, {Name: externalIPs, Type: "hash:ip,port"},
	{Name: externalLocal, Type: "hash:ip,port"}, {Name: balancers, Type: "hash:ip,port"}, {Name: balancerLocal, Type: "hash:ip,port"},
	{Name: guarded, Type: "hash:ip,port"}, {Name: sourceAddrs, Type: "hash:ip,port,ip"}, {Name: sourceNets, Type: "hash:ip,port,net"},
	{Name: nodeTCP, Type: "bitmap:port"}, {Name: nodeTCPLocal, Type: "bitmap:port"}, {Name: nodeUDP, Type: "bitmap:port"},
	{Name: nodeUDPLocal, Type: "bitmap:port"}, {Name: nodeSCTP, Type: "hash:ip,port"}, {Name: nodeSCTPLocal, Type: "hash:ip,port"},
	{Name: healthPorts, Type: "bitmap:port"}, {Name: bound, Type: "hash:ip"}, {Name: absentInside, Type: "hash:ip,port"},
	{Name: absentOutside, Type: "hash:ip,port"},
}

// setName is that of a family; the kernel takes 31 bytes.
func setName(name string, v6 bool) string {
	if !v6 {
		return name
	}
	name = strings.Replace(name, "KUBE-", "KUBE-6-", 1)
	return name[:min(len(name), 31)]
}

// sets are those of a family by their IPv4 name.
func sets(v6 bool) map[string]netlink.IPSet {
	out := map[string]netlink.IPSet{}
	for _, s := range setTypes {
		was := s.Name
		s.Name, s.V6 = setName(s.Name, v6), v6
		out[was] = s
	}
	return out
}

// element of a set.
type element struct {
	set string
	netlink.IPSetEntry
}

// server is a virtual service and where it leads.
type server struct {
	host.Service
	host.Settings
	to []netip.AddrPort
	// stay are those that flows may go on with though new ones are not led to them: of protocols whose
	// connections do not end by themselves.
	stay []netip.AddrPort
	// bind has the device carry its address.
	bind bool
	// rank is what it is a front of: of two ports that claim one, the lower wins.
	rank int
}

// part is what one port adds.
type part struct {
	servers  []server
	elements []element
}

// part decides what a port adds. Pure.
func (s *scene) part(p *proxy.Port) (out part) {
	add := func(set string, e netlink.IPSetEntry) { out.elements = append(out.elements, element{set, e}) }
	front := func(a netip.Addr, port uint16) netlink.IPSetEntry {
		return netlink.IPSetEntry{Addr: a, Port: port, Protocol: p.Protocol}
	}
	serve := func(a netip.Addr, port uint16, to []netip.AddrPort, bind bool, rank int) {
		out.servers = append(out.servers, server{Service: host.Service{At: netip.AddrPortFrom(a, port), Protocol: p.Protocol},
			Settings: host.Settings{Scheduler: s.scheduler, Persistent: p.Affinity, SourceHash: s.scheduler == "mh"}, to: to, stay: p.Serving, bind: bind, rank: rank})
		if bind {
			add(bound, netlink.IPSetEntry{Addr: a})
		}
	}
	for _, ep := range slices.Concat(p.Cluster, p.Local) {
		if slices.Contains(p.Here, ep.Addr()) {
			add(loopBack, netlink.IPSetEntry{Addr: ep.Addr(), Port: ep.Port(), Protocol: p.Protocol, Second: ep.Addr()})
		}
	}
	serve(p.ClusterIP, p.Port, p.Internal(), true, 0)
	add(clusterIPs, front(p.ClusterIP, p.Port))
	if p.Endpoints && len(p.Internal()) == 0 {
		add(absentInside, front(p.ClusterIP, p.Port))
	}
	// One virtual service leads everyone to the same endpoints: where there are some here, what begins on
	// this node goes to these too.
	outside := p.Outside()
	lost := p.ExternalLocal && p.Endpoints && len(outside) == 0
	if lost {
		outside = p.Cluster
	}
	lead := func(a netip.Addr, port uint16, bind bool, rank int) {
		serve(a, port, outside, bind, rank)
		if lost {
			add(absentOutside, front(a, port))
		}
	}
	for _, a := range p.LoadBalancerIPs {
		at := front(a, p.Port)
		add(balancers, at)
		if p.ExternalLocal {
			add(balancerLocal, at)
		}
		if len(p.Sources) > 0 {
			s.guard(p, at, add)
		}
		lead(a, p.Port, !slices.Contains(s.local, a), 1)
	}
	for _, a := range p.ExternalIPs {
		set := externalIPs
		if p.ExternalLocal {
			set = externalLocal
		}
		add(set, front(a, p.Port))
		lead(a, p.Port, !slices.Contains(s.local, a), 2)
	}
	if p.NodePort != 0 {
		for _, a := range s.open {
			lead(a, p.NodePort, false, 3)
		}
		s.nodePort(p, add)
	}
	if p.HealthPort != 0 {
		add(healthPorts, netlink.IPSetEntry{Port: p.HealthPort})
	}
	return out
}

// guard admits a load balancer's sources alone.
func (s *scene) guard(p *proxy.Port, at netlink.IPSetEntry, add func(string, netlink.IPSetEntry)) {
	add(guarded, at)
	node := false
	for _, from := range p.Sources {
		e := at
		e.Net = from
		add(sourceNets, e)
		node = node || slices.ContainsFunc(s.node, from.Contains)
	}
	// What the node itself sends there has the balancer's address, which the device carries, as its source.
	if node {
		at.Second = at.Addr
		add(sourceAddrs, at)
	}
}

func (s *scene) nodePort(p *proxy.Port, add func(string, netlink.IPSetEntry)) {
	both := func(all, local string, e netlink.IPSetEntry) {
		add(all, e)
		if p.ExternalLocal {
			add(local, e)
		}
	}
	switch p.Protocol {
	case 6:
		both(nodeTCP, nodeTCPLocal, netlink.IPSetEntry{Port: p.NodePort})
	case 17:
		both(nodeUDP, nodeUDPLocal, netlink.IPSetEntry{Port: p.NodePort})
	case 132:
		for _, a := range s.open {
			both(nodeSCTP, nodeSCTPLocal, netlink.IPSetEntry{Addr: a, Port: p.NodePort, Protocol: p.Protocol})
		}
	}
}
