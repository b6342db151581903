package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func roles() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "Role", Plural: "roles",
		Namespaced:  true,
		StoragePath: "roles",
		New:         func() api.Object { return &rbacv1.Role{} },
		NewList:     func() runtime.Object { return &rbacv1.RoleList{} },
		Strategy: api.Strategy{
			NameErrors: nameErrors,
			Validate: api.Check(func(r *rbacv1.Role) field.ErrorList {
				return validateRules(r.Rules, true)
			}),
			ValidateUpdate: api.CheckUpdate(func(r, _ *rbacv1.Role) field.ErrorList {
				return validateRules(r.Rules, true)
			}),
			CreateOnUpdate: true,
		},
	}
}

func validateRules(rules []rbacv1.PolicyRule, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range rules {
		errs = append(errs, validateRule(&rules[i], namespaced, field.NewPath("rules").Index(i))...)
	}
	return errs
}

func validateRule(r *rbacv1.PolicyRule, namespaced bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Verbs) == 0 {
		errs = append(errs, field.Required(p.Child("verbs"), ""))
	}
	if len(r.NonResourceURLs) > 0 {
		urls := p.Child("nonResourceURLs")
		if namespaced {
			errs = append(errs, field.Invalid(urls, r.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs"))
		}
		if len(r.APIGroups)+len(r.Resources)+len(r.ResourceNames) > 0 {
			errs = append(errs, field.Invalid(urls, r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
		}
		return errs
	}
	if len(r.APIGroups) == 0 {
		errs = append(errs, field.Required(p.Child("apiGroups"), "resource rules must supply at least one api group"))
	}
	if len(r.Resources) == 0 {
		errs = append(errs, field.Required(p.Child("resources"), "resource rules must supply at least one resource"))
	}
	return errs
}
