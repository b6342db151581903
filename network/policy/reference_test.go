package policy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reference evaluates policies as their API documentation words them: object by object, address by
// address, nothing shared and nothing remembered.
type reference struct {
	namespaces map[string]map[string]string
	pods       []*corev1.Pod
	policies   []*networkingv1.NetworkPolicy
}

// packet begins a flow.
type packet struct {
	from, to netip.Addr
	protocol corev1.Protocol // empty: one without ports
	port     uint16
}

// number of the protocol; one for experiments (RFC 3692) stands for those without ports.
func (k packet) number() uint8 {
	if k.protocol == "" {
		return 253
	}
	return protocolOf(k.protocol)
}

func (r *reference) podAt(a netip.Addr) *corev1.Pod {
	for _, p := range r.pods {
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if ip.IP == a.String() {
				return p
			}
		}
	}
	return nil
}

func (r *reference) allows(k packet, d direction) bool {
	own, far := k.to, k.from
	if d == egress {
		own, far = k.from, k.to
	}
	pod := r.podAt(own)
	if pod == nil || own == far {
		return true
	}
	isolated := false
	for _, p := range r.policies {
		if p.Namespace != pod.Namespace || !selects(&p.Spec.PodSelector, pod.Labels) || !r.applies(p, d) {
			continue
		}
		isolated = true
		if d == ingress {
			for _, rule := range p.Spec.Ingress {
				if r.peer(p.Namespace, rule.From, far) && r.port(rule.Ports, k, pod) {
					return true
				}
			}
			continue
		}
		for _, rule := range p.Spec.Egress {
			if r.peer(p.Namespace, rule.To, far) && r.port(rule.Ports, k, r.podAt(far)) {
				return true
			}
		}
	}
	return !isolated
}

func (r *reference) applies(p *networkingv1.NetworkPolicy, d direction) bool {
	types := p.Spec.PolicyTypes
	if len(types) == 0 {
		types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	return slices.Contains(types, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}[d])
}

func selects(s *metav1.LabelSelector, l map[string]string) bool {
	for k, v := range s.MatchLabels {
		if have, ok := l[k]; !ok || have != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		have, ok := l[e.Key]
		in := slices.Contains(e.Values, have)
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			ok = ok && in
		case metav1.LabelSelectorOpNotIn:
			ok = !ok || !in
		case metav1.LabelSelectorOpDoesNotExist:
			ok = !ok
		}
		if !ok {
			return false
		}
	}
	return true
}

func (r *reference) peer(own string, peers []networkingv1.NetworkPolicyPeer, far netip.Addr) bool {
	if len(peers) == 0 {
		return true
	}
	pod := r.podAt(far)
	for _, p := range peers {
		if b := p.IPBlock; b != nil {
			in := func(s string) bool { return netip.MustParsePrefix(s).Contains(far) }
			if in(b.CIDR) && !slices.ContainsFunc(b.Except, in) {
				return true
			}
			continue
		}
		if pod == nil || p.PodSelector != nil && !selects(p.PodSelector, pod.Labels) {
			continue
		}
		if p.NamespaceSelector == nil && pod.Namespace == own || p.NamespaceSelector != nil && selects(p.NamespaceSelector, r.namespaces[pod.Namespace]) {
			return true
		}
	}
	return false
}

// port: names mean what they mean at the pod that the packet is sent to.
func (r *reference) port(all []networkingv1.NetworkPolicyPort, k packet, at *corev1.Pod) bool {
	if len(all) == 0 {
		return true
	}
	for _, p := range all {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		switch {
		case protocol != k.protocol:
		case p.Port == nil:
			return true
		case p.Port.StrVal != "":
			if at == nil {
				continue
			}
			for _, c := range at.Spec.Containers {
				for _, named := range c.Ports {
					if named.Name == p.Port.StrVal && named.Protocol == protocol && named.ContainerPort == int32(k.port) {
						return true
					}
				}
			}
		case p.EndPort != nil && p.Port.IntVal <= int32(k.port) && int32(k.port) <= *p.EndPort, p.Port.IntVal == int32(k.port):
			return true
		}
	}
	return false
}
