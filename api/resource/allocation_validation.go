package resource

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api/core"
)

func validateClaimStatus(c, old *resourcev1.ResourceClaim) field.ErrorList {
	p := field.NewPath("status")
	s, before := &c.Status, &old.Status
	errs := unique(s.ReservedFor, resourcev1.ResourceClaimReservedForMaxSize, p.Child("reservedFor"),
		func(r *resourcev1.ResourceClaimConsumerReference) string { return string(r.UID) }, validateConsumer)
	devices := allocated(s.Allocation)
	errs = append(errs, unique(s.Devices, anySize, p.Child("devices"), statusDevice,
		func(d *resourcev1.AllocatedDeviceStatus, p *field.Path) field.ErrorList {
			return validateDeviceStatus(d, devices, p)
		})...)
	if len(s.ReservedFor) > 0 && s.Allocation == nil {
		errs = append(errs, field.Forbidden(p.Child("reservedFor"), "may not be specified when `allocated` is not set"))
	} else if c.DeletionTimestamp != nil {
		for _, r := range s.ReservedFor {
			if !slices.Contains(before.ReservedFor, r) {
				errs = append(errs, field.Forbidden(p.Child("reservedFor"),
					"new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"))
				break
			}
		}
	}
	if s.Allocation != nil {
		if before.Allocation != nil {
			// What is stored was checked when it was new.
			if !equality.Semantic.DeepEqual(s.Allocation, before.Allocation) {
				errs = append(errs, field.Invalid(p.Child("allocation"), nil, "field cannot be modified once set"))
			}
			return errs
		}
		errs = append(errs, validateAllocation(s.Allocation, requestNames(&c.Spec.Devices), p.Child("allocation"))...)
	}
	return errs
}

func validateConsumer(r *resourcev1.ResourceClaimConsumerReference, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct{ name, value string }{{"resource", r.Resource}, {"name", r.Name}, {"uid", string(r.UID)}} {
		if f.value == "" {
			errs = append(errs, field.Required(p.Child(f.name), ""))
		}
	}
	return errs
}

func validateAllocation(a *resourcev1.AllocationResult, names map[string]bool, p *field.Path) field.ErrorList {
	dp := p.Child("devices")
	errs := each(a.Devices.Results, resourcev1.AllocationResultsMaxSize, dp.Child("results"),
		func(r *resourcev1.DeviceRequestAllocationResult, p *field.Path) field.ErrorList {
			return validateResult(r, names, p)
		})
	// Configuration of the class and of the claim.
	errs = append(errs, each(a.Devices.Config, 2*resourcev1.DeviceConfigMaxSize, dp.Child("config"),
		func(c *resourcev1.DeviceAllocationConfiguration, p *field.Path) field.ErrorList {
			return validateResultConfig(c, names, p)
		})...)
	if a.NodeSelector != nil {
		errs = append(errs, core.ValidateNodeSelector(a.NodeSelector, p.Child("nodeSelector"))...)
	}
	return errs
}

func validateResult(r *resourcev1.DeviceRequestAllocationResult, names map[string]bool, p *field.Path) field.ErrorList {
	errs := validateRequestRef(r.Request, names, p.Child("request"))
	errs = append(errs, validateDriver(r.Driver, p.Child("driver"))...)
	if r.Pool == "" {
		errs = append(errs, field.Required(p.Child("pool"), ""))
	} else {
		errs = append(errs, declared(r.Pool, p.Child("pool"), validate.ResourcePoolName[string])...)
	}
	errs = append(errs, validateLabel(r.Device, p.Child("device"))...)
	errs = append(errs, validateBindingConditions(r.BindingConditions, r.BindingFailureConditions, p)...)
	errs = append(errs, each(r.Tolerations, anySize, p.Child("tolerations"), validateToleration)...)
	if r.ShareID != nil {
		errs = append(errs, declared(string(*r.ShareID), p.Child("shareID"), validate.UUID[string])...)
	}
	return errs
}

func validateResultConfig(c *resourcev1.DeviceAllocationConfiguration, names map[string]bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	sources := []resourcev1.AllocationConfigSource{resourcev1.AllocationConfigSourceClaim, resourcev1.AllocationConfigSourceClass}
	if c.Source == "" {
		errs = append(errs, field.Required(p.Child("source"), ""))
	} else if !slices.Contains(sources, c.Source) {
		errs = append(errs, field.NotSupported(p.Child("source"), c.Source, sources))
	}
	errs = append(errs, validateRequestRefs(c.Requests, names, p.Child("requests"))...)
	return append(errs, validateConfig(&c.DeviceConfiguration, resourcev1.OpaqueParametersMaxLength, p)...)
}

// validateBindingConditions wants both lists or none, and no condition twice.
func validateBindingConditions(conditions, failures []string, p *field.Path) field.ErrorList {
	cp, fp := p.Child("bindingConditions"), p.Child("bindingFailureConditions")
	name := func(s *string, p *field.Path) field.ErrorList { return metav1validation.ValidateLabelName(*s, p) }
	errs := each(conditions, resourcev1.BindingConditionsMaxSize, cp, name)
	errs = append(errs, each(failures, resourcev1.BindingFailureConditionsMaxSize, fp, name)...)
	for i, c := range conditions {
		if slices.Contains(conditions[:i], c) {
			errs = append(errs, field.Duplicate(cp.Index(i), c))
		}
	}
	for i, c := range failures {
		if slices.Contains(failures[:i], c) {
			errs = append(errs, field.Duplicate(fp.Index(i), c))
		}
		if slices.Contains(conditions, c) {
			errs = append(errs, field.Invalid(fp.Index(i), c, "bindingFailureConditions must not overlap with bindingConditions"))
		}
	}
	if len(conditions) == 0 && len(failures) > 0 {
		errs = append(errs, field.Invalid(cp, conditions, "bindingConditions are required to use bindingFailureConditions"))
	}
	if len(failures) == 0 && len(conditions) > 0 {
		errs = append(errs, field.Invalid(fp, failures, "bindingFailureConditions are required to use bindingConditions"))
	}
	return errs
}

func validateDeviceStatus(d *resourcev1.AllocatedDeviceStatus, allocated map[string]bool, p *field.Path) field.ErrorList {
	errs := validateDriverName(d.Driver, p.Child("driver"))
	errs = append(errs, validatePoolName(d.Pool, p.Child("pool"))...)
	errs = append(errs, validateLabel(d.Device, p.Child("device"))...)
	if d.ShareID != nil {
		errs = append(errs, declared(*d.ShareID, p.Child("shareID"), validate.UUID[string])...)
	}
	if id := statusDevice(d); !allocated[id] {
		errs = append(errs, field.Invalid(p, id, "must be an allocated device in the claim"))
	}
	if n := len(d.Conditions); n > resourcev1.AllocatedDeviceStatusMaxConditions {
		errs = append(errs, field.TooMany(p.Child("conditions"), n, resourcev1.AllocatedDeviceStatusMaxConditions))
	}
	errs = append(errs, metav1validation.ValidateConditions(d.Conditions, p.Child("conditions"))...)
	if d.Data != nil && len(d.Data.Raw) > 0 {
		errs = append(errs, validateObject(d.Data.Raw, resourcev1.AllocatedDeviceStatusDataMaxLength, p.Child("data"))...)
	}
	n, np := d.NetworkData, p.Child("networkData")
	if n == nil {
		return errs
	}
	if len(n.InterfaceName) > resourcev1.NetworkDeviceDataInterfaceNameMaxLength {
		errs = append(errs, field.TooLong(np.Child("interfaceName"), "", resourcev1.NetworkDeviceDataInterfaceNameMaxLength))
	}
	if len(n.HardwareAddress) > resourcev1.NetworkDeviceDataHardwareAddressMaxLength {
		errs = append(errs, field.TooLong(np.Child("hardwareAddress"), "", resourcev1.NetworkDeviceDataHardwareAddressMaxLength))
	}
	return append(errs, unique(n.IPs, resourcev1.NetworkDeviceDataMaxIPs, np.Child("ips"), itself,
		func(ip *string, p *field.Path) field.ErrorList { return validation.IsValidInterfaceAddress(p, *ip) })...)
}
