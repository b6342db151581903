package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// labelSet holds labels in the order of their keys, in a third of a map's memory. It implements labels.Labels.
type labelSet []label

type label struct{ key, value string }

func labelsOf(m map[string]string) labelSet {
	if len(m) == 0 {
		return nil
	}
	s := make(labelSet, 0, len(m))
	for k, v := range m {
		// Pods have most of their labels in common with others.
		s = append(s, label{unique.Make(k).Value(), unique.Make(v).Value()})
	}
	slices.SortFunc(s, func(a, b label) int { return cmp.Compare(a.key, b.key) })
	return s
}

// Lookup implements labels.Labels.
func (s labelSet) Lookup(key string) (string, bool) {
	for i := range s { // a handful
		if s[i].key == key {
			return s[i].value, true
		}
	}
	return "", false
}

// Get implements labels.Labels.
func (s labelSet) Get(key string) string { v, _ := s.Lookup(key); return v }

// Has implements labels.Labels.
func (s labelSet) Has(key string) bool { _, ok := s.Lookup(key); return ok }

var _ labels.Labels = labelSet(nil)

// name of an object.
type name struct{ namespace, name string }

// pod is what policies ask of one. Never changed once it is known.
type pod struct {
	name
	// uid is that of the sandbox: a static pod's is not its mirror's.
	uid    string
	node   string
	labels labelSet
	addrs  []netip.Addr
	ports  []namedPort
}

type namedPort struct {
	name     string
	protocol uint8
	port     uint16
}

// Protocols that ports may have, by their number.
const (
	tcp  = 6
	udp  = 17
	sctp = 132
)

// protocolOf is 0 for one that there is not.
func protocolOf(p corev1.Protocol) uint8 {
	switch p {
	case corev1.ProtocolTCP, "":
		return tcp
	case corev1.ProtocolUDP:
		return udp
	case corev1.ProtocolSCTP:
		return sctp
	}
	return 0
}

// podOf keeps what is needed; nil for one that has no address of its own any more, or shares the node's.
func podOf(p *corev1.Pod) *pod {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	intern := func(s string) string { return unique.Make(s).Value() }
	out := &pod{name: name{intern(p.Namespace), p.Name}, uid: string(p.UID), node: intern(p.Spec.NodeName), labels: labelsOf(p.Labels)}
	if own := p.Annotations[corev1.MirrorPodAnnotationKey]; own != "" {
		out.uid = own
	}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out.addrs = append(out.addrs, a.Unmap())
		}
	}
	if a, err := netip.ParseAddr(p.Status.PodIP); err == nil && len(out.addrs) == 0 {
		out.addrs = []netip.Addr{a.Unmap()}
	}
	// Sidecars have ports too.
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			for _, c := range list[i].Ports {
				if protocol := protocolOf(c.Protocol); c.Name != "" && protocol != 0 {
					out.ports = append(out.ports, namedPort{intern(c.Name), protocol, uint16(c.ContainerPort)})
				}
			}
		}
	}
	return out
}

// named are the ports of a pod with a name and protocol.
func (p *pod) named(name string, protocol uint8) (out []uint16) {
	for _, n := range p.ports {
		if n.name == name && n.protocol == protocol && !slices.Contains(out, n.port) {
			out = append(out, n.port)
		}
	}
	return out
}

// equal in all that policies ask.
func (p *pod) equal(o *pod) bool {
	return p.name == o.name && p.uid == o.uid && p.node == o.node &&
		slices.Equal(p.labels, o.labels) && slices.Equal(p.addrs, o.addrs) && slices.Equal(p.ports, o.ports)
}
