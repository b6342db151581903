package resource

import (
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

func resourceClaims() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ResourceClaim", Plural: "resourceclaims", Namespaced: true,
		StoragePath: "resourceclaims",
		New:         func() api.Object { return &resourcev1.ResourceClaim{} },
		NewList:     func() runtime.Object { return &resourcev1.ResourceClaimList{} },
		Default: api.Defaults(func(c *resourcev1.ResourceClaim) {
			defaultClaimSpec(&c.Spec)
			if a := c.Status.Allocation; a != nil {
				for i := range a.Devices.Results {
					defaultTolerations(a.Devices.Results[i].Tolerations)
				}
			}
		}),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(c *resourcev1.ResourceClaim) {
				c.Status = resourcev1.ResourceClaimStatus{}
				dropSpecFields(&c.Spec, nil)
			}),
			Validate: api.Check(func(c *resourcev1.ResourceClaim) field.ErrorList {
				return validateClaimSpec(&c.Spec, field.NewPath("spec"))
			}),
			PrepareUpdate: api.OnUpdate(func(c, old *resourcev1.ResourceClaim) {
				c.Status = old.Status
				dropSpecFields(&c.Spec, &old.Spec)
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *resourcev1.ResourceClaim) field.ErrorList {
				return api.Immutable(c.Spec, old.Spec, field.NewPath("spec"))
			}),
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(c, old *resourcev1.ResourceClaim) {
					c.Spec = old.Spec
					metav1.ResetObjectMetaForStatus(&c.ObjectMeta, &old.ObjectMeta)
					dropStatusFields(&c.Status, &old.Status)
					dropFreedDevices(&c.Status, &old.Status)
				}),
				ValidateUpdate:    api.CheckUpdate(validateClaimStatus),
				IgnoredApplyPaths: []string{"metadata", "spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("State", "string", "A summary of the current state (allocated, pending, reserved, etc.).", 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(c *resourcev1.ResourceClaim, now time.Time) []any {
			return []any{c.Name, claimState(c), api.Age(c.CreationTimestamp, now)}
		}),
	}
}

func claimState(c *resourcev1.ResourceClaim) string {
	var states []string
	if c.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case c.Status.Allocation == nil && c.DeletionTimestamp == nil:
		states = append(states, "pending")
	case c.Status.Allocation != nil:
		states = append(states, "allocated")
		if len(c.Status.ReservedFor) > 0 {
			states = append(states, "reserved")
		}
	}
	return strings.Join(states, ",")
}

func defaultClaimSpec(s *resourcev1.ResourceClaimSpec) {
	count := func(mode *resourcev1.DeviceAllocationMode, n *int64) {
		if *mode == "" {
			*mode = resourcev1.DeviceAllocationModeExactCount
		}
		if *mode == resourcev1.DeviceAllocationModeExactCount && *n == 0 {
			*n = 1
		}
	}
	for i := range s.Devices.Requests {
		r := &s.Devices.Requests[i]
		if e := r.Exactly; e != nil {
			count(&e.AllocationMode, &e.Count)
			defaultTolerations(e.Tolerations)
		}
		for j := range r.FirstAvailable {
			count(&r.FirstAvailable[j].AllocationMode, &r.FirstAvailable[j].Count)
			defaultTolerations(r.FirstAvailable[j].Tolerations)
		}
	}
}

func defaultTolerations(list []resourcev1.DeviceToleration) {
	for i := range list {
		if list[i].Operator == "" {
			list[i].Operator = resourcev1.DeviceTolerationOpEqual
		}
	}
}

// dropSpecFields removes what no feature serves yet, unless it was there before:
// derivedAttributes.
func dropSpecFields(s, old *resourcev1.ResourceClaimSpec) {
	if old != nil && derivesAttributes(old) {
		return
	}
	for i := range s.Devices.Requests {
		r := &s.Devices.Requests[i]
		if r.Exactly != nil {
			r.Exactly.DerivedAttributes = nil
		}
		for j := range r.FirstAvailable {
			r.FirstAvailable[j].DerivedAttributes = nil
		}
	}
}

func derivesAttributes(s *resourcev1.ResourceClaimSpec) bool {
	for _, r := range s.Devices.Requests {
		if r.Exactly != nil && len(r.Exactly.DerivedAttributes) > 0 {
			return true
		}
		for _, sub := range r.FirstAvailable {
			if len(sub.DerivedAttributes) > 0 {
				return true
			}
		}
	}
	return false
}

// dropStatusFields does the same for the status: skipNodeOperations.
func dropStatusFields(s, old *resourcev1.ResourceClaimStatus) {
	if old.Allocation != nil {
		for _, r := range old.Allocation.Devices.Results {
			if len(r.SkipNodeOperations) > 0 {
				return
			}
		}
	}
	if s.Allocation != nil {
		for i := range s.Allocation.Devices.Results {
			s.Allocation.Devices.Results[i].SkipNodeOperations = nil
		}
	}
}

// device names one device, or the share of it that one allocation has.
func device(driver, pool, name, share string) string {
	id := driver + "/" + pool + "/" + name
	if share != "" {
		id += "/" + share
	}
	return id
}

func allocated(a *resourcev1.AllocationResult) map[string]bool {
	ids := map[string]bool{}
	if a != nil {
		for _, r := range a.Devices.Results {
			ids[device(r.Driver, r.Pool, r.Device, string(ptr.Deref(r.ShareID, "")))] = true
		}
	}
	return ids
}

func statusDevice(d *resourcev1.AllocatedDeviceStatus) string {
	return device(d.Driver, d.Pool, d.Device, ptr.Deref(d.ShareID, ""))
}

// dropFreedDevices removes the status of devices that this update deallocates, so that
// clients need not know of it.
func dropFreedDevices(s, old *resourcev1.ResourceClaimStatus) {
	before, now := allocated(old.Allocation), allocated(s.Allocation)
	var kept []resourcev1.AllocatedDeviceStatus
	for i := range s.Devices {
		if id := statusDevice(&s.Devices[i]); now[id] || !before[id] {
			kept = append(kept, s.Devices[i])
		}
	}
	s.Devices = kept
}

// WantsAdmin returns the field of a new claim or claim template, or of a claim's changed
// status, that asks for devices as their administrator: the caller must then refuse unless
// the namespace is labelled resource.kubernetes.io/admin-access=true. old is nil on create.
func WantsAdmin(obj, old runtime.Object) *field.Path {
	var spec *resourcev1.ResourceClaimSpec
	switch o := obj.(type) {
	case *resourcev1.ResourceClaimTemplate:
		spec = &o.Spec.Spec
	case *resourcev1.ResourceClaim:
		if before, ok := old.(*resourcev1.ResourceClaim); ok && before != nil {
			if adminResult(before.Status.Allocation) != nil {
				return nil
			}
			return adminResult(o.Status.Allocation)
		}
		spec = &o.Spec
	default:
		return nil
	}
	for i, r := range spec.Devices.Requests {
		if old == nil && r.Exactly != nil && ptr.Deref(r.Exactly.AdminAccess, false) {
			return field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess")
		}
	}
	return nil
}

func adminResult(a *resourcev1.AllocationResult) *field.Path {
	if a == nil {
		return nil
	}
	for i, r := range a.Devices.Results {
		if ptr.Deref(r.AdminAccess, false) {
			return field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess")
		}
	}
	return nil
}
