// Package endpointslicemirroring shows Endpoints that somebody wrote for a Service without
// a selector as EndpointSlices, which is all that proxies read.
package endpointslicemirroring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

const (
	managedBy    = "endpointslicemirroring-controller.k8s.io"
	leaderRecord = "control-plane.alpha.kubernetes.io/leader"
	// maxPerSubset bounds the addresses that are mirrored.
	maxPerSubset = 1000
)

// Controller mirrors.
type Controller struct {
	cfg       controller.Config
	loop      *controller.Loop[controller.Key]
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister //nolint:staticcheck // deprecated, and still served
	slices    discoverylisters.EndpointSliceLister
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	core, disc := cfg.Informers.Core().V1(), cfg.Informers.Discovery().V1()
	c := &Controller{cfg: cfg, services: core.Services().Lister(), endpoints: core.Endpoints().Lister(), slices: disc.EndpointSlices().Lister()}
	c.loop = controller.NewLoop("endpointslice-mirroring-controller", 5, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, core.Endpoints().Informer(), controller.Enqueue[*corev1.Endpoints](c.loop)),
		controller.Watch(c.loop, core.Services().Informer(), controller.Enqueue[*corev1.Service](c.loop)),
		controller.Watch(c.loop, disc.EndpointSlices().Informer(), controller.OnEach(func(s *discoveryv1.EndpointSlice) {
			if name := s.Labels[discoveryv1.LabelServiceName]; name != "" && s.Labels[discoveryv1.LabelManagedBy] == managedBy {
				c.loop.Add(controller.Key{Namespace: s.Namespace, Name: name})
			}
		})),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// wanted reports whether Endpoints are to be mirrored.
func wanted(e *corev1.Endpoints, s *corev1.Service) bool {
	if _, leader := e.Annotations[leaderRecord]; leader {
		return false
	}
	return e.Labels[discoveryv1.LabelSkipMirror] != "true" && s.Spec.Selector == nil && s.Spec.Type != corev1.ServiceTypeExternalName
}

// mirror makes the slices: one for each subset and family.
func mirror(e *corev1.Endpoints, s *corev1.Service) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, sub := range e.Subsets {
		byFamily := map[discoveryv1.AddressType][]discoveryv1.Endpoint{}
		left := maxPerSubset
		add := func(list []corev1.EndpointAddress, ready bool) {
			for _, a := range list {
				ip, err := netip.ParseAddr(a.IP)
				if err != nil || left == 0 {
					continue
				}
				left--
				family := discoveryv1.AddressTypeIPv4
				if ip.Is6() {
					family = discoveryv1.AddressTypeIPv6
				}
				ep := discoveryv1.Endpoint{Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(ready)}, TargetRef: a.TargetRef.DeepCopy(), NodeName: a.NodeName}
				if a.Hostname != "" {
					ep.Hostname = ptr.To(a.Hostname)
				}
				byFamily[family] = append(byFamily[family], ep)
			}
		}
		add(sub.Addresses, true)
		add(sub.NotReadyAddresses, false)
		ports := []discoveryv1.EndpointPort{}
		for _, p := range sub.Ports {
			ports = append(ports, discoveryv1.EndpointPort{Name: ptr.To(p.Name), Port: ptr.To(p.Port), Protocol: ptr.To(cmp.Or(p.Protocol, corev1.ProtocolTCP)), AppProtocol: p.AppProtocol})
		}
		for _, family := range slices.Sorted(maps.Keys(byFamily)) {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: e.Namespace, GenerateName: e.Name + "-", Labels: maps.Clone(e.Labels), Annotations: maps.Clone(e.Annotations),
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, corev1.SchemeGroupVersion.WithKind("Endpoints"))},
				},
				AddressType: family, Ports: ports, Endpoints: byFamily[family],
			}
			if slice.Labels == nil {
				slice.Labels = map[string]string{}
			}
			slice.Labels[discoveryv1.LabelServiceName], slice.Labels[discoveryv1.LabelManagedBy] = s.Name, managedBy
			delete(slice.Annotations, corev1.LastAppliedConfigAnnotation)
			delete(slice.Annotations, corev1.EndpointsLastChangeTriggerTime)
			out = append(out, slice)
		}
	}
	return out
}

// like identifies a slice by what cannot, or need not, be changed.
func like(s *discoveryv1.EndpointSlice) string {
	var parts []string
	for _, p := range s.Ports {
		parts = append(parts, fmt.Sprintf("%s/%d/%s", ptr.Deref(p.Name, ""), ptr.Deref(p.Port, 0), ptr.Deref(p.Protocol, "")))
	}
	slices.Sort(parts)
	return string(s.AddressType) + " " + strings.Join(parts, " ")
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	have, err := c.slices.EndpointSlices(key.Namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: key.Name, discoveryv1.LabelManagedBy: managedBy}))
	if err != nil {
		return 0, fmt.Errorf("listing EndpointSlices: %w", err)
	}
	var want []*discoveryv1.EndpointSlice
	e, err := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("reading Endpoints: %w", err)
	}
	s, serr := c.services.Services(key.Namespace).Get(key.Name)
	if serr != nil && !apierrors.IsNotFound(serr) {
		return 0, fmt.Errorf("reading Service: %w", serr)
	}
	if err == nil && serr == nil && e.DeletionTimestamp == nil && wanted(e, s) {
		want = mirror(e, s)
	}
	client := c.cfg.Client.DiscoveryV1().EndpointSlices(key.Namespace)
	free := slices.Clone(have)
	for _, w := range want {
		i := slices.IndexFunc(free, func(x *discoveryv1.EndpointSlice) bool { return like(x) == like(w) })
		if i < 0 {
			// One too many, made because the cache is behind, is deleted by the next pass.
			if _, err := client.Create(ctx, w, metav1.CreateOptions{}); err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return 0, fmt.Errorf("creating EndpointSlice: %w", err)
			}
			continue
		}
		old := free[i]
		free = slices.Delete(free, i, i+1)
		next := old.DeepCopy()
		next.Labels, next.Annotations, next.Ports, next.Endpoints = w.Labels, w.Annotations, w.Ports, w.Endpoints
		if equality.Semantic.DeepEqual(old, next) {
			continue
		}
		if _, err := client.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return 0, fmt.Errorf("updating EndpointSlice %s: %w", next.Name, err)
		}
	}
	for _, x := range free {
		err := client.Delete(ctx, x.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(x.UID)}})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("deleting EndpointSlice %s: %w", x.Name, err)
		}
	}
	return 0, nil
}
