package webhook

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

var (
	services       = schema.GroupResource{Resource: "services"}
	endpointSlices = schema.GroupResource{Group: discoveryv1.GroupName, Resource: "endpointslices"}
)

// Resolve finds an address behind a port of a Service. It is that of an endpoint, not the
// cluster IP: the API server's machine need not run a service proxy.
func Resolve(ctx context.Context, caches lookup.Caches, namespace, name string, port int32) (string, error) {
	svc, err := lookup.CachedOrFresh[*corev1.Service](ctx, caches, services, namespace, name)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("service %q not found", name)
	}
	if err != nil {
		return "", err
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port))), nil
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port })
	if i < 0 {
		return "", fmt.Errorf("no service port %d found for service %q", port, name)
	}
	all, err := lookup.CachedList[*discoveryv1.EndpointSlice](ctx, caches, endpointSlices, namespace)
	if err != nil {
		return "", err
	}
	var addresses []string
	for _, s := range all {
		if s.Labels[discoveryv1.LabelServiceName] == name && s.AddressType != discoveryv1.AddressTypeFQDN {
			addresses = append(addresses, ready(s, svc.Spec.Ports[i].Name)...)
		}
	}
	if len(addresses) == 0 {
		return "", fmt.Errorf("no endpoints available for service %q", name)
	}
	return addresses[rand.IntN(len(addresses))], nil
}

// ready are the addresses of a slice that serve a named port.
func ready(s *discoveryv1.EndpointSlice, name string) []string {
	i := slices.IndexFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
		return p.Port != nil && (p.Name == nil && name == "" || p.Name != nil && *p.Name == name)
	})
	if i < 0 {
		return nil
	}
	var out []string
	for _, e := range s.Endpoints {
		if e.Conditions.Ready != nil && !*e.Conditions.Ready || len(e.Addresses) == 0 {
			continue
		}
		out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*s.Ports[i].Port))))
	}
	return out
}
