package core

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/podfit"
)

func limitRanges() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "LimitRange", Plural: "limitranges", ShortNames: []string{"limits"},
		Namespaced: true, StoragePath: "limitranges",
		New:     func() api.Object { return &v1.LimitRange{} },
		NewList: func() runtime.Object { return &v1.LimitRangeList{} },
		Default: api.Defaults(func(l *v1.LimitRange) {
			for i := range l.Spec.Limits {
				defaultLimit(&l.Spec.Limits[i])
			}
		}),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(l *v1.LimitRange) {
				if l.Name == "" {
					l.Name = string(uuid.NewUUID())
				}
			}),
			Validate:       api.Check(validateLimitRange),
			ValidateUpdate: api.CheckUpdate(func(l, _ *v1.LimitRange) field.ErrorList { return validateLimitRange(l) }),
			CreateOnUpdate: true,
		},
	}
}

func defaultLimit(l *v1.LimitRangeItem) {
	if l.Type == v1.LimitTypeContainer {
		if l.Default == nil {
			l.Default = v1.ResourceList{}
		}
		if l.DefaultRequest == nil {
			l.DefaultRequest = v1.ResourceList{}
		}
		fillFrom(l.Default, l.Max)
		fillFrom(l.DefaultRequest, l.Default)
		fillFrom(l.DefaultRequest, l.Min)
	}
	for _, list := range []v1.ResourceList{l.Max, l.Min, l.Default, l.DefaultRequest, l.MaxLimitRequestRatio} {
		roundUp(list)
	}
}

func fillFrom(list, other v1.ResourceList) {
	for name, q := range other {
		if _, set := list[name]; !set {
			list[name] = q.DeepCopy()
		}
	}
}

func validateLimitRange(r *v1.LimitRange) field.ErrorList {
	var errs field.ErrorList
	seen := map[v1.LimitType]bool{}
	for i := range r.Spec.Limits {
		l, p := &r.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, limitType(l.Type, p.Child("type"))...)
		if seen[l.Type] {
			errs = append(errs, field.Duplicate(p.Child("type"), l.Type))
		}
		seen[l.Type] = true
		errs = append(errs, validateLimit(l, p)...)
	}
	return errs
}

func limitType(t v1.LimitType, p *field.Path) field.ErrorList {
	errs := invalid(p, t, validation.IsQualifiedName(string(t)))
	if len(errs) > 0 || strings.Contains(string(t), "/") {
		return errs
	}
	switch t {
	case v1.LimitTypePod, v1.LimitTypeContainer, v1.LimitTypePersistentVolumeClaim:
		return nil
	}
	return field.ErrorList{field.Invalid(p, t, "must be a standard limit type or fully qualified")}
}

func validateLimit(l *v1.LimitRangeItem, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	name := resourceName
	if l.Type == v1.LimitTypePod || l.Type == v1.LimitTypeContainer {
		name = containerResourceName
	}
	all := sets.New[v1.ResourceName]()
	names := func(list v1.ResourceList, child string) {
		for _, k := range sortedKeys(list) {
			errs = append(errs, name(k, p.Child(child).Key(string(k)))...)
			all.Insert(k)
		}
	}
	names(l.Max, "max")
	names(l.Min, "min")
	defaults, requests := l.Default, l.DefaultRequest
	if l.Type == v1.LimitTypePod {
		const why = "may not be specified when `type` is 'Pod'"
		if len(defaults) > 0 {
			errs = append(errs, field.Forbidden(p.Child("default"), why))
		}
		if len(requests) > 0 {
			errs = append(errs, field.Forbidden(p.Child("defaultRequest"), why))
		}
		defaults, requests = nil, nil
	} else {
		names(defaults, "default")
		names(requests, "defaultRequest")
	}
	if l.Type == v1.LimitTypePersistentVolumeClaim {
		_, hasMin := l.Min[v1.ResourceStorage]
		_, hasMax := l.Max[v1.ResourceStorage]
		if !hasMin && !hasMax {
			errs = append(errs, field.Required(p.Child("limits"), "either minimum or maximum storage value is required, but neither was provided"))
		}
	}
	names(l.MaxLimitRequestRatio, "maxLimitRequestRatio")
	for _, k := range sets.List(all) {
		errs = append(errs, compareLimits(k, l, defaults, requests, p)...)
	}
	return errs
}

func compareLimits(k v1.ResourceName, l *v1.LimitRangeItem, defaults, requests v1.ResourceList, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	// ordered refuses low > high; the error stands at child and shows bad.
	ordered := func(low, high v1.ResourceList, child string, bad v1.ResourceList, format string) {
		a, hasA := low[k]
		b, hasB := high[k]
		if hasA && hasB && a.Cmp(b) > 0 {
			errs = append(errs, field.Invalid(p.Child(child).Key(string(k)), bad[k], fmt.Sprintf(format, a.String(), b.String())))
		}
	}
	ordered(l.Min, l.Max, "min", l.Min, "min value %s is greater than max value %s")
	ordered(l.Min, requests, "defaultRequest", requests, "min value %s is greater than default request value %s")
	ordered(requests, l.Max, "defaultRequest", requests, "default request value %s is greater than max value %s")
	ordered(requests, defaults, "defaultRequest", requests, "default request value %s is greater than default limit value %s")
	ordered(l.Min, defaults, "default", l.Min, "min value %s is greater than default value %s")
	ordered(defaults, l.Max, "default", l.Max, "default value %s is greater than max value %s")
	if ratio, has := l.MaxLimitRequestRatio[k]; has {
		p := p.Child("maxLimitRequestRatio").Key(string(k))
		if ratio.Cmp(*resource.NewQuantity(1, resource.DecimalSI)) < 0 {
			errs = append(errs, field.Invalid(p, ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String())))
		}
		low, hasMin := l.Min[k]
		high, hasMax := l.Max[k]
		if hasMin && hasMax {
			most := high.AsApproximateFloat64() / low.AsApproximateFloat64()
			if ratio.AsApproximateFloat64() > most {
				errs = append(errs, field.Invalid(p, ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), most)))
			}
		}
	}
	limit, hasLimit := defaults[k]
	request, hasRequest := requests[k]
	if hasLimit && hasRequest && !podfit.MayOvercommit(k) && limit.Cmp(request) != 0 {
		errs = append(errs, field.Invalid(p.Child("defaultRequest").Key(string(k)), request,
			fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", limit.String(), request.String(), k)))
	}
	return errs
}
