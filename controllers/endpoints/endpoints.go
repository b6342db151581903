// Package endpoints keeps the legacy Endpoints object of each Service that has a selector,
// which is deprecated and still written by Kubernetes 1.37.
package endpoints

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
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
	"github.com/skiff-k8s/skiff/controllers/services"
)

const (
	managedByLabel = "endpoints.kubernetes.io/managed-by"
	managedBy      = "endpoint-controller"
	// maxAddresses bounds one object; beyond it the annotation says "truncated".
	maxAddresses = 1000
)

// Controller reconciles Endpoints.
type Controller struct {
	cfg       controller.Config
	loop      *controller.Loop[controller.Key]
	services  corelisters.ServiceLister
	pods      corelisters.PodLister
	endpoints corelisters.EndpointsLister //nolint:staticcheck // deprecated, and still served
	writes    *controller.Writes[controller.Key]
	pace      *controller.Pace[controller.Key]
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	core := cfg.Informers.Core().V1()
	c := &Controller{cfg: cfg, services: core.Services().Lister(), pods: core.Pods().Lister(), endpoints: core.Endpoints().Lister(), writes: controller.NewWrites[controller.Key](cfg.Clock), pace: controller.NewPace[controller.Key](cfg.Clock)}
	c.loop = controller.NewLoop("endpoints-controller", 5, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, core.Services().Informer(), controller.Enqueue[*corev1.Service](c.loop)),
		controller.Watch(c.loop, core.Pods().Informer(), services.PodHandlers(c.services, c.loop)),
		controller.Watch(c.loop, core.Endpoints().Informer(), controller.Handlers[*corev1.Endpoints]{
			Deleted: func(e *corev1.Endpoints) {
				c.writes.Forget(controller.KeyOf(e))
				c.loop.Add(controller.KeyOf(e))
			},
			// Endpoints that others made are theirs: there may be no Service for them yet.
			Updated: func(old, e *corev1.Endpoints) {
				if own(old) || own(e) {
					c.loop.Add(controller.KeyOf(e))
				}
			},
			// Left over from when this controller did not run.
			Added: func(e *corev1.Endpoints) {
				if own(e) {
					c.loop.Add(controller.KeyOf(e))
				}
			},
		}),
	)
}

func own(e *corev1.Endpoints) bool { return e.Labels[managedByLabel] == managedBy }

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	client := c.cfg.Client.CoreV1().Endpoints(key.Namespace)
	current, err := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("reading Endpoints: %w", err)
	}
	exists := err == nil
	if exists && c.writes.Behind(key, current) {
		return 0, nil
	}
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		// Whoever wrote them, Endpoints go with their Service, as upstream does; nothing
		// else of theirs would be left to say which Service they meant.
		if !exists || current.Annotations["control-plane.alpha.kubernetes.io/leader"] != "" {
			return 0, nil
		}
		err := client.Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(current.UID)}})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("deleting Endpoints: %w", err)
		}
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading Service: %w", err)
	}
	if !services.Selecting(service) {
		return 0, nil
	}
	pods, err := services.Pods(c.pods, service)
	if err != nil {
		return 0, fmt.Errorf("listing pods: %w", err)
	}
	if wait := c.pace.Wait(key, len(pods)); wait > 0 {
		return wait, nil
	}
	next := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if exists {
		next = current.DeepCopy()
	}
	fill(next, service, pods)
	switch {
	case !exists:
		_, err = client.Create(ctx, next, metav1.CreateOptions{})
	case equality.Semantic.DeepEqual(current, next):
		return 0, nil
	default:
		if next, err = client.Update(ctx, next, metav1.UpdateOptions{}); err == nil {
			c.writes.Note(key, next)
		}
	}
	if err == nil || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return 0, nil
	}
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		c.cfg.Events.Eventf(service, corev1.EventTypeWarning, "FailedToUpdateEndpoint", "Failed to update endpoint %s: %v", key, err)
	}
	return 0, fmt.Errorf("writing Endpoints: %w", err)
}

// fill sets subsets, labels and annotations of e.
func fill(e *corev1.Endpoints, s *corev1.Service, pods []*corev1.Pod) {
	subsets := subsetsOf(s, pods)
	if len(subsets) > 0 || len(e.Subsets) > 0 {
		e.Subsets = subsets
	}
	e.Labels = maps.Clone(s.Labels)
	if e.Labels == nil {
		e.Labels = map[string]string{}
	}
	delete(e.Labels, corev1.IsHeadlessService)
	if services.Headless(s) {
		e.Labels[corev1.IsHeadlessService] = ""
	}
	e.Labels[managedByLabel] = managedBy
	delete(e.Annotations, corev1.EndpointsOverCapacity)
	if truncate(e.Subsets) {
		if e.Annotations == nil {
			e.Annotations = map[string]string{}
		}
		e.Annotations[corev1.EndpointsOverCapacity] = "truncated"
	}
}

// subsetsOf groups addresses by the ports that they have, in a stable order.
func subsetsOf(s *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	groups := map[string]*corev1.EndpointSubset{}
	for _, pod := range pods {
		if !services.Endpoint(pod, s.Spec.PublishNotReadyAddresses) {
			continue
		}
		ip := address(s, pod)
		if ip == "" {
			continue
		}
		var ports []corev1.EndpointPort
		for i := range s.Spec.Ports {
			sp := &s.Spec.Ports[i]
			if n, ok := services.Port(pod, sp); ok {
				ports = append(ports, corev1.EndpointPort{Name: sp.Name, Port: n, Protocol: sp.Protocol, AppProtocol: sp.AppProtocol})
			}
		}
		if len(ports) == 0 && (len(s.Spec.Ports) > 0 || !services.Headless(s)) {
			continue
		}
		slices.SortFunc(ports, func(a, b corev1.EndpointPort) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
		})
		key := fmt.Sprint(ports)
		g := groups[key]
		if g == nil {
			g = &corev1.EndpointSubset{Ports: ports}
			groups[key] = g
		}
		a := corev1.EndpointAddress{
			IP:        ip,
			Hostname:  services.Hostname(pod, s),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		}
		if pod.Spec.NodeName != "" {
			a.NodeName = ptr.To(pod.Spec.NodeName)
		}
		if s.Spec.PublishNotReadyAddresses || ownership.Ready(pod) {
			g.Addresses = append(g.Addresses, a)
		} else {
			g.NotReadyAddresses = append(g.NotReadyAddresses, a)
		}
	}
	var out []corev1.EndpointSubset
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		g := groups[key]
		byIP := func(a, b corev1.EndpointAddress) int { return strings.Compare(a.IP, b.IP) }
		slices.SortFunc(g.Addresses, byIP)
		slices.SortFunc(g.NotReadyAddresses, byIP)
		out = append(out, *g)
	}
	return out
}

// address is the pod's address of the Service's first family.
func address(s *corev1.Service, pod *corev1.Pod) string {
	v6 := false
	if len(s.Spec.IPFamilies) > 0 {
		v6 = s.Spec.IPFamilies[0] == corev1.IPv6Protocol
	} else if ip, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil {
		v6 = ip.Is6()
	} else {
		return pod.Status.PodIP
	}
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is6() == v6 {
			return a.String()
		}
	}
	return ""
}

// truncate keeps maxAddresses, ready ones before others, and reports whether any went.
func truncate(subsets []corev1.EndpointSubset) bool {
	total, ready := 0, 0
	for _, s := range subsets {
		total += len(s.Addresses) + len(s.NotReadyAddresses)
		ready += len(s.Addresses)
	}
	if total <= maxAddresses {
		return false
	}
	left, leftNotReady := min(ready, maxAddresses), max(0, maxAddresses-ready)
	for i := range subsets {
		s := &subsets[i]
		n := min(left, len(s.Addresses))
		s.Addresses = s.Addresses[:n]
		left -= n
		n = min(leftNotReady, len(s.NotReadyAddresses))
		s.NotReadyAddresses = s.NotReadyAddresses[:n]
		leftNotReady -= n
	}
	return true
}
