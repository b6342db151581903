// Package batch declares the resources of the batch group.
//
// Owns: names, defaults, validation, strategies and table cells of jobs and
// cronjobs. Must not: know what a pod template means beyond what api/core says.
package batch

import (
	batchv1 "k8s.io/api/batch/v1"

	"github.com/skiff-k8s/skiff/api"
)

var groupVersion = batchv1.SchemeGroupVersion

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{cronJobs(), jobs()}
}
