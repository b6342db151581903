package storage

import (
	"maps"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func volumeAttributesClasses() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "VolumeAttributesClass", Plural: "volumeattributesclasses",
		ShortNames:  []string{"vac"},
		StoragePath: "volumeattributesclasses",
		New:         func() api.Object { return &storagev1.VolumeAttributesClass{} },
		NewList:     func() runtime.Object { return &storagev1.VolumeAttributesClassList{} },
		Strategy: api.Strategy{
			Validate: api.Check(validateAttributesClass),
			ValidateUpdate: api.CheckUpdate(func(c, old *storagev1.VolumeAttributesClass) field.ErrorList {
				var errs field.ErrorList
				if c.DriverName != old.DriverName {
					errs = append(errs, field.Forbidden(field.NewPath("driverName"), "updates to driverName are forbidden."))
				}
				if !maps.Equal(c.Parameters, old.Parameters) {
					errs = append(errs, field.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden."))
				}
				return append(errs, validateAttributesClass(c)...)
			}),
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("DriverName", "string", storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(c *storagev1.VolumeAttributesClass, now time.Time) []any {
			return []any{c.Name, c.DriverName, api.Age(c.CreationTimestamp, now)}
		}),
	}
}

func validateAttributesClass(c *storagev1.VolumeAttributesClass) field.ErrorList {
	p := field.NewPath("parameters")
	errs := validateProvisioner(c.DriverName, field.NewPath("driverName"))
	errs = append(errs, validateParameters(c.Parameters, p)...)
	if len(c.Parameters) == 0 {
		errs = append(errs, field.Required(p, "must contain at least one key/value pair"))
	}
	return errs
}
