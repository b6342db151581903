package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// rules are a NetworkPolicy, read. Never changed.
type rules struct {
	name
	pods labels.Selector
	// isolates says for which directions the selected pods are isolated.
	isolates [directions]bool
	allow    [directions][]rule
}

// direction of traffic, as the pod sees it.
type direction uint8

const (
	ingress direction = iota
	egress
	directions
)

// rule allows traffic with any of its peers, at any of its ports.
type rule struct {
	anyone bool
	pods   []selection
	blocks *blocks // nil: none
	// everywhere: at all ports, of all protocols, those without ports included.
	everywhere bool
	ports      []portSpan
	named      []portName
}

type portName struct {
	name     string
	protocol uint8
}

// selection chooses pods of the cluster. Selections with one key choose the same.
type selection struct {
	key string
	// namespace is one by name; empty: those that namespaces matches.
	namespace  string
	namespaces labels.Selector
	pods       labels.Selector
}

func (s *selection) matches(p *pod, namespace labelSet) bool {
	return s.matchesNamespace(p.namespace, namespace) && s.pods.Matches(p.labels)
}

func (s *selection) matchesNamespace(name string, l labelSet) bool {
	if s.namespace != "" {
		return s.namespace == name
	}
	return s.namespaces.Matches(l)
}

// all pods of the cluster.
func all() selection { return selection{"*/*", "", labels.Everything(), labels.Everything()} }

// read takes up a NetworkPolicy. What it can't read allows nothing, so that what a later version of the API
// says restricts too much rather than too little; the error tells of it.
func read(p *networkingv1.NetworkPolicy) (*rules, error) {
	r := &rules{name: name{p.Namespace, p.Name}}
	var errs []error
	var err error
	if r.pods, err = metav1.LabelSelectorAsSelector(&p.Spec.PodSelector); err != nil {
		return nil, fmt.Errorf("read podSelector of network policy %s/%s: %w", p.Namespace, p.Name, err)
	}
	types := p.Spec.PolicyTypes
	r.isolates[ingress] = len(types) == 0 || slices.Contains(types, networkingv1.PolicyTypeIngress)
	r.isolates[egress] = len(types) == 0 && len(p.Spec.Egress) > 0 || slices.Contains(types, networkingv1.PolicyTypeEgress)
	add := func(d direction, i int, peers []networkingv1.NetworkPolicyPeer, at []networkingv1.NetworkPolicyPort) {
		rule, err := readRule(p.Namespace, peers, at)
		if err != nil {
			errs = append(errs, fmt.Errorf("read rule %d of network policy %s/%s: %w", i, p.Namespace, p.Name, err))
		}
		r.allow[d] = append(r.allow[d], rule)
	}
	if r.isolates[ingress] {
		for i, in := range p.Spec.Ingress {
			add(ingress, i, in.From, in.Ports)
		}
	}
	if r.isolates[egress] {
		for i, out := range p.Spec.Egress {
			add(egress, i, out.To, out.Ports)
		}
	}
	return r, errors.Join(errs...)
}

func readRule(namespace string, peers []networkingv1.NetworkPolicyPeer, at []networkingv1.NetworkPolicyPort) (rule, error) {
	r := rule{anyone: len(peers) == 0, everywhere: len(at) == 0}
	var errs []error
	var spans []span
	for i := range peers {
		if b := peers[i].IPBlock; b != nil {
			s, err := readBlock(b)
			errs, spans = append(errs, err), append(spans, s...)
			continue
		}
		s, err := readSelection(namespace, &peers[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !slices.ContainsFunc(r.pods, func(o selection) bool { return o.key == s.key }) {
			r.pods = append(r.pods, s)
		}
	}
	if len(spans) > 0 {
		r.blocks = blocksOf(spans)
	}
	for i := range at {
		errs = append(errs, r.readPort(&at[i]))
	}
	return r, errors.Join(errs...)
}

func readBlock(b *networkingv1.IPBlock) ([]span, error) {
	cidr, err := parseCIDR(b.CIDR)
	if err != nil {
		return nil, err
	}
	var except []netip.Prefix
	for _, s := range b.Except {
		e, err := parseCIDR(s)
		if err != nil { // the exception could be anything of the block
			return nil, err
		}
		except = append(except, e)
	}
	return without(cidr, except), nil
}

// parseCIDR reads IPv4 in IPv6 as IPv4, which it is on the wire.
func parseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("ipBlock: %w", err)
	}
	const mapped = 96
	if p.Addr().Is4In6() && p.Bits() >= mapped {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return p, nil
}

func readSelection(namespace string, peer *networkingv1.NetworkPolicyPeer) (selection, error) {
	s := selection{namespace: namespace, pods: labels.Everything()}
	var err error
	if peer.PodSelector != nil {
		if s.pods, err = metav1.LabelSelectorAsSelector(peer.PodSelector); err != nil {
			return s, fmt.Errorf("podSelector: %w", err)
		}
	}
	if peer.NamespaceSelector == nil {
		if peer.PodSelector == nil {
			return s, errors.New("a peer that is neither podSelector, namespaceSelector nor ipBlock")
		}
		s.key = "=" + namespace + "/" + keyOf(s.pods)
		return s, nil
	}
	s.namespace = ""
	if s.namespaces, err = metav1.LabelSelectorAsSelector(peer.NamespaceSelector); err != nil {
		return s, fmt.Errorf("namespaceSelector: %w", err)
	}
	s.key = keyOf(s.namespaces) + "/" + keyOf(s.pods)
	return s, nil
}

// keyOf is the same for selectors that are written alike; their requirements are sorted.
func keyOf(s labels.Selector) string {
	if s.Empty() {
		return "*"
	}
	return s.String()
}

func (r *rule) readPort(p *networkingv1.NetworkPolicyPort) error {
	protocol := uint8(tcp)
	if p.Protocol != nil {
		if protocol = protocolOf(*p.Protocol); protocol == 0 {
			return fmt.Errorf("protocol %q: must be TCP, UDP or SCTP", *p.Protocol)
		}
	}
	switch {
	case p.Port == nil:
		r.ports = append(r.ports, portSpan{protocol, 0, 65535})
	case p.Port.Type == intstr.String:
		r.named = append(r.named, portName{p.Port.StrVal, protocol})
	default:
		s := portSpan{protocol, uint16(p.Port.IntVal), uint16(p.Port.IntVal)}
		if p.EndPort != nil {
			s.to = uint16(*p.EndPort)
		}
		r.ports = append(r.ports, s)
	}
	return nil
}
