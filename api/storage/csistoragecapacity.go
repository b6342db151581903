package storage

import (
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func csiStorageCapacities() *api.Resource {
	doc := storagev1.CSIStorageCapacity{}.SwaggerDoc()
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "CSIStorageCapacity", Plural: "csistoragecapacities",
		Namespaced:  true,
		StoragePath: "csistoragecapacities",
		New:         func() api.Object { return &storagev1.CSIStorageCapacity{} },
		NewList:     func() runtime.Object { return &storagev1.CSIStorageCapacityList{} },
		Strategy: api.Strategy{
			Validate: api.Check(func(c *storagev1.CSIStorageCapacity) field.ErrorList {
				return validateCapacity(c, nil)
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *storagev1.CSIStorageCapacity) field.ErrorList {
				errs := validateCapacity(c, old)
				if !equality.Semantic.DeepEqual(c.NodeTopology, old.NodeTopology) {
					errs = append(errs, field.Invalid(field.NewPath("nodeTopology"), c.NodeTopology, apivalidation.FieldImmutableErrorMsg))
				}
				if c.StorageClassName != old.StorageClassName {
					errs = append(errs, field.Invalid(field.NewPath("storageClassName"), c.StorageClassName, apivalidation.FieldImmutableErrorMsg))
				}
				return errs
			}),
			RequireRevision: true,
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("StorageClassName", "string", doc["storageClassName"], 0),
			api.Column("Capacity", "string", doc["capacity"], 0),
		},
		Row: api.Cells(func(c *storagev1.CSIStorageCapacity, _ time.Time) []any {
			capacity := "<unset>"
			if c.Capacity != nil {
				q := c.Capacity.DeepCopy() // printing caches in the value
				capacity = q.String()
			}
			return []any{c.Name, c.StorageClassName, capacity}
		}),
	}
}

func validateCapacity(c, old *storagev1.CSIStorageCapacity) field.ErrorList {
	opts := metav1validation.LabelSelectorValidationOptions{
		AllowInvalidLabelValueInSelector: old != nil && metav1validation.LabelSelectorHasInvalidLabelValue(old.NodeTopology)}
	errs := metav1validation.ValidateLabelSelector(c.NodeTopology, opts, field.NewPath("nodeTopology"))
	errs = append(errs, invalid(c.StorageClassName, validation.IsDNS1123Subdomain(c.StorageClassName), field.NewPath("storageClassName"))...)
	if c.Capacity != nil && c.Capacity.Sign() < 0 {
		q := c.Capacity.DeepCopy()
		errs = append(errs, field.Invalid(field.NewPath("capacity"), q.String(), apivalidation.IsNegativeErrorMsg))
	}
	return errs
}
