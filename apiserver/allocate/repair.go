package allocate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

const (
	repairInterval = 3 * time.Minute
	// orphanAge is how long an address or port must be seen without Service before it is freed: a
	// create takes it before the Service exists.
	orphanAge = 5 * time.Minute
)

// Run repairs, at first and then at intervals, what crashes and restores have torn
// apart: Services whose address or port is not allocated, and allocations without Service.
func (a *Allocator) Run(ctx context.Context) error {
	tick := a.clock.NewTicker(repairInterval)
	defer tick.Stop()
	for {
		if err := a.Repair(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("repair cluster IPs and node ports", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

// Repair makes one pass.
func (a *Allocator) Repair(ctx context.Context) error {
	// Allocations are read first: whatever a Service read afterwards holds was there by then.
	// Services are read as the quorum has them: one that another server made, and that a cache
	// without its watch does not know, must not lose what it holds.
	objects, err := lookup.Resource(a.caches, ipAddresses)
	if err != nil {
		return err
	}
	ips, err := lookup.CachedList[*networkingv1.IPAddress](ctx, a.caches, ipAddresses, "")
	if err != nil {
		return fmt.Errorf("list IPAddresses: %w", err)
	}
	all, err := lookup.FreshList[*corev1.Service](ctx, a.caches, services, "")
	if err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	byName := make(map[string]*networkingv1.IPAddress, len(ips))
	for _, ip := range ips {
		byName[ip.Name] = ip
	}
	var errs []error
	held := map[string]bool{}
	for _, s := range all {
		if !hasIPs(s) {
			continue
		}
		for _, ip := range s.Spec.ClusterIPs {
			addr, err := netip.ParseAddr(ip)
			if err != nil {
				a.log.Warn("cluster IP is not valid, recreate the Service", "ip", ip, "service", s.Name, "namespace", s.Namespace)
				continue
			}
			name := addr.String()
			held[name] = true
			if err := a.repairAddress(ctx, objects, s, name, byName[name]); err != nil {
				errs = append(errs, err)
			}
		}
	}
	now := a.clock.Now()
	seen := map[types.UID]time.Time{}
	for _, ip := range ips {
		if held[ip.Name] || ip.Labels[networkingv1.LabelManagedBy] != managedBy {
			continue
		}
		// By UID: an address that was freed and taken anew begins anew.
		first, ok := a.orphans[ip.UID]
		if !ok {
			first = now
		}
		if now.Sub(first) < orphanAge {
			seen[ip.UID] = first
			continue
		}
		a.log.Info("freeing cluster IP without Service", "ip", ip.Name)
		rv := ip.ResourceVersion
		if _, err := objects.Delete(ctx, "", ip.Name, cacher.Preconditions{ResourceVersion: &rv}, nil); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("free %s: %w", ip.Name, err))
		}
	}
	a.orphans = seen
	if err := a.ports.repair(ctx, all, now); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (a *Allocator) repairAddress(ctx context.Context, objects cacher.Resource, s *corev1.Service, name string, ip *networkingv1.IPAddress) error {
	if ip != nil && belongsTo(ip, s.Namespace, s.Name) {
		return nil
	}
	// Make sure that it is so now, and not only in a cache that lags.
	current, err := lookup.Fresh[*corev1.Service](ctx, a.caches, services, s.Namespace, s.Name)
	if apierrors.IsNotFound(err) || err == nil && (current.UID != s.UID || !hasIPs(current)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	ip, err = lookup.Fresh[*networkingv1.IPAddress](ctx, a.caches, ipAddresses, "", name)
	switch {
	case err == nil && belongsTo(ip, s.Namespace, s.Name):
		return nil
	case err == nil:
		if p := ip.Spec.ParentRef; p != nil && p.Group == "" && p.Resource == "services" {
			owner, err := lookup.Fresh[*corev1.Service](ctx, a.caches, services, p.Namespace, p.Name)
			if err == nil && hasAddress(owner, name) {
				a.log.Warn("cluster IP belongs to two Services, recreate one of them", "ip", name,
					"service", s.Name, "namespace", s.Namespace, "other", owner.Name, "otherNamespace", owner.Namespace)
				return nil
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("read Service %s/%s: %w", p.Namespace, p.Name, err)
			}
		}
		rv := ip.ResourceVersion
		if _, err := objects.Delete(ctx, "", name, cacher.Preconditions{ResourceVersion: &rv}, nil); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete IPAddress %s with a wrong reference: %w", name, err)
		}
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read IPAddress %s: %w", name, err)
	}
	a.log.Info("allocating the cluster IP that a Service has", "ip", name, "service", s.Name, "namespace", s.Namespace)
	if err := a.ips.make(ctx, objects, name, s); err != nil && !errors.Is(err, errTaken) {
		return fmt.Errorf("allocate %s for Service %s/%s: %w", name, s.Namespace, s.Name, err)
	}
	return nil
}

func hasAddress(s *corev1.Service, name string) bool {
	for _, ip := range s.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(ip); err == nil && addr.String() == name {
			return true
		}
	}
	return false
}

func (a *Allocator) portsInUse(ctx context.Context) ([]int32, error) {
	all, err := lookup.FreshList[*corev1.Service](ctx, a.caches, services, "")
	if err != nil {
		return nil, err
	}
	var ports []int32
	for _, s := range all {
		for p := range portsOf(s) {
			ports = append(ports, p)
		}
	}
	return ports, nil
}
