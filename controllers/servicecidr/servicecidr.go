// Package servicecidr keeps ServiceCIDRs from going while Services have addresses of them.
//
// Owns: their finalizer and condition Ready. Allocation is the API server's.
package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	networkinglisters "k8s.io/client-go/listers/networking/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

const (
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	allocator = "ipallocator.k8s.io"
	// grace lets API servers see that a range is going before its last address is looked for.
	grace = 10 * time.Second
)

// Controller reconciles ServiceCIDRs.
type Controller struct {
	cfg   controller.Config
	loop  *controller.Loop[controller.Key]
	cidrs networkinglisters.ServiceCIDRLister
	ips   networkinglisters.IPAddressLister
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	net := cfg.Informers.Networking().V1()
	c := &Controller{cfg: cfg, cidrs: net.ServiceCIDRs().Lister(), ips: net.IPAddresses().Lister()}
	c.loop = controller.NewLoop("service-cidr-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, net.ServiceCIDRs().Informer(), controller.OnEach(func(*networkingv1.ServiceCIDR) { c.wake(false) })),
		controller.Watch(c.loop, net.IPAddresses().Informer(), controller.Handlers[*networkingv1.IPAddress]{
			Deleted: func(*networkingv1.IPAddress) { c.wake(true) },
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// wake looks at all ranges, which are few and overlap; or only at those that are going.
func (c *Controller) wake(going bool) {
	all, err := c.cidrs.List(labels.Everything())
	if err != nil {
		return
	}
	for _, s := range all {
		if !going || s.DeletionTimestamp != nil {
			c.loop.Add(controller.KeyOf(s))
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	s, err := c.cidrs.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading ServiceCIDR: %w", err)
	}
	client := c.cfg.Client.NetworkingV1().ServiceCIDRs()
	ready := metav1.Condition{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes Service CIDR is ready"}
	next := s.DeepCopy()
	switch {
	case s.DeletionTimestamp == nil && !slices.Contains(s.Finalizers, finalizer):
		next.Finalizers = append(next.Finalizers, finalizer)
		if _, err := client.Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("adding finalizer: %w", err)
		}
		return 0, nil // its event brings us back
	case s.DeletionTimestamp != nil:
		free, err := c.free(s)
		if err != nil {
			return 0, err
		}
		if free {
			if left := s.DeletionTimestamp.Add(grace).Sub(c.cfg.Clock.Now()); left > 0 {
				return left, nil
			}
			next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == finalizer })
			if len(next.Finalizers) == len(s.Finalizers) {
				return 0, nil
			}
			if _, err := client.Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return 0, fmt.Errorf("removing finalizer: %w", err)
			}
			return 0, nil
		}
		ready.Status, ready.Reason = metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating
		ready.Message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
	}
	// Of a range that is ready the API server's own message stands as well.
	if old := meta.FindStatusCondition(s.Status.Conditions, ready.Type); old != nil && old.Status == ready.Status && old.Reason == ready.Reason {
		return 0, nil
	}
	meta.SetStatusCondition(&next.Status.Conditions, ready)
	if _, err := client.UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("updating status: %w", err)
	}
	return 0, nil
}

// free reports whether no address in use would be left without a range.
func (c *Controller) free(s *networkingv1.ServiceCIDR) (bool, error) {
	all, err := c.cidrs.List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("listing ServiceCIDRs: %w", err)
	}
	var others, own []netip.Prefix
	for _, x := range all {
		for _, cidr := range x.Spec.CIDRs {
			p, err := netip.ParsePrefix(cidr)
			if err != nil {
				continue
			}
			if x.UID == s.UID {
				own = append(own, p)
			} else if x.DeletionTimestamp == nil {
				others = append(others, p)
			}
		}
	}
	own = slices.DeleteFunc(own, func(p netip.Prefix) bool { // within another: nothing depends on it
		return slices.ContainsFunc(others, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Overlaps(p) })
	})
	if len(own) == 0 {
		return true, nil
	}
	ips, err := c.ips.List(labels.SelectorFromSet(labels.Set{networkingv1.LabelManagedBy: allocator}))
	if err != nil {
		return false, fmt.Errorf("listing IPAddresses: %w", err)
	}
	in := func(list []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for _, ip := range ips {
		if a, err := netip.ParseAddr(ip.Name); err == nil && in(own, a) && !in(others, a) {
			return false, nil
		}
	}
	return true, nil
}
