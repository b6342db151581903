package core

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api/podfit"
)

// Names of compute resources without a domain that something in the API knows:
// containers, quotas or volume claims.
var (
	containerResources = sets.New(v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage)

	objectCountResources = sets.New(v1.ResourcePods, v1.ResourceQuotas, v1.ResourceServices,
		v1.ResourceReplicationControllers, v1.ResourceSecrets, v1.ResourceConfigMaps,
		v1.ResourcePersistentVolumeClaims, v1.ResourceServicesNodePorts, v1.ResourceServicesLoadBalancers)

	quotaResources = objectCountResources.Union(containerResources).Insert(
		v1.ResourceRequestsCPU, v1.ResourceRequestsMemory, v1.ResourceRequestsStorage, v1.ResourceRequestsEphemeralStorage,
		v1.ResourceLimitsCPU, v1.ResourceLimitsMemory, v1.ResourceLimitsEphemeralStorage)

	standardResources = quotaResources.Union(sets.New(v1.ResourceStorage))
)

func countedInUnits(name v1.ResourceName) bool {
	return objectCountResources.Has(name) || podfit.IsExtended(name)
}

func quotaHugePages(name v1.ResourceName) bool {
	return podfit.IsHugePages(name) || strings.HasPrefix(string(name), v1.ResourceRequestsHugePagesPrefix)
}

func hasDomain(name v1.ResourceName) bool { return strings.Contains(string(name), "/") }

// resourceName accepts any resource that is standard or has a domain.
func resourceName(name v1.ResourceName, p *field.Path) field.ErrorList {
	errs := invalid(p, name, validation.IsQualifiedName(string(name)))
	if len(errs) == 0 && !hasDomain(name) && !standardResources.Has(name) && !quotaHugePages(name) {
		errs = append(errs, field.Invalid(p, name, "must be a standard resource type or fully qualified"))
	}
	return errs
}

// containerResourceName accepts what containers may request.
func containerResourceName(name v1.ResourceName, p *field.Path) field.ErrorList {
	errs := resourceName(name, p)
	switch {
	case !hasDomain(name):
		if !containerResources.Has(name) && !podfit.IsHugePages(name) {
			errs = append(errs, field.Invalid(p, name, "must be a standard resource for containers"))
		}
	case !podfit.IsNative(name) && !podfit.IsExtended(name):
		errs = append(errs, field.Invalid(p, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

// quotaResourceName accepts what quotas can limit.
func quotaResourceName(name v1.ResourceName, p *field.Path) field.ErrorList {
	errs := resourceName(name, p)
	if !hasDomain(name) && !quotaResources.Has(name) && !quotaHugePages(name) {
		errs = append(errs, field.Invalid(p, name, "must be a standard resource for quota"))
	}
	return errs
}
