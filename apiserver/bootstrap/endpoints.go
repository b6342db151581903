package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	netutils "k8s.io/utils/net"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/store"
)

// Reconciler says how the API servers of a cluster keep their addresses behind the
// `kubernetes` Service. Names are upstream's, and all servers of a cluster use the same.
type Reconciler string

const (
	// Leased is the default: each server has a key with a time to live.
	Leased Reconciler = "lease"
	// Counted: each server adds itself, and takes others out beyond a number. Deprecated upstream.
	Counted Reconciler = "master-count"
	// Unkept: somebody else sees to it.
	Unkept Reconciler = "none"
)

// Reconcilers are all of them.
var Reconcilers = []Reconciler{Leased, Counted, Unkept}

// endpoints keeps the addresses of all API servers behind the `kubernetes` Service.
type endpoints struct {
	b     *Bootstrap
	lease *presence // of Leased
}

func newEndpoints(b *Bootstrap) *endpoints {
	e := &endpoints{b: b}
	e.lease = &presence{store: b.Store, key: e.prefix() + e.own(), fill: func(o *corev1.Endpoints) {
		o.Subsets = []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: e.own()}}}}
	}}
	return e
}

func (e *endpoints) prefix() string { return e.b.Prefix + "masterleases/" }

func (e *endpoints) own() string { return e.b.AdvertiseAddress.String() }

// announce says that this API server is there and writes down who is.
func (e *endpoints) announce(ctx context.Context) error {
	switch e.b.Endpoints {
	case Unkept:
		return nil
	case Counted:
		return e.write(ctx, true, func(have []corev1.EndpointSubset) []corev1.EndpointSubset {
			return counted(have, e.own(), e.port(), e.b.Servers)
		})
	}
	if err := e.lease.beat(ctx); err != nil {
		return fmt.Errorf("renew the API server's lease: %w", err)
	}
	return e.writeLeased(ctx, false)
}

// withdraw takes this API server out, so that clients stop coming. last: it is about to end.
func (e *endpoints) withdraw(ctx context.Context, last bool) error {
	switch e.b.Endpoints {
	case Unkept:
		return nil
	case Counted:
		return e.write(ctx, false, func(have []corev1.EndpointSubset) []corev1.EndpointSubset {
			return without(have, e.own())
		})
	}
	if err := e.lease.drop(ctx); err != nil {
		return fmt.Errorf("drop the API server's lease: %w", err)
	}
	return e.writeLeased(ctx, last)
}

func (e *endpoints) writeLeased(ctx context.Context, leaving bool) error {
	ips, err := e.present(ctx)
	if err != nil {
		return err
	}
	if len(ips) == 0 && !leaving {
		return errors.New("no API server has a lease: the kubernetes endpoints stay as they are")
	}
	return e.write(ctx, !leaving, func(have []corev1.EndpointSubset) []corev1.EndpointSubset {
		return leased(have, ips, e.port())
	})
}

// present are the addresses of all API servers that are there, in lexical order.
func (e *endpoints) present(ctx context.Context) ([]string, error) {
	page, err := e.b.Store.List(ctx, e.prefix(), store.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the API servers' leases: %w", err)
	}
	var ips []string
	for _, kv := range page.KVs {
		o, err := decodePresence(kv.Value)
		if err != nil {
			e.b.Log.Warn("an API server's lease is not readable", "key", kv.Key, "err", err)
			continue
		}
		if len(o.Subsets) > 0 && len(o.Subsets[0].Addresses) > 0 && o.Subsets[0].Addresses[0].IP != "" {
			ips = append(ips, o.Subsets[0].Addresses[0].IP)
		}
	}
	slices.Sort(ips)
	return slices.Compact(ips), nil
}

func (e *endpoints) port() corev1.EndpointPort {
	return corev1.EndpointPort{Name: "https", Port: e.b.Port, Protocol: corev1.ProtocolTCP}
}

func addresses(subsets []corev1.EndpointSubset) []string {
	var ips []string
	for _, s := range subsets {
		for _, a := range s.Addresses {
			ips = append(ips, a.IP)
		}
	}
	return ips
}

// subset is what holds these addresses; none: nothing does.
func subset(ips []string, ports []corev1.EndpointPort) []corev1.EndpointSubset {
	if len(ips) == 0 {
		return nil
	}
	s := corev1.EndpointSubset{Ports: ports}
	for _, ip := range ips {
		s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: ip})
	}
	return []corev1.EndpointSubset{s}
}

// leased are the subsets with the addresses of those who have a lease. Servers must not
// undo each other's work: the order of addresses, which differs between upstream and us, and
// the port, which each server knows of itself alone, stay as they are.
func leased(have []corev1.EndpointSubset, ips []string, port corev1.EndpointPort) []corev1.EndpointSubset {
	if len(have) != 1 || len(have[0].NotReadyAddresses) > 0 {
		return subset(ips, []corev1.EndpointPort{port})
	}
	if now := slices.Sorted(slices.Values(addresses(have))); slices.Equal(now, ips) {
		return have
	}
	return subset(ips, have[0].Ports)
}

// counted are the subsets with a server added, and those after it, in a circle, taken out
// until there are as many as there should be.
func counted(have []corev1.EndpointSubset, own string, port corev1.EndpointPort, servers int) []corev1.EndpointSubset {
	if len(have) != 1 {
		return subset([]string{own}, []corev1.EndpointPort{port})
	}
	ips := addresses(have)
	if slices.Contains(ips, own) && len(ips) <= servers {
		return have
	}
	ips = append(ips, own)
	slices.Sort(ips)
	ips = slices.Compact(ips)
	for len(ips) > servers {
		next := (slices.Index(ips, own) + 1) % len(ips)
		ips = slices.Delete(ips, next, next+1)
	}
	return subset(ips, have[0].Ports)
}

func without(have []corev1.EndpointSubset, own string) []corev1.EndpointSubset {
	ips := addresses(have)
	if len(have) == 0 || !slices.Contains(ips, own) {
		return have
	}
	return subset(slices.DeleteFunc(ips, func(ip string) bool { return ip == own }), have[0].Ports)
}

var (
	endpointsResource = schema.GroupResource{Resource: "endpoints"}
	slicesResource    = schema.GroupResource{Group: discoveryv1.GroupName, Resource: "endpointslices"}
)

// write stores what next makes of the subsets that there are, and the slice that follows
// from them. create: also where there is no Endpoints object.
func (e *endpoints) write(ctx context.Context, create bool, next func(have []corev1.EndpointSubset) []corev1.EndpointSubset) error {
	var subsets []corev1.EndpointSubset
	fresh := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: serviceName, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
	}}
	fresh.Subsets = next(nil)
	gone := true
	err := e.put(ctx, endpointsResource, create, fresh, func(have runtime.Object) (api.Object, bool) {
		h := have.(*corev1.Endpoints)
		gone, subsets = false, next(h.Subsets)
		if apiequality.Semantic.DeepEqual(h.Subsets, subsets) && h.Labels[discoveryv1.LabelSkipMirror] == "true" {
			return nil, false
		}
		n := h.DeepCopy()
		n.Subsets = subsets
		metav1.SetMetaDataLabel(&n.ObjectMeta, discoveryv1.LabelSkipMirror, "true")
		return n, true
	})
	if err != nil {
		return fmt.Errorf("write Endpoints %s: %w", serviceName, err)
	}
	if gone {
		if !create {
			return nil
		}
		subsets = fresh.Subsets
	}
	return e.writeSlice(ctx, sliceOf(subsets))
}

// sliceOf is the EndpointSlice that says the same.
func sliceOf(subsets []corev1.EndpointSubset) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: serviceName, Generation: 1, Labels: map[string]string{discoveryv1.LabelServiceName: serviceName},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{},
	}
	ips := addresses(subsets)
	if len(ips) > 0 && !slices.ContainsFunc(ips, func(ip string) bool { return !netutils.IsIPv6String(ip) }) {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	ready := true
	for _, ip := range ips {
		if netutils.IsIPv6String(ip) == (slice.AddressType == discoveryv1.AddressTypeIPv6) {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
	}
	if len(subsets) > 0 {
		for _, p := range subsets[0].Ports {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
		}
	}
	return slice
}

func (e *endpoints) writeSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	otherType := false
	change := func(have runtime.Object) (api.Object, bool) {
		h := have.(*discoveryv1.EndpointSlice)
		if otherType = h.AddressType != slice.AddressType; otherType {
			return nil, false
		}
		if apiequality.Semantic.DeepEqual(h.Endpoints, slice.Endpoints) && apiequality.Semantic.DeepEqual(h.Ports, slice.Ports) &&
			apiequality.Semantic.DeepEqual(h.Labels, slice.Labels) {
			return nil, false
		}
		n := h.DeepCopy()
		n.Endpoints, n.Ports, n.Labels = slice.Endpoints, slice.Ports, slice.Labels
		n.Generation++
		return n, true
	}
	err := e.put(ctx, slicesResource, true, slice.DeepCopy(), change)
	if err == nil && otherType { // which cannot be changed
		err = e.replace(ctx, slicesResource, slice)
	}
	if err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", serviceName, err)
	}
	return nil
}

// replace deletes an object and creates another in its place.
func (e *endpoints) replace(ctx context.Context, gr schema.GroupResource, with api.Object) error {
	r, err := lookup.Resource(e.b.Caches, gr)
	if err != nil {
		return err
	}
	if _, err := r.Delete(ctx, with.GetNamespace(), with.GetName(), cacher.Preconditions{}, nil); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return e.b.create(ctx, r, with)
}

// put creates an object, if create says so, or changes it where change does.
func (e *endpoints) put(ctx context.Context, gr schema.GroupResource, create bool, want api.Object, change func(have runtime.Object) (api.Object, bool)) error {
	r, err := lookup.Resource(e.b.Caches, gr)
	if err != nil {
		return err
	}
	// A cache that lags must not hide that another server has written.
	current, err := r.Get(ctx, want.GetNamespace(), want.GetName(), "")
	if err == nil {
		if _, differs := change(current.Runtime()); !differs {
			return nil
		}
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = r.Update(ctx, want.GetNamespace(), want.GetName(), false, cacher.Preconditions{},
		func(o cacher.Object) (runtime.Object, time.Duration, error) {
			next, differs := change(o.Runtime())
			if !differs {
				return nil, 0, errNothing
			}
			return next, 0, nil
		})
	switch {
	case errors.Is(err, errNothing):
		return nil
	case !apierrors.IsNotFound(err):
		return err
	case !create:
		return nil
	}
	return e.b.create(ctx, r, want)
}
