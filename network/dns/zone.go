package dns

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// View is the cluster as DNS sees it.
type View interface {
	// Service returns nil when there is none.
	Service(namespace, name string) *corev1.Service
	// Slices are the EndpointSlices of a Service.
	Slices(namespace, service string) []*discoveryv1.EndpointSlice
	// HasNamespace tells whether a namespace holds any Service.
	HasNamespace(namespace string) bool
	// ServiceByIP finds the Service that has a cluster IP.
	ServiceByIP(ip netip.Addr) *corev1.Service
	// EndpointsByIP finds the slices in which an address is an endpoint.
	SlicesByIP(ip netip.Addr) []*discoveryv1.EndpointSlice
}

// record is one answer, free of any wire type: exactly one of IP, SRV, Target or Text is set.
type record struct {
	ip     netip.Addr
	srv    *srv
	target string // of a CNAME or PTR
	text   string
}

type srv struct {
	port   uint16
	target string
	ip     []netip.Addr // of target, for the additional section
}

// answer is what a name holds. exists without records is NODATA, not exists is NXDOMAIN.
type answer struct {
	exists  bool
	records []record
}

// zone answers questions under the cluster domain as
// https://github.com/kubernetes/dns/blob/master/docs/specification.md (version 1.1.0) says.
type zone struct {
	domain string // with trailing dot, lower case
	view   View
}

type question int

const (
	askA question = iota
	askAAAA
	askSRV
	askTXT
	askOther
)

// contains tells whether name belongs to the cluster domain.
func (z zone) contains(name string) bool {
	return name == z.domain || strings.HasSuffix(name, "."+z.domain)
}

// resolve answers a question for a lower-case absolute name in the zone.
func (z zone) resolve(name string, q question) answer {
	rest := strings.TrimSuffix(strings.TrimSuffix(name, z.domain), ".")
	if rest == "" {
		return answer{exists: true}
	}
	labels := strings.Split(rest, ".")
	last := len(labels) - 1
	switch labels[last] {
	case "dns-version":
		if last == 0 {
			a := answer{exists: true}
			if q == askTXT {
				a.records = []record{{text: "1.1.0"}}
			}
			return a
		}
	case "svc":
		return z.resolveService(labels[:last], q)
	case "pod":
		return z.resolvePod(labels[:last], q)
	}
	return answer{}
}

// resolveService: <service>.<ns>, <hostname>.<service>.<ns>, _port._proto.<service>.<ns>.
func (z zone) resolveService(labels []string, q question) answer {
	switch len(labels) {
	case 0:
		return answer{exists: true}
	case 1:
		return answer{exists: z.view.HasNamespace(labels[0])}
	}
	ns, name := labels[len(labels)-1], labels[len(labels)-2]
	svc := z.view.Service(ns, name)
	if svc == nil {
		return answer{}
	}
	sub := labels[:len(labels)-2]
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		if len(sub) > 0 {
			return answer{}
		}
		return answer{exists: true, records: []record{{target: fqdn(svc.Spec.ExternalName)}}}
	}
	base := name + "." + ns + ".svc." + z.domain
	headless := svc.Spec.ClusterIP == corev1.ClusterIPNone
	switch {
	case len(sub) == 0 && headless:
		return z.headless(svc, base, q)
	case len(sub) == 0:
		return clusterIPs(svc, base, q)
	case len(sub) == 2 && strings.HasPrefix(sub[0], "_") && strings.HasPrefix(sub[1], "_"):
		return z.ports(svc, base, sub[0][1:], sub[1][1:], headless, q)
	case len(sub) == 1 && strings.HasPrefix(sub[0], "_"):
		return answer{exists: true} // an empty non-terminal above _port._proto
	case len(sub) == 1 && headless:
		return z.endpoint(svc, sub[0], q)
	}
	return answer{}
}

func clusterIPs(svc *corev1.Service, base string, q question) answer {
	a := answer{exists: true}
	ips := addrs(svc.Spec.ClusterIPs)
	if len(ips) == 0 {
		ips = addrs([]string{svc.Spec.ClusterIP})
	}
	if q == askSRV {
		for _, p := range svc.Spec.Ports {
			a.records = append(a.records, record{srv: &srv{port: uint16(p.Port), target: base, ip: ips}})
		}
		return a
	}
	a.records = pick(ips, q)
	return a
}

// endpointRef is one endpoint of a headless Service.
type endpointRef struct {
	host  string
	ips   []netip.Addr
	ports []discoveryv1.EndpointPort
}

func (z zone) endpoints(svc *corev1.Service) []endpointRef {
	var refs []endpointRef
	for _, s := range z.view.Slices(svc.Namespace, svc.Name) {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.Conditions.Ready != nil && !*e.Conditions.Ready && !svc.Spec.PublishNotReadyAddresses {
				continue
			}
			ips := addrs(e.Addresses)
			if len(ips) == 0 {
				continue
			}
			refs = append(refs, endpointRef{host: endpointName(e, ips[0]), ips: ips, ports: s.Ports})
		}
	}
	return refs
}

// endpointName is the endpoint's hostname, else its address with dashes.
func endpointName(e *discoveryv1.Endpoint, ip netip.Addr) string {
	if e.Hostname != nil && *e.Hostname != "" {
		return *e.Hostname
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip.String())
}

func (z zone) headless(svc *corev1.Service, base string, q question) answer {
	a := answer{}
	for _, e := range z.endpoints(svc) {
		a.exists = true
		if q != askSRV {
			a.records = append(a.records, pick(e.ips, q)...)
			continue
		}
		for _, p := range e.ports {
			if p.Port != nil {
				a.records = append(a.records, record{srv: &srv{port: uint16(*p.Port), target: e.host + "." + base, ip: e.ips}})
			}
		}
	}
	return a
}

func (z zone) endpoint(svc *corev1.Service, host string, q question) answer {
	a := answer{}
	for _, e := range z.endpoints(svc) {
		if strings.EqualFold(e.host, host) {
			a.exists = true
			a.records = append(a.records, pick(e.ips, q)...)
		}
	}
	return a
}

func (z zone) ports(svc *corev1.Service, base, port, proto string, headless bool, q question) answer {
	a := answer{}
	if !headless {
		for _, p := range svc.Spec.Ports {
			if strings.EqualFold(p.Name, port) && strings.EqualFold(string(p.Protocol), proto) {
				a.exists = true
				if q == askSRV {
					a.records = append(a.records, record{srv: &srv{port: uint16(p.Port), target: base, ip: addrs(svc.Spec.ClusterIPs)}})
				}
			}
		}
		return a
	}
	for _, e := range z.endpoints(svc) {
		for _, p := range e.ports {
			if p.Name == nil || p.Protocol == nil || p.Port == nil ||
				!strings.EqualFold(*p.Name, port) || !strings.EqualFold(string(*p.Protocol), proto) {
				continue
			}
			a.exists = true
			if q == askSRV {
				a.records = append(a.records, record{srv: &srv{port: uint16(*p.Port), target: e.host + "." + base, ip: e.ips}})
			}
		}
	}
	return a
}

// resolvePod answers a-b-c-d.<ns>.pod with the address that the name spells.
func (z zone) resolvePod(labels []string, q question) answer {
	if len(labels) < 2 {
		return answer{exists: len(labels) == 0 || z.view.HasNamespace(labels[0])}
	}
	if len(labels) > 2 {
		return answer{}
	}
	ip, err := netip.ParseAddr(strings.ReplaceAll(labels[0], "-", "."))
	if err != nil {
		ip, err = netip.ParseAddr(strings.ReplaceAll(labels[0], "-", ":"))
	}
	if err != nil {
		return answer{}
	}
	return answer{exists: true, records: pick([]netip.Addr{ip}, q)}
}

// reverse answers PTR questions for cluster IPs and endpoints with a hostname or of headless
// Services; found is false when the address is not the cluster's.
func (z zone) reverse(ip netip.Addr) (records []record, found bool) {
	if svc := z.view.ServiceByIP(ip); svc != nil {
		return []record{{target: svc.Name + "." + svc.Namespace + ".svc." + z.domain}}, true
	}
	for _, s := range z.view.SlicesByIP(ip) {
		name := s.Labels[discoveryv1.LabelServiceName]
		svc := z.view.Service(s.Namespace, name)
		if svc == nil || svc.Spec.ClusterIP != corev1.ClusterIPNone {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			for _, a := range addrs(e.Addresses) {
				if a == ip {
					records = append(records, record{target: endpointName(e, ip) + "." + name + "." + s.Namespace + ".svc." + z.domain})
				}
			}
		}
	}
	return records, len(records) > 0
}

func pick(ips []netip.Addr, q question) []record {
	var rs []record
	for _, ip := range ips {
		if (q == askA && ip.Is4()) || (q == askAAAA && ip.Is6()) {
			rs = append(rs, record{ip: ip})
		}
	}
	return rs
}

func addrs(ss []string) []netip.Addr {
	var as []netip.Addr
	for _, s := range ss {
		if a, err := netip.ParseAddr(s); err == nil {
			as = append(as, a.Unmap())
		}
	}
	return as
}

func fqdn(s string) string { return strings.TrimSuffix(s, ".") + "." }
