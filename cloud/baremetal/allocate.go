package baremetal

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations of a Service by which a user asks.
const (
	// AddressesAnnotation asks for addresses: one, or one of each family.
	AddressesAnnotation = "skiff.dev/load-balancer-addresses"
	// PoolAnnotation asks for a pool.
	PoolAnnotation = "skiff.dev/load-balancer-pool"
	// ShareAnnotation lets Services of the same value have one address, if their ports differ.
	ShareAnnotation = "skiff.dev/load-balancer-share"
)

// port of a Service.
type port struct {
	protocol corev1.Protocol
	number   int32
}

// claim is a Service's hold on its addresses.
type claim struct {
	key   types.NamespacedName
	uid   types.UID
	since int64 // Unix seconds of the Service's creation
	addrs []netip.Addr
	share string
	local bool
	ports []port
}

// before tells whose claim counts where two have one address that they must not share: the older
// Service's.
func (c claim) before(o claim) bool {
	return cmp.Or(cmp.Compare(c.since, o.since), cmp.Compare(c.key.String(), o.key.String())) < 0
}

// mayShare tells whether both can have one address. One node answers for an address, so policy
// Local, which wants nodes with endpoints, cannot share.
func (c claim) mayShare(o claim) bool {
	if c.share == "" || c.share != o.share || c.local || o.local {
		return false
	}
	return !slices.ContainsFunc(c.ports, func(p port) bool { return slices.Contains(o.ports, p) })
}

// request is what a Service wants.
type request struct {
	claim
	families []corev1.IPFamily
	// all families must be had, not as many as possible.
	all    bool
	wanted []netip.Addr
	pool   string
}

// claimOf reads a Service; its addresses are those of its status.
func claimOf(s *corev1.Service) claim {
	c := claim{key: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, uid: s.UID, since: s.CreationTimestamp.Unix(),
		share: s.Annotations[ShareAnnotation], local: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		addrs: ingress(&s.Status.LoadBalancer)}
	for _, p := range s.Spec.Ports {
		c.ports = append(c.ports, port{p.Protocol, p.Port})
	}
	return c
}

func ingress(s *corev1.LoadBalancerStatus) (out []netip.Addr) {
	for _, in := range s.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

func requestOf(s *corev1.Service) (request, error) {
	r := request{claim: claimOf(s), families: s.Spec.IPFamilies, pool: s.Annotations[PoolAnnotation], all: true}
	if p := s.Spec.IPFamilyPolicy; p != nil && *p == corev1.IPFamilyPolicyPreferDualStack {
		r.all = false
	}
	field, text := "annotation "+AddressesAnnotation, s.Annotations[AddressesAnnotation]
	if text == "" {
		field, text = "spec.loadBalancerIP", s.Spec.LoadBalancerIP
	}
	for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		a, err := netip.ParseAddr(one)
		if err != nil {
			return r, fmt.Errorf("%s: %q is no IP address", field, one)
		}
		a = a.Unmap()
		if !slices.Contains(r.families, familyOf(a)) {
			return r, fmt.Errorf("%s: %s is of a family that the Service does not have (%v)", field, a, r.families)
		}
		if slices.ContainsFunc(r.wanted, func(o netip.Addr) bool { return o.Is6() == a.Is6() }) {
			return r, fmt.Errorf("%s: %s: want at most one address of each family", field, text)
		}
		r.wanted = append(r.wanted, a)
	}
	return r, nil
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// errNoAddress is no fault of the Service's: an address may become free.
var errNoAddress = errors.New("no address is free")

// allocate chooses the addresses of a Service, in the order of its families. Those that it has
// stay if they can; of the others the first free one is taken. others are all other claims.
func allocate(pools []pool, others []claim, r request) ([]netip.Addr, error) {
	if r.pool != "" && !slices.ContainsFunc(pools, func(p pool) bool { return p.name == r.pool }) {
		return nil, fmt.Errorf("annotation %s: there is no pool %q", PoolAnnotation, r.pool)
	}
	held := map[netip.Addr][]claim{}
	for _, o := range others {
		for _, a := range o.addrs {
			held[a] = append(held[a], o)
		}
	}
	var out []netip.Addr
	var lacking error
	for _, f := range r.families {
		a, err := one(pools, held, r, f)
		switch {
		case err == nil:
			out = append(out, a)
		case r.all || !errors.Is(err, errNoAddress) || slices.ContainsFunc(r.wanted, func(w netip.Addr) bool { return familyOf(w) == f }):
			return nil, err
		default:
			lacking = err
		}
	}
	if len(out) == 0 {
		return nil, cmp.Or(lacking, errNoAddress)
	}
	return out, nil
}

func one(pools []pool, held map[netip.Addr][]claim, r request, f corev1.IPFamily) (netip.Addr, error) {
	free := func(a netip.Addr) bool {
		return !slices.ContainsFunc(held[a], func(o claim) bool { return !r.mayShare(o) })
	}
	usable := func(a netip.Addr, asked bool) bool {
		return slices.ContainsFunc(pools, func(p pool) bool {
			return p.contains(a) && (r.pool == "" && (asked || !p.onRequest) || p.name == r.pool)
		})
	}
	if i := slices.IndexFunc(r.wanted, func(a netip.Addr) bool { return familyOf(a) == f }); i >= 0 {
		a := r.wanted[i]
		if !usable(a, true) {
			return a, fmt.Errorf("%s is in none of the pools that the Service may have", a)
		}
		if !free(a) && !(slices.Contains(r.addrs, a) && r.winsOver(held[a])) {
			return a, fmt.Errorf("%s is %s's: %w", a, held[a][0].key, errNoAddress)
		}
		return a, nil
	}
	// What it has: from the status, which outlives every leader.
	for _, a := range r.addrs {
		if familyOf(a) == f && usable(a, true) && (free(a) || r.winsOver(held[a])) {
			return a, nil
		}
	}
	if r.share != "" {
		for _, a := range sharedBy(held, r) {
			if familyOf(a) == f && usable(a, false) && free(a) {
				return a, nil
			}
		}
	}
	any := false
	for _, p := range pools {
		if r.pool != p.name && (r.pool != "" || p.onRequest) {
			continue
		}
		for a := range p.all(f == corev1.IPv6Protocol) {
			any = true
			if len(held[a]) == 0 {
				return a, nil
			}
		}
	}
	if !any {
		return netip.Addr{}, fmt.Errorf("no pool that the Service may have has %s addresses: %w", f, errNoAddress)
	}
	return netip.Addr{}, fmt.Errorf("all %s addresses of the pools that the Service may have are taken: %w", f, errNoAddress)
}

// winsOver tells whether the claim goes before all that it cannot share with.
func (r request) winsOver(others []claim) bool {
	return !slices.ContainsFunc(others, func(o claim) bool { return !r.mayShare(o) && !r.before(o) })
}

// sharedBy are addresses that Services of the same share have, in order.
func sharedBy(held map[netip.Addr][]claim, r request) []netip.Addr {
	var out []netip.Addr
	for a, cs := range held {
		if slices.ContainsFunc(cs, func(c claim) bool { return c.share == r.share }) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}
