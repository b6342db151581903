package crd

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/skiff-k8s/skiff/api"
)

// strategy is how objects of a version are created and updated.
func (v *version) strategy() api.Strategy {
	s := api.Strategy{
		HasGeneration:   true,
		RequireRevision: true,
		SpecChanged:     v.specChanged,
		Validate: func(ctx context.Context, obj runtime.Object) field.ErrorList {
			return v.validate(ctx, obj.(*unstructured.Unstructured), nil)
		},
		ValidateUpdate: func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
			return v.validate(ctx, obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured))
		},
		Warnings: finalizerWarnings,
	}
	if v.hasStatus() {
		s.PrepareCreate = func(_ context.Context, obj runtime.Object) {
			delete(obj.(*unstructured.Unstructured).Object, "status")
		}
		s.PrepareUpdate = func(_ context.Context, obj, old runtime.Object) {
			copyField(obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured), "status")
		}
	}
	return s
}

// statusStrategy is how updates of the status subresource go: everything else stays.
func (v *version) statusStrategy() api.Strategy {
	return api.Strategy{
		RequireRevision: true,
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			next, before := obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
			status, has := next.Object["status"]
			managed := next.GetManagedFields()
			next.Object = before.DeepCopy().Object
			next.SetManagedFields(managed)
			if has {
				next.Object["status"] = status
			} else {
				delete(next.Object, "status")
			}
		},
		ValidateUpdate: func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
			return v.validateStatus(ctx, obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured))
		},
		IgnoredApplyPaths: []string{"metadata", "spec"},
	}
}

func copyField(obj, old *unstructured.Unstructured, name string) {
	if value, ok := old.Object[name]; ok {
		obj.Object[name] = runtime.DeepCopyJSONValue(value)
	} else {
		delete(obj.Object, name)
	}
}

// specChanged: everything but metadata, and the status if that is a subresource, which
// preparing the update has made equal.
func (v *version) specChanged(obj, old runtime.Object) bool {
	next, before := obj.(*unstructured.Unstructured).Object, old.(*unstructured.Unstructured).Object
	for _, m := range []map[string]any{next, before} {
		for k := range m {
			if k != "metadata" && !equalJSON(next[k], before[k]) {
				return true
			}
		}
	}
	return false
}

// validate checks an object against its schema, list types and rules. On update what
// was wrong before and did not change is let through (KEP-4008).
func (v *version) validate(ctx context.Context, obj, old *unstructured.Unstructured) field.ErrorList {
	c, err := v.checks()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	var errs field.ErrorList
	var rule []cel.Option
	var before any
	if old == nil {
		errs = validation.ValidateCustomResource(nil, obj.Object, c.object)
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, v.schema, obj.Object)...)
	} else {
		before = old.Object
		same := common.NewCorrelatedObject(obj.Object, old.Object, &model.Structural{Structural: v.schema})
		rule = append(rule, cel.WithRatcheting(same))
		errs = validation.ValidateCustomResourceUpdate(nil, obj.Object, old.Object, c.object, validation.WithRatcheting(same))
		errs = append(errs, v.listTypes(obj, old)...)
	}
	errs = append(errs, v.validateScale(obj, true)...)
	errs = append(errs, objectmeta.Validate(ctx, nil, obj.Object, v.schema, false)...)
	// What is wrong with the metadata is told elsewhere, but keeps rules from being checked too.
	wrong := errs
	if old == nil && obj.GetName() == "" && obj.GetGenerateName() == "" {
		wrong = append(slices.Clip(errs), field.Required(field.NewPath("metadata", "name"), ""))
	}
	return append(errs, v.validateRules(ctx, c, wrong, obj, before, rule)...)
}

func (v *version) validateStatus(ctx context.Context, obj, old *unstructured.Unstructured) field.ErrorList {
	c, err := v.checks()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	same := common.NewCorrelatedObject(obj.Object, old.Object, &model.Structural{Structural: v.schema})
	var opts []validation.ValidationOption
	if v.schema != nil {
		opts = append(opts, validation.WithRatcheting(same.Key("status")))
	}
	var errs field.ErrorList
	if status, ok := obj.Object["status"]; ok && c.status != nil {
		errs = validation.ValidateCustomResourceUpdate(field.NewPath("status"), status, old.Object["status"], c.status, opts...)
	}
	errs = append(errs, v.validateScale(obj, false)...)
	errs = append(errs, v.listTypes(obj, old)...)
	return append(errs, v.validateRules(ctx, c, errs, obj, old.Object, []cel.Option{cel.WithRatcheting(same)})...)
}

// listTypes lets duplicates in sets and maps stay that were there before.
func (v *version) listTypes(obj, old *unstructured.Unstructured) field.ErrorList {
	errs := listtype.ValidateListSetsAndMaps(nil, v.schema, obj.Object)
	if len(errs) > 0 && len(listtype.ValidateListSetsAndMaps(nil, v.schema, old.Object)) > 0 {
		return nil
	}
	return errs
}

// validateRules evaluates x-kubernetes-validations within upstream's cost limits. Rules
// may rely on the schema, so an object that breaks it is not given to them.
func (v *version) validateRules(ctx context.Context, c *checks, sofar field.ErrorList, obj *unstructured.Unstructured, old any, opts []cel.Option) field.ErrorList {
	if c.rules == nil {
		return nil
	}
	for _, e := range sofar {
		switch e.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return field.ErrorList{field.Invalid(nil, nil,
				"some validation rules were not checked because the object was invalid; correct the existing errors to complete validation")}
		}
	}
	errs, _ := c.rules.Validate(ctx, nil, v.schema, obj.Object, old, celconfig.RuntimeCELCostBudget, opts...)
	return errs
}

// validateScale checks the fields that the scale subresource shows.
func (v *version) validateScale(obj *unstructured.Unstructured, spec bool) field.ErrorList {
	s := v.scale()
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	replicas := func(path string) {
		n, _, err := unstructured.NestedInt64(obj.Object, fieldsOf(path)...)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(field.NewPath(path), n, err.Error()))
		case n < 0:
			errs = append(errs, field.Invalid(field.NewPath(path), n, "should be a non-negative integer"))
		case n > math.MaxInt32:
			errs = append(errs, field.Invalid(field.NewPath(path), n, fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)))
		}
	}
	if spec {
		replicas(s.SpecReplicasPath)
	}
	replicas(s.StatusReplicasPath)
	if s.LabelSelectorPath != nil {
		if selector, _, err := unstructured.NestedString(obj.Object, fieldsOf(*s.LabelSelectorPath)...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*s.LabelSelectorPath), selector, err.Error()))
		}
	}
	return errs
}

// fieldsOf splits a simple JSON path (.spec.replicas).
func fieldsOf(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

// scaleOf is the scale subresource.
func scaleOf(s *apiextensionsv1.CustomResourceSubresourceScale) *api.Scale {
	if s == nil {
		return nil
	}
	spec, status := fieldsOf(s.SpecReplicasPath), fieldsOf(s.StatusReplicasPath)
	var selector []string
	if s.LabelSelectorPath != nil && *s.LabelSelectorPath != "" {
		selector = fieldsOf(*s.LabelSelectorPath)
	}
	return &api.Scale{
		Path: spec,
		Get: func(obj runtime.Object) (int32, int32, string) {
			o := obj.(*unstructured.Unstructured).Object
			want, _, _ := unstructured.NestedInt64(o, spec...)
			is, _, _ := unstructured.NestedInt64(o, status...)
			labels := ""
			if selector != nil {
				labels, _, _ = unstructured.NestedString(o, selector...)
			}
			return int32(want), int32(is), labels
		},
		Set: func(obj runtime.Object, replicas int32) {
			// A path through something that is no object is refused by validation.
			_ = unstructured.SetNestedField(obj.(*unstructured.Unstructured).Object, int64(replicas), spec...)
		},
	}
}

// finalizerWarnings tells of new finalizers without a domain, which others may use too.
func finalizerWarnings(_ context.Context, obj, old runtime.Object) []string {
	var before []string
	if u, ok := old.(*unstructured.Unstructured); ok && u != nil {
		before = u.GetFinalizers()
	}
	var out []string
	for _, f := range obj.(*unstructured.Unstructured).GetFinalizers() {
		if slices.Contains(before, f) {
			continue
		}
		for _, msg := range utilvalidation.IsQualifiedName(f) {
			out = append(out, fmt.Sprintf("metadata.finalizers: %q: %s", f, msg))
		}
		if strings.Contains(f, "/") || f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents || f == "kubernetes" {
			continue
		}
		path := ""
		if strings.Contains(f, ".") {
			path = " including a path (/)"
		}
		out = append(out, fmt.Sprintf("metadata.finalizers: %q: prefer a domain-qualified finalizer name%s to avoid accidental conflicts with other finalizer writers", f, path))
	}
	return out
}
