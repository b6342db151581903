package resource

import (
	"math"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func deviceClasses() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "DeviceClass", Plural: "deviceclasses",
		StoragePath: "deviceclasses",
		New:         func() api.Object { return &resourcev1.DeviceClass{} },
		NewList:     func() runtime.Object { return &resourcev1.DeviceClassList{} },
		Strategy: api.Strategy{
			Validate:       api.Check(func(c *resourcev1.DeviceClass) field.ErrorList { return validateClass(&c.Spec, nil) }),
			ValidateUpdate: api.CheckUpdate(func(c, old *resourcev1.DeviceClass) field.ErrorList { return validateClass(&c.Spec, &old.Spec) }),
			HasGeneration:  true,
		},
		Columns: []metav1.TableColumnDefinition{api.NameColumn(), api.AgeColumn()},
		Row: api.Cells(func(c *resourcev1.DeviceClass, now time.Time) []any {
			return []any{c.Name, api.Age(c.CreationTimestamp, now)}
		}),
	}
}

// validateClass takes expressions and sizes that are stored for good: what they were checked
// against may have changed since.
func validateClass(s, old *resourcev1.DeviceClassSpec) field.ErrorList {
	p := field.NewPath("spec")
	selector, limit := validateSelector, resourcev1.OpaqueParametersMaxLength
	if old != nil && equality.Semantic.DeepEqual(s.Selectors, old.Selectors) {
		selector = func(*resourcev1.DeviceSelector, *field.Path) field.ErrorList { return nil }
	}
	if old != nil && equality.Semantic.DeepEqual(s.Config, old.Config) {
		limit = math.MaxInt
	}
	errs := each(s.Selectors, resourcev1.DeviceSelectorsMaxSize, p.Child("selectors"), selector)
	errs = append(errs, each(s.Config, resourcev1.DeviceConfigMaxSize, p.Child("config"),
		func(c *resourcev1.DeviceClassConfiguration, p *field.Path) field.ErrorList {
			return validateConfig(&c.DeviceConfiguration, limit, p)
		})...)
	if name := s.ExtendedResourceName; name != nil {
		errs = append(errs, declared(*name, p.Child("extendedResourceName"), validate.ExtendedResourceName[string])...)
	}
	return errs
}
