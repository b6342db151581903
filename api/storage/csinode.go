package storage

import (
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

const maxNodeID = 256

func csiNodes() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "CSINode", Plural: "csinodes",
		StoragePath: "csinodes",
		New:         func() api.Object { return &storagev1.CSINode{} },
		NewList:     func() runtime.Object { return &storagev1.CSINodeList{} },
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(n *storagev1.CSINode) { n.Status = storagev1.CSINodeStatus{} }),
			Validate: api.Check(func(n *storagev1.CSINode) field.ErrorList {
				return validateDrivers(n.Spec.Drivers, field.NewPath("spec", "drivers"))
			}),
			PrepareUpdate:   api.OnUpdate(func(n, old *storagev1.CSINode) { n.Status = old.Status }),
			ValidateUpdate:  api.CheckUpdate(validateCSINodeUpdate),
			RequireRevision: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(n, old *storagev1.CSINode) {
					n.Spec = old.Spec
					metav1.ResetObjectMetaForStatus(&n.ObjectMeta, &old.ObjectMeta)
					// The gate of the only field in it (CSIVolumeHealth) is alpha.
					if len(old.Status.StorageHealth) == 0 {
						n.Status.StorageHealth = nil
					}
				}),
				RequireRevision:   true,
				IgnoredApplyPaths: []string{"metadata", "spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Drivers", "integer", "Drivers indicates the number of CSI drivers registered on the node", 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(n *storagev1.CSINode, now time.Time) []any {
			return []any{n.Name, int64(len(n.Spec.Drivers)), api.Age(n.CreationTimestamp, now)}
		}),
	}
}

// validateCSINodeUpdate lets of a driver that stays only its volume limit change.
func validateCSINodeUpdate(n, old *storagev1.CSINode) field.ErrorList {
	p := field.NewPath("spec", "drivers")
	errs := validateDrivers(n.Spec.Drivers, p)
	for i := range old.Spec.Drivers {
		for k := range n.Spec.Drivers {
			before, now := old.Spec.Drivers[i], n.Spec.Drivers[k]
			if before.Name == now.Name {
				before.Allocatable, now.Allocatable = nil, nil
				errs = append(errs, apivalidation.ValidateImmutableField(&now, &before, p)...)
			}
		}
	}
	return errs
}

func validateDrivers(drivers []storagev1.CSINodeDriver, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i := range drivers {
		d, dp := &drivers[i], p.Index(i)
		errs = append(errs, validateDriverName(d.Name, dp.Child("name"))...)
		if d.NodeID == "" {
			errs = append(errs, field.Required(dp.Child("nodeID"), ""))
		}
		if len(d.NodeID) > maxNodeID {
			errs = append(errs, field.Invalid(dp.Child("nodeID"), d.NodeID, fmt.Sprintf("must be %d characters or less", maxNodeID)))
		}
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*d.Allocatable.Count), dp.Child("allocatable", "count"))...)
		}
		if seen.Has(d.Name) {
			errs = append(errs, field.Duplicate(dp.Child("name"), d.Name))
		}
		seen.Insert(d.Name)
		errs = append(errs, validateTopologyKeys(d.TopologyKeys, dp)...)
	}
	return errs
}

func validateTopologyKeys(keys []string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for _, key := range keys {
		if key == "" {
			errs = append(errs, field.Required(p, ""))
		}
		if seen.Has(key) {
			errs = append(errs, field.Duplicate(p, key))
		}
		seen.Insert(key)
		errs = append(errs, metav1validation.ValidateLabelName(key, p)...)
	}
	return errs
}
