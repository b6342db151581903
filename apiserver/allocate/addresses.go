package allocate

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

var (
	errFull       = errors.New("range is full")
	errTaken      = errors.New("provided IP is already allocated")
	errMismatched = errors.New("the provided network does not match the current range")

	errNotOurs = errors.New("the address belongs to another object")
)

var (
	serviceCIDRs = schema.GroupResource{Group: networkingv1.GroupName, Resource: "servicecidrs"}
	ipAddresses  = schema.GroupResource{Group: networkingv1.GroupName, Resource: "ipaddresses"}
)

// managedBy marks the IPAddresses that API servers make; upstream's value, so that each
// repairs what the other left.
const managedBy = "ipallocator.k8s.io"

// addresses allocates from the ServiceCIDRs that are ready.
type addresses struct {
	caches lookup.Caches
	clock  clock.PassiveClock
}

// ranges are the ranges of a family that new addresses may come from.
func (a *addresses) ranges(ctx context.Context, family corev1.IPFamily) ([]addressRange, error) {
	cidrs, err := lookup.CachedList[*networkingv1.ServiceCIDR](ctx, a.caches, serviceCIDRs, "")
	if err != nil {
		return nil, fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	if len(cidrs) == 0 { // the cache may be behind at the very start
		if cidrs, err = lookup.FreshList[*networkingv1.ServiceCIDR](ctx, a.caches, serviceCIDRs, ""); err != nil {
			return nil, fmt.Errorf("list ServiceCIDRs: %w", err)
		}
	}
	var out []addressRange
	for _, c := range cidrs {
		if !ready(c) {
			continue
		}
		for _, s := range c.Spec.CIDRs {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				continue // validation does not let it in
			}
			if (family == corev1.IPv6Protocol) == p.Addr().Is6() {
				out = append(out, newRange(p))
			}
		}
	}
	return out, nil
}

func ready(c *networkingv1.ServiceCIDR) bool {
	if c.DeletionTimestamp != nil {
		return false
	}
	for _, cond := range c.Status.Conditions {
		if cond.Type == networkingv1.ServiceCIDRConditionReady {
			return cond.Status == metav1.ConditionTrue
		}
	}
	return true // the controller that sets it may not run yet
}

// addressRange is a CIDR without its network and broadcast addresses. Free choices are made
// from upper on first, so that those a user asks for in the lower part rarely collide (KEP-3070).
type addressRange struct {
	first, upper, last netip.Addr
	size               uint64 // addresses from first to last
	offset             uint64 // of upper
}

func newRange(p netip.Prefix) addressRange {
	p = p.Masked()
	bits := p.Addr().BitLen() - p.Bits()
	r := addressRange{first: p.Addr().Next()}
	var total uint64 = 1 << 63
	if bits < 63 {
		total = 1 << bits
	}
	r.last = plus(p.Addr(), total-1)
	r.size = total - 1
	if p.Addr().Is4() {
		r.last = r.last.Prev() // broadcast
		r.size--
	}
	if total <= 2 {
		r.size = 0
	}
	if total > 16 {
		r.offset = min(max(total/16, 16), 256)
		if r.offset > r.size {
			r.offset = 0
		}
	}
	r.upper = plus(r.first, r.offset)
	return r
}

func plus(a netip.Addr, n uint64) netip.Addr {
	i := new(big.Int).SetBytes(a.AsSlice())
	i.Add(i, new(big.Int).SetUint64(n))
	b := make([]byte, a.BitLen()/8)
	sum, _ := netip.AddrFromSlice(i.FillBytes(b))
	return sum
}

func (r addressRange) contains(ip netip.Addr) bool {
	return r.size > 0 && r.first.Compare(ip) <= 0 && ip.Compare(r.last) <= 0
}

// candidates yields every address once, from random places, the upper part first.
func (r addressRange) candidates(yield func(netip.Addr) bool) {
	part := func(from netip.Addr, n uint64) bool {
		if n == 0 {
			return true
		}
		start := rand.Uint64N(n)
		ip := plus(from, start)
		for i := range n {
			if start+i == n {
				ip = from
			}
			if !yield(ip) {
				return false
			}
			ip = ip.Next()
		}
		return true
	}
	if part(r.upper, r.size-r.offset) {
		part(r.first, r.offset)
	}
}

// allocateNext takes a free address. A dry run answers with an address that is free now.
func (a *addresses) allocateNext(ctx context.Context, family corev1.IPFamily, s *corev1.Service, dryRun bool) (string, error) {
	ranges, err := a.ranges(ctx, family)
	if err != nil {
		return "", err
	}
	objects, err := lookup.Resource(a.caches, ipAddresses)
	if err != nil {
		return "", err
	}
	for _, r := range ranges {
		for ip := range r.candidates {
			_, err := objects.Get(ctx, "", ip.String(), "0")
			if err == nil {
				continue
			}
			if !apierrors.IsNotFound(err) {
				return "", err
			}
			if dryRun {
				return ip.String(), nil
			}
			err = a.make(ctx, objects, ip.String(), s)
			if err == nil {
				return ip.String(), nil
			}
			if !errors.Is(err, errTaken) {
				return "", err
			}
		}
	}
	return "", errFull
}

// allocate takes a certain address.
func (a *addresses) allocate(ctx context.Context, wanted string, s *corev1.Service, dryRun bool) error {
	ip, err := netip.ParseAddr(wanted)
	if err != nil {
		return fmt.Errorf("parse IP: %w", err)
	}
	ranges, err := a.ranges(ctx, familyOf(wanted))
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(ranges, func(r addressRange) bool { return r.contains(ip) }) {
		return errMismatched
	}
	objects, err := lookup.Resource(a.caches, ipAddresses)
	if err != nil {
		return err
	}
	if dryRun {
		if _, err := objects.Get(ctx, "", ip.String(), ""); err == nil {
			return errTaken
		} else if !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	return a.make(ctx, objects, ip.String(), s)
}

func (a *addresses) make(ctx context.Context, objects cacher.Resource, name string, s *corev1.Service) error {
	_, err := objects.Create(ctx, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			UID:               types.UID(uuid.NewString()),
			CreationTimestamp: metav1.NewTime(a.clock.Now()).Rfc3339Copy(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOf(name)),
				networkingv1.LabelManagedBy:       managedBy,
			},
		},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name},
		},
	}, 0)
	if apierrors.IsAlreadyExists(err) {
		return errTaken
	}
	return err
}

// belongsTo says whether an IPAddress is a Service's.
func belongsTo(ip *networkingv1.IPAddress, namespace, name string) bool {
	p := ip.Spec.ParentRef
	return p != nil && p.Group == "" && p.Resource == "services" && p.Namespace == namespace && p.Name == name
}

// release frees an address, but only if it is the Service's.
func (a *addresses) release(ctx context.Context, ip string, s *corev1.Service) error {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return fmt.Errorf("parse IP: %w", err)
	}
	objects, err := lookup.Resource(a.caches, ipAddresses)
	if err != nil {
		return err
	}
	_, err = objects.Delete(ctx, "", addr.String(), cacher.Preconditions{}, func(current cacher.Object) error {
		if !belongsTo(current.Runtime().(*networkingv1.IPAddress), s.Namespace, s.Name) {
			return errNotOurs
		}
		return nil
	})
	if apierrors.IsNotFound(err) || errors.Is(err, errNotOurs) {
		return nil
	}
	return err
}
