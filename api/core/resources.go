// Package core declares the resources of the core ("") API group.
//
// Owns: defaulting, validation, strategies, printing and selectable fields of
// the core kinds, and the pod spec pieces that other groups' kinds embed.
// Must not: import another group's package.
package core

import "github.com/skiff-k8s/skiff/api"

// Resources are the resources of the core group.
func Resources() []*api.Resource {
	return []*api.Resource{
		bindings(),
		componentStatuses(),
		configMaps(),
		endpoints(),
		events(),
		limitRanges(),
		namespaces(),
		nodes(),
		persistentVolumeClaims(),
		persistentVolumes(),
		pods(),
		podTemplates(),
		replicationControllers(),
		resourceQuotas(),
		secrets(),
		serviceAccounts(),
		services(),
	}
}
