package core

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func resourceQuotas() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "ResourceQuota", Plural: "resourcequotas", ShortNames: []string{"quota"},
		Namespaced: true, StoragePath: "resourcequotas",
		New:     func() api.Object { return &v1.ResourceQuota{} },
		NewList: func() runtime.Object { return &v1.ResourceQuotaList{} },
		Default: api.Defaults(func(q *v1.ResourceQuota) {
			roundUp(q.Spec.Hard)
			roundUp(q.Status.Hard)
			roundUp(q.Status.Used)
		}),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(q *v1.ResourceQuota) { q.Status = v1.ResourceQuotaStatus{} }),
			Validate:      api.Check(func(q *v1.ResourceQuota) field.ErrorList { return validateQuotaSpec(&q.Spec) }),
			PrepareUpdate: api.OnUpdate(func(q, old *v1.ResourceQuota) { q.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(func(q, old *v1.ResourceQuota) field.ErrorList {
				errs := validateQuotaSpec(&q.Spec)
				if !sets.New(q.Spec.Scopes...).Equal(sets.New(old.Spec.Scopes...)) {
					errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes, apivalidation.FieldImmutableErrorMsg))
				}
				return errs
			}),
			Warnings: api.Warn(quotaWarnings),
		},
		Subresources: []api.Subresource{{Name: "status", Verbs: []string{"get", "patch", "update"}, Strategy: api.Strategy{
			PrepareUpdate: api.OnUpdate(func(q, old *v1.ResourceQuota) { q.Spec = old.Spec }),
			ValidateUpdate: api.CheckUpdate(func(q, _ *v1.ResourceQuota) field.ErrorList {
				return append(quotaAmounts(q.Status.Hard, field.NewPath("status", "hard")),
					quotaAmounts(q.Status.Used, field.NewPath("status", "used"))...)
			}),
			IgnoredApplyPaths: []string{"spec"},
		}}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Request", "string", "Request represents a minimum amount of cpu/memory that a container may consume.", 0),
			api.Column("Limit", "string", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.", 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(q *v1.ResourceQuota, now time.Time) []any {
			var requests, limits []string
			for _, name := range sortedKeys(q.Status.Hard) {
				used, hard := q.Status.Used[name], q.Status.Hard[name]
				cell := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
				if strings.HasPrefix(string(name), "limits.") {
					limits = append(limits, cell)
				} else {
					requests = append(requests, cell)
				}
			}
			return []any{q.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), api.Age(q.CreationTimestamp, now)}
		}),
	}
}

func quotaAmounts(list v1.ResourceList, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range sortedKeys(list) {
		errs = append(errs, quotaResourceName(name, p.Key(string(name)))...)
		errs = append(errs, quantity(name, list[name], p.Key(string(name)))...)
	}
	return errs
}

func validateQuotaSpec(s *v1.ResourceQuotaSpec) field.ErrorList {
	errs := quotaAmounts(s.Hard, field.NewPath("spec", "hard"))
	scopes := field.NewPath("spec", "scopes")
	for _, scope := range s.Scopes {
		if !knownScope(scope) {
			errs = append(errs, field.Invalid(scopes, s.Scopes, "unsupported scope"))
		}
		for _, name := range sortedKeys(s.Hard) {
			if !scopeCovers(scope, name) {
				errs = append(errs, field.Invalid(scopes, s.Scopes, "unsupported scope applied to resource"))
			}
		}
	}
	errs = append(errs, conflictingScopes(s, s.Scopes, scopes)...)
	if s.ScopeSelector != nil {
		errs = append(errs, validateScopeSelector(s)...)
	}
	return errs
}

func validateScopeSelector(s *v1.ResourceQuotaSpec) field.ErrorList {
	var errs field.ErrorList
	var scopes []v1.ResourceQuotaScope
	p := field.NewPath("spec", "scopeSelector", "matchExpressions")
	for _, r := range s.ScopeSelector.MatchExpressions {
		scopes = append(scopes, r.ScopeName)
		if !knownScope(r.ScopeName) {
			errs = append(errs, field.Invalid(p.Child("scopeName"), r.ScopeName, "unsupported scope"))
		}
		for _, name := range sortedKeys(s.Hard) {
			if !scopeCovers(r.ScopeName, name) {
				errs = append(errs, field.Invalid(p, s.ScopeSelector, "unsupported scope applied to resource"))
			}
		}
		switch r.ScopeName {
		case v1.ResourceQuotaScopeBestEffort, v1.ResourceQuotaScopeNotBestEffort, v1.ResourceQuotaScopeTerminating,
			v1.ResourceQuotaScopeNotTerminating, v1.ResourceQuotaScopeCrossNamespacePodAffinity:
			if r.Operator != v1.ScopeSelectorOpExists {
				errs = append(errs, field.Invalid(p.Child("operator"), r.Operator, "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"))
			}
		}
		switch r.Operator {
		case v1.ScopeSelectorOpIn, v1.ScopeSelectorOpNotIn:
			if len(r.Values) == 0 {
				errs = append(errs, field.Required(p.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
			}
		case v1.ScopeSelectorOpExists, v1.ScopeSelectorOpDoesNotExist:
			if len(r.Values) != 0 {
				errs = append(errs, field.Invalid(p.Child("values"), r.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"))
			}
		default:
			errs = append(errs, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
		}
	}
	return append(errs, conflictingScopes(s, scopes, p)...)
}

func conflictingScopes(s *v1.ResourceQuotaSpec, scopes []v1.ResourceQuotaScope, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, pair := range [][2]v1.ResourceQuotaScope{
		{v1.ResourceQuotaScopeBestEffort, v1.ResourceQuotaScopeNotBestEffort},
		{v1.ResourceQuotaScopeTerminating, v1.ResourceQuotaScopeNotTerminating},
	} {
		if slices.Contains(scopes, pair[0]) && slices.Contains(scopes, pair[1]) {
			errs = append(errs, field.Invalid(p, s.Scopes, "conflicting scopes"))
		}
	}
	return errs
}

func knownScope(s v1.ResourceQuotaScope) bool {
	switch s {
	case v1.ResourceQuotaScopeTerminating, v1.ResourceQuotaScopeNotTerminating, v1.ResourceQuotaScopeBestEffort,
		v1.ResourceQuotaScopeNotBestEffort, v1.ResourceQuotaScopePriorityClass,
		v1.ResourceQuotaScopeVolumeAttributesClass, v1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return true
	}
	return false
}

// scopeCovers tells whether a limit on a standard resource means something
// within the scope.
func scopeCovers(s v1.ResourceQuotaScope, name v1.ResourceName) bool {
	if !quotaResources.Has(name) && !quotaHugePages(name) {
		return true
	}
	pods := name == v1.ResourcePods
	switch s {
	case v1.ResourceQuotaScopeBestEffort:
		return pods
	case v1.ResourceQuotaScopeTerminating, v1.ResourceQuotaScopeNotTerminating, v1.ResourceQuotaScopeNotBestEffort,
		v1.ResourceQuotaScopePriorityClass, v1.ResourceQuotaScopeCrossNamespacePodAffinity:
		switch name {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceLimitsCPU, v1.ResourceLimitsMemory,
			v1.ResourceRequestsCPU, v1.ResourceRequestsMemory:
			return true
		}
		return pods
	case v1.ResourceQuotaScopeVolumeAttributesClass:
		return name == v1.ResourcePersistentVolumeClaims || name == v1.ResourceRequestsStorage
	}
	return true
}

func quotaWarnings(q, old *v1.ResourceQuota) []string {
	if old != nil {
		return nil
	}
	var warnings []string
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceStorage, v1.ResourceEphemeralStorage} {
		requestName := "requests." + name
		request, has := q.Spec.Hard[requestName]
		if !has && (name == v1.ResourceCPU || name == v1.ResourceMemory) {
			if request, has = q.Spec.Hard[name]; has {
				requestName = name
			}
		}
		limitName := "limits." + name
		limit, limited := q.Spec.Hard[limitName]
		if has && limited && request.Cmp(limit) > 0 {
			warnings = append(warnings, fmt.Sprintf("ResourceQuota %s (%s) should be less than %s (%s)",
				requestName, request.String(), limitName, limit.String()))
		}
	}
	return warnings
}
