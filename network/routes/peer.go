package routes

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Annotation of a Node in which it tells the others how to reach it by VXLAN. NodeRestriction lets
// each node write its own.
const Annotation = "skiff.dev/vxlan"

// peer is what a Node object says of its pods' network.
type peer struct {
	name string
	// created orders nodes that claim the same CIDR: Unix seconds.
	created int64
	// ips are the InternalIPs, the first of each family.
	ips []netip.Addr
	// podCIDRs, masked.
	podCIDRs []netip.Prefix
	tunnel   *tunnel
}

// tunnel is the annotation's content.
type tunnel struct {
	VNI  uint32 `json:"vni"`
	Port uint16 `json:"port"`
	MAC  mac    `json:"mac"`
	// OnLink are the prefixes that the node sees on its links. Both ends of a path must see each
	// other there, else both use VXLAN: packets that come one way and go another fall to reverse
	// path filters and firewalls.
	OnLink []netip.Prefix `json:"onLink"`
}

// sees tells whether the node has an address on a link.
func (t tunnel) sees(a netip.Addr) bool {
	return slices.ContainsFunc(t.OnLink, func(p netip.Prefix) bool { return p.Contains(a) })
}

// OnLink tells whether a node's annotation says that it sees an address on one of its links.
func OnLink(annotation string, a netip.Addr) bool {
	t, err := decodeTunnel(annotation)
	return err == nil && t.sees(a)
}

func (t tunnel) equal(o tunnel) bool {
	return t.VNI == o.VNI && t.Port == o.Port && t.MAC == o.MAC && slices.Equal(t.OnLink, o.OnLink)
}

const maxVNI = 1<<24 - 1

// maxOnLink bounds what every node is told of every other.
const maxOnLink = 64

type mac [6]byte

// macOf a node: the same for each start. The first byte's low bits say "locally administered, one host".
func macOf(cluster, node string) (m mac) {
	sum := sha256.Sum256([]byte("vxlan/" + cluster + "/" + node))
	copy(m[:], sum[:])
	m[0] = m[0]&^1 | 2
	return m
}

func (m mac) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText implements encoding.TextMarshaler.
func (m mac) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *mac) UnmarshalText(text []byte) error {
	hw, err := net.ParseMAC(string(text))
	if err != nil {
		return err
	}
	if len(hw) != len(m) || hw[0]&1 != 0 {
		return fmt.Errorf("%s is no MAC address of one host", text)
	}
	copy(m[:], hw)
	return nil
}

// linkLocal is the IPv6 address by which the tunnels' neighbour with the MAC is known (RFC 4291, appendix A).
func (m mac) linkLocal() netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

func decodeTunnel(text string) (*tunnel, error) {
	var t tunnel
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", Annotation, err)
	}
	if t.VNI == 0 || t.VNI > maxVNI || t.Port == 0 || t.MAC == (mac{}) {
		return nil, fmt.Errorf("annotation %s: needs vni (1 to %d), port and mac", Annotation, maxVNI)
	}
	if len(t.OnLink) > maxOnLink || slices.ContainsFunc(t.OnLink, func(p netip.Prefix) bool { return !p.IsValid() }) {
		return nil, fmt.Errorf("annotation %s: onLink takes at most %d prefixes", Annotation, maxOnLink)
	}
	return &t, nil
}

func (t tunnel) encode() (string, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("encode annotation %s: %w", Annotation, err)
	}
	return string(text), nil
}

// readPeer reads a Node. What is wrong is left out, and told.
func readPeer(n *corev1.Node) (peer, []error) {
	p := peer{name: n.Name, created: n.CreationTimestamp.Unix()}
	var errs []error
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		ip, err := netip.ParseAddr(a.Address)
		if err != nil {
			errs = append(errs, fmt.Errorf("status.addresses: %w", err))
			continue
		}
		if ip = ip.Unmap().WithZone(""); !p.ip(ip.Is6()).IsValid() {
			p.ips = append(p.ips, ip)
		}
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		c, err := netip.ParsePrefix(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("spec.podCIDRs: %w", err))
			continue
		}
		p.podCIDRs = append(p.podCIDRs, c.Masked())
	}
	if text, ok := n.Annotations[Annotation]; ok {
		t, err := decodeTunnel(text)
		if err != nil {
			errs = append(errs, err)
		}
		p.tunnel = t
	}
	return p, errs
}

// ip of a family; invalid if the node has none.
func (p peer) ip(v6 bool) netip.Addr {
	for _, a := range p.ips {
		if a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}

func (p peer) equal(o peer) bool {
	if p.name != o.name || p.created != o.created || !slices.Equal(p.ips, o.ips) || !slices.Equal(p.podCIDRs, o.podCIDRs) {
		return false
	}
	if p.tunnel == nil || o.tunnel == nil {
		return p.tunnel == o.tunnel
	}
	return p.tunnel.equal(*o.tunnel)
}

// before tells whose claim of a CIDR goes first: the older node's.
func (p peer) before(o peer) int {
	return cmp.Or(cmp.Compare(p.created, o.created), cmp.Compare(p.name, o.name))
}

// Transform keeps of a Node what the pod network reads: with thousands of nodes the rest, chiefly the
// images that each has, is most of an informer's memory. It changes its argument, which nobody else
// has yet.
func Transform(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	kept := &corev1.Node{}
	kept.Name, kept.UID, kept.ResourceVersion, kept.CreationTimestamp = n.Name, n.UID, n.ResourceVersion, n.CreationTimestamp
	if zone, ok := n.Labels[corev1.LabelTopologyZone]; ok {
		kept.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	if text, ok := n.Annotations[Annotation]; ok {
		kept.Annotations = map[string]string{Annotation: text}
	}
	kept.Spec.PodCIDR, kept.Spec.PodCIDRs = n.Spec.PodCIDR, n.Spec.PodCIDRs
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			kept.Status.Addresses = append(kept.Status.Addresses, a)
		}
	}
	return kept, nil
}
