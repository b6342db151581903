package rbac

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func clusterRoles() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ClusterRole", Plural: "clusterroles",
		StoragePath: "clusterroles",
		New:         func() api.Object { return &rbacv1.ClusterRole{} },
		NewList:     func() runtime.Object { return &rbacv1.ClusterRoleList{} },
		Strategy: api.Strategy{
			NameErrors: nameErrors,
			Validate: api.Check(func(r *rbacv1.ClusterRole) field.ErrorList {
				return validateClusterRole(r, false)
			}),
			ValidateUpdate: api.CheckUpdate(func(r, old *rbacv1.ClusterRole) field.ErrorList {
				return validateClusterRole(r, old.AggregationRule != nil && slices.ContainsFunc(old.AggregationRule.ClusterRoleSelectors, func(s metav1.LabelSelector) bool {
					return len(metav1validation.ValidateLabelSelector(&s, metav1validation.LabelSelectorValidationOptions{}, nil)) > 0
				}))
			}),
			CreateOnUpdate: true,
		},
	}
}

func validateClusterRole(r *rbacv1.ClusterRole, allowInvalidValues bool) field.ErrorList {
	return append(validateRules(r.Rules, false), validateAggregation(r, allowInvalidValues)...)
}

func validateAggregation(r *rbacv1.ClusterRole, allowInvalidValues bool) field.ErrorList {
	if r.AggregationRule == nil {
		return nil
	}
	var errs field.ErrorList
	p := field.NewPath("aggregationRule", "clusterRoleSelectors")
	selectors := r.AggregationRule.ClusterRoleSelectors
	if len(selectors) == 0 {
		errs = append(errs, field.Required(p, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	opts := metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: allowInvalidValues}
	for i := range selectors {
		errs = append(errs, metav1validation.ValidateLabelSelector(&selectors[i], opts, p.Index(i))...)
		if _, err := metav1.LabelSelectorAsSelector(&selectors[i]); err != nil {
			errs = append(errs, field.Invalid(p.Index(i), nil, "invalid label selector."))
		}
	}
	return errs
}
