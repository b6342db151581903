// Package allocate gives Services their cluster IPs and node ports, safely with several
// API servers at once, upstream's among them: an IP is an IPAddress object of that
// name (KEP-1880), node ports are bits of one range object under /registry/ranges.
//
// Owns: what is allocated to whom, and the repair of it. Must not: validate Services
// beyond what choosing needs, or know how they are stored.
package allocate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	netutils "k8s.io/utils/net"

	"github.com/skiff-k8s/skiff/api/core"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/store"
)

// Config configures an Allocator.
type Config struct {
	Caches lookup.Caches
	Store  store.Store
	// Families that the cluster is configured for, the default first; IPv4 if empty.
	Families []corev1.IPFamily
	// NodePorts is the range of node ports; 30000-32767 if empty.
	NodePorts utilnet.PortRange
	// Prefix of keys in the store; /registry/ if empty.
	Prefix string
	Log    *slog.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker
}

// Families of ranges of cluster IPs, in their order.
func Families(cidrs []netip.Prefix) []corev1.IPFamily {
	var out []corev1.IPFamily
	for _, p := range cidrs {
		f := corev1.IPv4Protocol
		if p.Addr().Is6() {
			f = corev1.IPv6Protocol
		}
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// Allocator allocates and repairs.
type Allocator struct {
	families []corev1.IPFamily
	ips      *addresses
	ports    *nodePorts
	caches   lookup.Caches
	log      *slog.Logger
	clock    clock.WithTicker
	orphans  map[types.UID]time.Time // addresses without Service, since when; the repair's
}

var services = schema.GroupResource{Resource: "services"}

// New builds an Allocator.
func New(c Config) (*Allocator, error) {
	if c.Caches == nil || c.Store == nil {
		return nil, errors.New("allocate: Caches and Store must be set")
	}
	if len(c.Families) == 0 {
		c.Families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	if c.NodePorts.Size == 0 {
		c.NodePorts = utilnet.PortRange{Base: 30000, Size: 2768}
	}
	if c.Prefix == "" {
		c.Prefix = "/registry/"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	a := &Allocator{
		families: c.Families,
		ips:      &addresses{caches: c.Caches, clock: c.Clock},
		caches:   c.Caches,
		log:      c.Log,
		clock:    c.Clock,
		orphans:  map[types.UID]time.Time{},
	}
	a.ports = newNodePorts(c.Store, c.Prefix+"ranges/servicenodeports", c.NodePorts, a.portsInUse)
	return a, nil
}

// Hooks are the allocation's part in writes of Services.
func (a *Allocator) Hooks() seams.Hooks {
	return seams.Hooks{
		Resource: services,
		BeginCreate: func(ctx context.Context, obj runtime.Object, dryRun bool) (seams.Finish, error) {
			return a.create(ctx, obj.(*corev1.Service), dryRun)
		},
		BeginUpdate: func(ctx context.Context, obj, old runtime.Object, dryRun bool) (seams.Finish, error) {
			return a.update(ctx, obj.(*corev1.Service), old.(*corev1.Service), dryRun)
		},
		AfterDelete: func(ctx context.Context, obj runtime.Object) {
			a.release(ctx, obj.(*corev1.Service))
		},
	}
}

// transaction is what one write has taken and, once it succeeds, gives back.
type transaction struct {
	a                     *Allocator
	svc                   *corev1.Service
	takenIPs, freedIPs    []string
	takenPorts, freePorts []int32
}

func (t *transaction) finish(ctx context.Context, success bool) {
	ips, ports := t.takenIPs, t.takenPorts
	if success {
		ips, ports = t.freedIPs, t.freePorts
	}
	for _, ip := range ips {
		if err := t.a.ips.release(ctx, ip, t.svc); err != nil {
			// The repair loop frees it once it has been without Service for a while.
			t.a.log.Warn("release cluster IP", "ip", ip, "service", t.svc.Name, "namespace", t.svc.Namespace, "err", err)
		}
	}
	if err := t.a.ports.release(ctx, ports); err != nil {
		t.a.log.Warn("release node ports", "ports", ports, "service", t.svc.Name, "namespace", t.svc.Namespace, "err", err)
	}
}

func invalid(s *corev1.Service, errs ...*field.Error) error {
	return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, s.Name, errs)
}

func (a *Allocator) create(ctx context.Context, s *corev1.Service, dryRun bool) (seams.Finish, error) {
	core.NormalizeClusterIPs(s, nil)
	if err := a.chooseFamilies(s, nil); err != nil {
		return nil, err
	}
	t := &transaction{a: a, svc: s}
	if err := t.allocateIPs(ctx, dryRun); err != nil {
		t.finish(ctx, false)
		return nil, err
	}
	if err := t.allocatePorts(ctx, nil, dryRun); err != nil {
		t.finish(ctx, false)
		return nil, err
	}
	return t.finish, nil
}

func (a *Allocator) update(ctx context.Context, s, old *corev1.Service, dryRun bool) (seams.Finish, error) {
	core.KeepAllocated(s, old)
	core.NormalizeClusterIPs(s, old)
	if err := a.chooseFamilies(s, old); err != nil {
		return nil, err
	}
	t := &transaction{a: a, svc: s}
	if err := t.updateIPs(ctx, old, dryRun); err != nil {
		t.finish(ctx, false)
		return nil, err
	}
	if err := t.allocatePorts(ctx, old, dryRun); err != nil {
		t.finish(ctx, false)
		return nil, err
	}
	if dryRun {
		t.freedIPs, t.freePorts = nil, nil
	}
	return t.finish, nil
}

// release gives back all that a deleted Service had.
func (a *Allocator) release(ctx context.Context, s *corev1.Service) {
	t := &transaction{a: a, svc: s, freePorts: slices.Collect(portsOf(s))}
	if hasIPs(s) {
		t.freedIPs = s.Spec.ClusterIPs
	}
	t.finish(context.WithoutCancel(ctx), true)
}

func hasIPs(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] != corev1.ClusterIPNone
}

// allocateIPs takes an address for each family that the Service asks for.
func (t *transaction) allocateIPs(ctx context.Context, dryRun bool) error {
	s := t.svc
	if s.Spec.Type == corev1.ServiceTypeExternalName || (len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone) {
		return nil
	}
	// A private list: the request's may be the old object's.
	ips := slices.Clone(s.Spec.ClusterIPs)
	for i, family := range s.Spec.IPFamilies {
		if i == len(ips) {
			ips = append(ips, "")
		}
		ip, err := t.takeIP(ctx, family, ips[i], dryRun)
		if err != nil {
			return err
		}
		ips[i] = ip
	}
	s.Spec.ClusterIPs = ips
	if len(ips) > 0 {
		s.Spec.ClusterIP = ips[0]
	}
	return nil
}

func (t *transaction) takeIP(ctx context.Context, family corev1.IPFamily, wanted string, dryRun bool) (string, error) {
	s := t.svc
	if wanted == "" {
		ip, err := t.a.ips.allocateNext(ctx, family, s, dryRun)
		switch {
		case errors.Is(err, errFull):
			return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", s.Name, err))
		case err != nil:
			return "", invalid(s, field.Invalid(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP: %v", err)))
		}
		if !dryRun {
			t.takenIPs = append(t.takenIPs, ip)
		}
		return ip, nil
	}
	if err := t.a.ips.allocate(ctx, wanted, s, dryRun); err != nil {
		return "", invalid(s, field.Invalid(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", wanted, err)))
	}
	if !dryRun {
		t.takenIPs = append(t.takenIPs, wanted)
	}
	return wanted, nil
}

// updateIPs follows a change of type or of the number of families; everything else about
// addresses is immutable, which validation sees to.
func (t *transaction) updateIPs(ctx context.Context, old *corev1.Service, dryRun bool) error {
	s := t.svc
	was, is := old.Spec.Type == corev1.ServiceTypeExternalName, s.Spec.Type == corev1.ServiceTypeExternalName
	switch {
	case was && !is:
		return t.allocateIPs(ctx, dryRun)
	case len(old.Spec.ClusterIPs) > 0 && old.Spec.ClusterIPs[0] == corev1.ClusterIPNone:
	case !was && is:
		t.freedIPs = old.Spec.ClusterIPs
	case len(old.Spec.IPFamilies) == 1 && len(s.Spec.IPFamilies) == 2:
		wanted := ""
		if len(s.Spec.ClusterIPs) > 1 {
			wanted = s.Spec.ClusterIPs[1]
		}
		ip, err := t.takeIP(ctx, s.Spec.IPFamilies[1], wanted, dryRun)
		if err != nil {
			return err
		}
		s.Spec.ClusterIPs = append(slices.Clone(s.Spec.ClusterIPs[:min(1, len(s.Spec.ClusterIPs))]), ip)
	case len(old.Spec.IPFamilies) == 2 && len(s.Spec.IPFamilies) == 1 && len(old.Spec.ClusterIPs) == 2:
		t.freedIPs = old.Spec.ClusterIPs[1:]
	}
	return nil
}

// familyOf tells an address's family.
func familyOf(ip string) corev1.IPFamily {
	if netutils.IsIPv6String(ip) {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}
