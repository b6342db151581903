// Package networking declares the resources of networking.k8s.io.
//
// Owns: names, defaults, validation, strategies and table cells of the group's kinds.
// Must not: allocate addresses, that is the API server's.
package networking

import (
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/skiff-k8s/skiff/api"
)

var groupVersion = networkingv1.SchemeGroupVersion

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{
		ingressClasses(),
		ingresses(),
		ipAddresses(),
		networkPolicies(),
		serviceCIDRs(),
	}
}
