package resource

import (
	"fmt"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

func resourceSlices() *api.Resource {
	spec := resourcev1.ResourceSliceSpec{}.SwaggerDoc()
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ResourceSlice", Plural: "resourceslices",
		StoragePath: "resourceslices",
		New:         func() api.Object { return &resourcev1.ResourceSlice{} },
		NewList:     func() runtime.Object { return &resourcev1.ResourceSliceList{} },
		Default: api.Defaults(func(s *resourcev1.ResourceSlice) {
			for i := range s.Spec.Devices {
				for j := range s.Spec.Devices[i].Taints {
					defaultTaint(&s.Spec.Devices[i].Taints[j])
				}
			}
		}),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(s *resourcev1.ResourceSlice) { dropSliceFields(&s.Spec, &resourcev1.ResourceSliceSpec{}) }),
			Validate:      api.Check(func(s *resourcev1.ResourceSlice) field.ErrorList { return validateSlice(&s.Spec, nil) }),
			PrepareUpdate: api.OnUpdate(func(s, old *resourcev1.ResourceSlice) { dropSliceFields(&s.Spec, &old.Spec) }),
			ValidateUpdate: api.CheckUpdate(func(s, old *resourcev1.ResourceSlice) field.ErrorList {
				return validateSlice(&s.Spec, &old.Spec)
			}),
			Warnings: api.Warn(func(s, _ *resourcev1.ResourceSlice) []string {
				if d := s.Spec.Driver; d != strings.ToLower(d) {
					return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters", d)}
				}
				return nil
			}),
			HasGeneration: true,
		},
		Fields: api.Selectable(func(s *resourcev1.ResourceSlice) fields.Set {
			return fields.Set{
				resourcev1.ResourceSliceSelectorNodeName: ptr.Deref(s.Spec.NodeName, ""),
				resourcev1.ResourceSliceSelectorDriver:   s.Spec.Driver,
				resourcev1.ResourceSliceSelectorPoolName: s.Spec.Pool.Name,
			}
		}),
		FieldLabels: []string{
			resourcev1.ResourceSliceSelectorNodeName, resourcev1.ResourceSliceSelectorDriver, resourcev1.ResourceSliceSelectorPoolName,
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Node", "string", spec["nodeName"], 0),
			api.Column("Driver", "string", spec["driver"], 0),
			api.Column("Pool", "string", resourcev1.ResourcePool{}.SwaggerDoc()["name"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(s *resourcev1.ResourceSlice, now time.Time) []any {
			return []any{s.Name, ptr.Deref(s.Spec.NodeName, ""), s.Spec.Driver, s.Spec.Pool.Name, api.Age(s.CreationTimestamp, now)}
		}),
	}
}

// dropSliceFields removes what no feature serves yet, unless it was there before.
func dropSliceFields(s, old *resourcev1.ResourceSliceSpec) {
	if old.PartitionTypeAttribute == nil {
		s.PartitionTypeAttribute = nil
	}
	if len(old.SkipNodeOperations) == 0 {
		s.SkipNodeOperations = nil
	}
	var groups, resources, lists bool
	for i := range old.Devices {
		d := &old.Devices[i]
		for _, c := range d.ConsumesCounters {
			groups = groups || len(c.CompatibilityGroups) > 0
		}
		resources = resources || len(d.NodeAllocatableResources) > 0
		for _, a := range d.Attributes {
			lists = lists || isList(&a)
		}
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		if !groups {
			for j := range d.ConsumesCounters {
				d.ConsumesCounters[j].CompatibilityGroups = nil
			}
		}
		if !resources {
			d.NodeAllocatableResources = nil
		}
		if !lists {
			for name, a := range d.Attributes {
				if isList(&a) {
					a.BoolValues, a.IntValues, a.StringValues, a.VersionValues = nil, nil, nil, nil
					d.Attributes[name] = a
				}
			}
		}
	}
}

func isList(a *resourcev1.DeviceAttribute) bool {
	return a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil
}
