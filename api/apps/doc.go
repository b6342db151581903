// Package apps declares the resources of the apps group.
//
// Owns: names, defaults, validation, strategies and table cells of deployments,
// replicasets, daemonsets, statefulsets and controllerrevisions. Must not: know
// what a pod template means beyond what api/core says about it.
package apps

import (
	appsv1 "k8s.io/api/apps/v1"

	"github.com/skiff-k8s/skiff/api"
)

var groupVersion = appsv1.SchemeGroupVersion

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{
		controllerRevisions(),
		daemonSets(),
		deployments(),
		replicaSets(),
		statefulSets(),
	}
}
