package resource

import (
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func deviceTaintRules() *api.Resource {
	taint := resourcev1.DeviceTaint{}.SwaggerDoc()
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "DeviceTaintRule", Plural: "devicetaintrules",
		StoragePath:    "devicetaintrules",
		StorageVersion: schema.GroupVersion{Group: groupVersion.Group, Version: "v1beta2"},
		New:            func() api.Object { return &resourcev1.DeviceTaintRule{} },
		NewList:        func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} },
		Default:        api.Defaults(func(r *resourcev1.DeviceTaintRule) { defaultTaint(&r.Spec.Taint) }),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(r *resourcev1.DeviceTaintRule) { r.Status = resourcev1.DeviceTaintRuleStatus{} }),
			Validate: api.Check(func(r *resourcev1.DeviceTaintRule) field.ErrorList {
				return validateTaintRule(&r.Spec, nil)
			}),
			PrepareUpdate: api.OnUpdate(func(r, old *resourcev1.DeviceTaintRule) {
				r.Status = old.Status
				// The time is when this effect was added, unless the client says otherwise.
				if t, before := &r.Spec.Taint, &old.Spec.Taint; t.Effect != before.Effect && t.TimeAdded.Equal(before.TimeAdded) {
					t.TimeAdded = nil
					defaultTaint(t)
				}
			}),
			ValidateUpdate: api.CheckUpdate(func(r, old *resourcev1.DeviceTaintRule) field.ErrorList {
				return validateTaintRule(&r.Spec, &old.Spec)
			}),
			HasGeneration:   true,
			RequireRevision: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(r, old *resourcev1.DeviceTaintRule) {
					r.Spec = old.Spec
					metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
				}),
				ValidateUpdate: api.CheckUpdate(func(r, _ *resourcev1.DeviceTaintRule) field.ErrorList {
					p := field.NewPath("status", "conditions")
					errs := metav1validation.ValidateConditions(r.Status.Conditions, p)
					if n := len(r.Status.Conditions); n > resourcev1.DeviceTaintRuleStatusMaxConditions {
						errs = append(errs, field.TooMany(p, n, resourcev1.DeviceTaintRuleStatusMaxConditions))
					}
					return errs
				}),
				RequireRevision:   true,
				IgnoredApplyPaths: []string{"metadata", "spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Key", "string", taint["key"], 0),
			api.Column("Value", "string", taint["value"], 0),
			api.Column("Effect", "string", taint["effect"], 0),
			api.Column("TimeAdded", "string", taint["timeAdded"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(r *resourcev1.DeviceTaintRule, now time.Time) []any {
			t, added := &r.Spec.Taint, ""
			if t.TimeAdded != nil {
				added = api.Age(*t.TimeAdded, now)
			}
			return []any{r.Name, t.Key, t.Value, string(t.Effect), added, api.Age(r.CreationTimestamp, now)}
		}),
	}
}

func defaultTaint(t *resourcev1.DeviceTaint) {
	if t.TimeAdded == nil {
		t.TimeAdded = &metav1.Time{Time: time.Now().Truncate(time.Second)}
	}
}

func validateTaintRule(s, old *resourcev1.DeviceTaintRuleSpec) field.ErrorList {
	p := field.NewPath("spec")
	var errs field.ErrorList
	if d, dp := s.DeviceSelector, p.Child("deviceSelector"); d != nil {
		if d.Driver != nil {
			errs = append(errs, validateDriverName(*d.Driver, dp.Child("driver"))...)
		}
		if d.Pool != nil {
			errs = append(errs, validatePoolName(*d.Pool, dp.Child("pool"))...)
		}
		if d.Device != nil {
			errs = append(errs, validateLabel(*d.Device, dp.Child("device"))...)
		}
	}
	var before *resourcev1.DeviceTaint
	if old != nil {
		before = &old.Taint
	}
	return append(errs, validateTaint(&s.Taint, before, p.Child("taint"))...)
}
