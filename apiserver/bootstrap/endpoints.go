package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/store"
)

// endpoints keeps the addresses of all API servers behind the `kubernetes` Service. Each
// says that it is there by a key with a time to live under /registry/masterleases, as
// upstream's do, and writes down whom it sees.
type endpoints struct {
	b *Bootstrap
}

// leaseTime is how long an API server counts after its last heartbeat.
const leaseTime = 15 * time.Second

func (e *endpoints) prefix() string { return e.b.Prefix + "masterleases/" }

// sync makes a heartbeat and writes down who is there.
func (e *endpoints) sync(ctx context.Context) error {
	if err := e.beat(ctx); err != nil {
		return fmt.Errorf("renew the API server's lease: %w", err)
	}
	return e.reconcile(ctx, false)
}

// leave takes this API server out, so that clients stop coming before it is gone.
func (e *endpoints) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := func() error {
		key := e.prefix() + e.b.AdvertiseAddress.String()
		for range 3 {
			kv, _, err := e.b.Store.Get(ctx, key)
			if errors.Is(err, store.ErrNotFound) {
				break
			}
			if err != nil {
				return err
			}
			_, err = e.b.Store.Delete(ctx, key, kv.ModRevision)
			var conflict *store.ConflictError
			if err == nil {
				break
			}
			if !errors.As(err, &conflict) {
				return err
			}
		}
		return e.reconcile(ctx, true)
	}()
	if err != nil {
		// The lease runs out by itself.
		e.b.Log.Info("did not take this API server out of the kubernetes endpoints", "err", err)
	}
	return nil
}

func (e *endpoints) beat(ctx context.Context) error {
	key := e.prefix() + e.b.AdvertiseAddress.String()
	kv, _, err := e.b.Store.Get(ctx, key)
	missing := errors.Is(err, store.ErrNotFound)
	if err != nil && !missing {
		return err
	}
	for range 3 {
		var generation int64
		if !missing {
			if old, err := decodeLease(kv.Value); err == nil {
				generation = old.Generation
			}
		}
		// The generation makes each heartbeat another value, without which no lease would be renewed.
		value, err := encodeLease(e.b.AdvertiseAddress, generation+1)
		if err != nil {
			return err
		}
		if missing {
			_, err = e.b.Store.Create(ctx, key, value, leaseTime)
			var exists *store.ExistsError
			if !errors.As(err, &exists) {
				return err
			}
			kv, missing = exists.Current, false
			continue
		}
		_, err = e.b.Store.Update(ctx, key, value, kv.ModRevision, leaseTime)
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
		kv, missing = conflict.Current, conflict.Missing
	}
	return errors.New("the lease changes too often: do two API servers advertise one address?")
}

// present are the addresses of all API servers that are there.
func (e *endpoints) present(ctx context.Context) ([]netip.Addr, error) {
	page, err := e.b.Store.List(ctx, e.prefix(), store.ListOptions{KeysOnly: true})
	if err != nil {
		return nil, fmt.Errorf("list the API servers' leases: %w", err)
	}
	var ips []netip.Addr
	for _, kv := range page.KVs {
		if ip, err := netip.ParseAddr(strings.TrimPrefix(kv.Key, e.prefix())); err == nil {
			ips = append(ips, ip)
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return ips, nil
}

var (
	endpointsResource = schema.GroupResource{Resource: "endpoints"}
	slicesResource    = schema.GroupResource{Group: discoveryv1.GroupName, Resource: "endpointslices"}
)

func (e *endpoints) reconcile(ctx context.Context, leaving bool) error {
	ips, err := e.present(ctx)
	if err != nil {
		return err
	}
	if len(ips) == 0 && !leaving {
		return errors.New("no API server has a lease: the kubernetes endpoints stay as they are")
	}
	ep := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: serviceName, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
	}}
	ready := true
	tcp, name, port := corev1.ProtocolTCP, "https", e.b.Port
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: serviceName, Generation: 1, Labels: map[string]string{discoveryv1.LabelServiceName: serviceName},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{},
	}
	if len(ips) > 0 {
		subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: name, Port: port, Protocol: tcp}}}
		for _, ip := range ips {
			subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: ip.String()})
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
		ep.Subsets = []corev1.EndpointSubset{subset}
		slice.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}}
		if ips[0].Is6() {
			slice.AddressType = discoveryv1.AddressTypeIPv6
		}
	}
	if err := e.put(ctx, endpointsResource, ep, func(have runtime.Object) (api.Object, bool) {
		h := have.(*corev1.Endpoints)
		if apiequality.Semantic.DeepEqual(h.Subsets, ep.Subsets) && h.Labels[discoveryv1.LabelSkipMirror] == "true" {
			return nil, false
		}
		n := h.DeepCopy()
		n.Subsets = ep.Subsets
		metav1.SetMetaDataLabel(&n.ObjectMeta, discoveryv1.LabelSkipMirror, "true")
		return n, true
	}); err != nil {
		return fmt.Errorf("write Endpoints %s: %w", serviceName, err)
	}
	if err := e.put(ctx, slicesResource, slice, func(have runtime.Object) (api.Object, bool) {
		h := have.(*discoveryv1.EndpointSlice)
		if apiequality.Semantic.DeepEqual(h.Endpoints, slice.Endpoints) && apiequality.Semantic.DeepEqual(h.Ports, slice.Ports) &&
			h.Labels[discoveryv1.LabelServiceName] == serviceName {
			return nil, false
		}
		n := h.DeepCopy()
		n.Endpoints, n.Ports = slice.Endpoints, slice.Ports
		metav1.SetMetaDataLabel(&n.ObjectMeta, discoveryv1.LabelServiceName, serviceName)
		n.Generation++
		return n, true
	}); err != nil {
		return fmt.Errorf("write EndpointSlice %s: %w", serviceName, err)
	}
	return nil
}

// put creates an object or changes it where change says so.
func (e *endpoints) put(ctx context.Context, gr schema.GroupResource, want api.Object, change func(have runtime.Object) (api.Object, bool)) error {
	r, err := lookup.Resource(e.b.Caches, gr)
	if err != nil {
		return err
	}
	current, err := r.Get(ctx, want.GetNamespace(), want.GetName(), "0")
	if apierrors.IsNotFound(err) {
		return e.b.create(ctx, r, want)
	}
	if err != nil {
		return err
	}
	if _, differs := change(current.Runtime()); !differs {
		return nil
	}
	_, err = r.Update(ctx, want.GetNamespace(), want.GetName(), false, cacher.Preconditions{},
		func(o cacher.Object) (runtime.Object, time.Duration, error) {
			next, differs := change(o.Runtime())
			if !differs {
				return nil, 0, errNothing
			}
			return next, 0, nil
		})
	if errors.Is(err, errNothing) {
		return nil
	}
	return err
}

// A lease is an Endpoints object, encoded as upstream's.

func encodeLease(ip netip.Addr, generation int64) ([]byte, error) {
	raw, err := (&corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Generation: generation},
		Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: ip.String()}}}},
	}).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode lease: %w", err)
	}
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Endpoints"}, Raw: raw}
	b, err := u.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode lease: %w", err)
	}
	return append([]byte("k8s\x00"), b...), nil
}

func decodeLease(b []byte) (*corev1.Endpoints, error) {
	rest, ok := strings.CutPrefix(string(b), "k8s\x00")
	if !ok {
		return nil, errors.New("decode lease: not protobuf")
	}
	var u runtime.Unknown
	if err := u.Unmarshal([]byte(rest)); err != nil {
		return nil, fmt.Errorf("decode lease: %w", err)
	}
	e := &corev1.Endpoints{}
	if err := e.Unmarshal(u.Raw); err != nil {
		return nil, fmt.Errorf("decode lease: %w", err)
	}
	return e, nil
}
