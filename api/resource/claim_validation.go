package resource

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	devicecel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
)

func validateClaimSpec(s *resourcev1.ResourceClaimSpec, p *field.Path) field.ErrorList {
	d, dp := &s.Devices, p.Child("devices")
	names := requestNames(d)
	errs := unique(d.Requests, resourcev1.DeviceRequestsMaxSize, dp.Child("requests"),
		func(r *resourcev1.DeviceRequest) string { return r.Name }, validateRequest)
	errs = append(errs, each(d.Constraints, resourcev1.DeviceConstraintsMaxSize, dp.Child("constraints"),
		func(c *resourcev1.DeviceConstraint, p *field.Path) field.ErrorList {
			return validateConstraint(c, names, p)
		})...)
	return append(errs, each(d.Config, resourcev1.DeviceConfigMaxSize, dp.Child("config"),
		func(c *resourcev1.DeviceClaimConfiguration, p *field.Path) field.ErrorList {
			errs := validateRequestRefs(c.Requests, names, p.Child("requests"))
			return append(errs, validateConfig(&c.DeviceConfiguration, resourcev1.OpaqueParametersMaxLength, p)...)
		})...)
}

// requestNames are the requests of a claim: "name", and "name/sub" for alternatives.
func requestNames(d *resourcev1.DeviceClaim) map[string]bool {
	names := map[string]bool{}
	for _, r := range d.Requests {
		names[r.Name] = true
		for _, sub := range r.FirstAvailable {
			names[r.Name+"/"+sub.Name] = true
		}
	}
	return names
}

func validateRequest(r *resourcev1.DeviceRequest, p *field.Path) field.ErrorList {
	errs := validateLabel(r.Name, p.Child("name"))
	const one = "exactly one of `exactly` or `firstAvailable` is required"
	switch {
	case len(r.FirstAvailable) == 0 && r.Exactly == nil:
		return append(errs, field.Required(p, one))
	case len(r.FirstAvailable) > 0 && r.Exactly != nil:
		return append(errs, field.Invalid(p, nil, one+", but multiple fields are set"))
	case r.Exactly != nil:
		e := r.Exactly
		return append(errs, validateDeviceRequest(e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Tolerations, p.Child("exactly"))...)
	}
	return append(errs, unique(r.FirstAvailable, resourcev1.FirstAvailableDeviceRequestMaxSize, p.Child("firstAvailable"),
		func(s *resourcev1.DeviceSubRequest) string { return s.Name },
		func(s *resourcev1.DeviceSubRequest, p *field.Path) field.ErrorList {
			errs := validateLabel(s.Name, p.Child("name"))
			return append(errs, validateDeviceRequest(s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Tolerations, p)...)
		})...)
}

func validateDeviceRequest(class string, selectors []resourcev1.DeviceSelector, mode resourcev1.DeviceAllocationMode,
	count int64, tolerations []resourcev1.DeviceToleration, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if class == "" {
		errs = append(errs, field.Required(p.Child("deviceClassName"), ""))
	} else {
		errs = append(errs, validateSubdomain(class, p.Child("deviceClassName"))...)
	}
	errs = append(errs, each(selectors, resourcev1.DeviceSelectorsMaxSize, p.Child("selectors"), validateSelector)...)
	switch mode {
	case resourcev1.DeviceAllocationModeAll:
		if count != 0 {
			errs = append(errs, field.Invalid(p.Child("count"), count, fmt.Sprintf("must not be specified when allocationMode is '%s'", mode)))
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if count <= 0 {
			errs = append(errs, field.Invalid(p.Child("count"), count, "must be greater than zero"))
		}
	default:
		errs = append(errs, field.NotSupported(p.Child("allocationMode"), mode,
			[]resourcev1.DeviceAllocationMode{resourcev1.DeviceAllocationModeAll, resourcev1.DeviceAllocationModeExactCount}))
	}
	return append(errs, each(tolerations, anySize, p.Child("tolerations"), validateToleration)...)
}

// validateSelector compiles the expression of a selector that is new.
func validateSelector(s *resourcev1.DeviceSelector, p *field.Path) field.ErrorList {
	if s.CEL == nil {
		return field.ErrorList{field.Required(p.Child("cel"), "")}
	}
	p = p.Child("cel", "expression")
	if len(s.CEL.Expression) > resourcev1.CELSelectorExpressionMaxLength {
		return field.ErrorList{field.TooLong(p, "", resourcev1.CELSelectorExpressionMaxLength)}
	}
	result := devicecel.GetCompiler(devicecel.Features{EnableConsumableCapacity: true}).
		CompileCELExpression(s.CEL.Expression, devicecel.Options{EnvType: ptr.To(environment.NewExpressions)})
	if result.Error == nil {
		if result.MaxCost > resourcev1.CELSelectorExpressionMaxCost {
			return field.ErrorList{field.Forbidden(p, "too complex, exceeds cost limit")}
		}
		return nil
	}
	var problem *cel.Error
	if errors.As(result.Error, &problem) {
		switch problem.Type {
		case cel.ErrorTypeRequired:
			return field.ErrorList{field.Required(p, problem.Detail)}
		case cel.ErrorTypeInvalid:
			return field.ErrorList{field.Invalid(p, s.CEL.Expression, problem.Detail)}
		}
	}
	return field.ErrorList{field.InternalError(p, result.Error)}
}

func validateConstraint(c *resourcev1.DeviceConstraint, names map[string]bool, p *field.Path) field.ErrorList {
	errs := validateRequestRefs(c.Requests, names, p.Child("requests"))
	if a := c.MatchAttribute; a != nil {
		errs = append(errs, declared(string(*a), p.Child("matchAttribute"), validate.ResourceFullyQualifiedName[string])...)
	}
	if a := c.DistinctAttribute; a != nil {
		errs = append(errs, declared(string(*a), p.Child("distinctAttribute"), validate.ResourceFullyQualifiedName[string])...)
	}
	if c.MatchAttribute == nil && c.DistinctAttribute == nil {
		errs = append(errs, field.Required(p, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`))
	}
	return errs
}

func validateRequestRefs(refs []string, names map[string]bool, p *field.Path) field.ErrorList {
	return unique(refs, resourcev1.DeviceRequestsMaxSize, p, itself, func(ref *string, p *field.Path) field.ErrorList {
		return validateRequestRef(*ref, names, p)
	})
}

func validateRequestRef(ref string, names map[string]bool, p *field.Path) field.ErrorList {
	const unknown = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	parts := strings.Split(ref, "/")
	if len(parts) > 2 {
		return field.ErrorList{field.Invalid(p, ref, unknown)}
	}
	var errs field.ErrorList
	for _, part := range parts {
		errs = append(errs, validateLabel(part, p)...)
	}
	if !names[ref] {
		errs = append(errs, field.Invalid(p, ref, unknown))
	}
	return errs
}

func validateConfig(c *resourcev1.DeviceConfiguration, limit int, p *field.Path) field.ErrorList {
	if c.Opaque == nil {
		return field.ErrorList{field.Required(p.Child("opaque"), "")}
	}
	p = p.Child("opaque")
	errs := validateDriver(c.Opaque.Driver, p.Child("driver"))
	return append(errs, validateObject(c.Opaque.Parameters.Raw, limit, p.Child("parameters"))...)
}

var taintEffects = []resourcev1.DeviceTaintEffect{
	resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone,
}

func validateToleration(t *resourcev1.DeviceToleration, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Key != "" {
		errs = append(errs, metav1validation.ValidateLabelName(t.Key, p.Child("key"))...)
	}
	switch t.Operator {
	case resourcev1.DeviceTolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(p.Child("value"), t.Value, "must be empty for operator `Exists`"))
		}
	case resourcev1.DeviceTolerationOpEqual:
		errs = append(errs, invalid(t.Value, validation.IsValidLabelValue(t.Value), p.Child("value"))...)
	case "":
		errs = append(errs, field.Required(p.Child("operator"), ""))
	default:
		errs = append(errs, field.NotSupported(p.Child("operator"), t.Operator,
			[]resourcev1.DeviceTolerationOperator{resourcev1.DeviceTolerationOpEqual, resourcev1.DeviceTolerationOpExists}))
	}
	if t.Effect != "" && !slices.Contains(taintEffects, t.Effect) {
		errs = append(errs, field.NotSupported(p.Child("effect"), t.Effect, taintEffects))
	}
	return errs
}

// validateTaint checks the effect only where it is new.
func validateTaint(t, old *resourcev1.DeviceTaint, p *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabelName(t.Key, p.Child("key"))
	if t.Value != "" {
		errs = append(errs, invalid(t.Value, validation.IsValidLabelValue(t.Value), p.Child("value"))...)
	}
	if old != nil && old.Effect == t.Effect {
		return errs
	}
	if t.Effect == "" {
		errs = append(errs, field.Required(p.Child("effect"), ""))
	} else if !slices.Contains(taintEffects, t.Effect) {
		errs = append(errs, field.NotSupported(p.Child("effect"), t.Effect, taintEffects))
	}
	return errs
}
