package resource

import (
	"fmt"
	"math"
	"strconv"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxValidValues is how many amounts a policy may list.
const maxValidValues = 10

// validateCapacity allows a policy for requests only where several may share the device.
func validateCapacity(c *resourcev1.DeviceCapacity, shared bool, p *field.Path) field.ErrorList {
	policy := c.RequestPolicy
	if policy == nil {
		return nil
	}
	p = p.Child("requestPolicy")
	if !shared {
		return field.ErrorList{field.Forbidden(p, "allowMultipleAllocations must be true")}
	}
	form := ""
	switch {
	case len(policy.ValidValues) > 0 && policy.ValidRange != nil:
		return field.ErrorList{field.Forbidden(p, `exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)}
	case len(policy.ValidValues) > 0:
		form = "validValues"
	case policy.ValidRange != nil:
		form = "validRange"
	default:
		return nil
	}
	if policy.Default == nil {
		return field.ErrorList{field.Required(p.Child("default"), fmt.Sprintf("required when %s is defined", form))}
	}
	if form == "validRange" {
		return validateRange(policy.ValidRange, policy.Default, &c.Value, p.Child(form))
	}
	return validateValues(policy.ValidValues, policy.Default, &c.Value, p.Child(form))
}

func validateValues(values []resource.Quantity, preset, capacity *resource.Quantity, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := 1; i < len(values); i++ {
		if values[i-1].Cmp(values[i]) > 0 {
			errs = append(errs, field.Invalid(p.Index(i), values[i].String(), "values must be sorted in ascending order"))
		}
	}
	found := false
	errs = append(errs, uniqueKeys(values, maxValidValues, p,
		func(q *resource.Quantity) string { return strconv.FormatInt(q.Value(), 10) },
		func(q *resource.Quantity, p *field.Path) field.ErrorList {
			found = found || q.Cmp(*preset) == 0
			if q.Cmp(*capacity) > 0 {
				return field.ErrorList{field.Invalid(p, q.String(), fmt.Sprintf("option is larger than capacity value: %s", capacity))}
			}
			return nil
		})...)
	if !found {
		errs = append(errs, field.Invalid(p, preset.String(), "default value is not valid according to the requestPolicy"))
	}
	return errs
}

func validateRange(r *resourcev1.CapacityRequestPolicyRange, preset, capacity *resource.Quantity, p *field.Path) field.ErrorList {
	if r.Min == nil {
		return field.ErrorList{field.Required(p.Child("min"), "required when validRange is defined")}
	}
	var errs field.ErrorList
	bad := func(name string, q *resource.Quantity, format string, args ...any) {
		errs = append(errs, field.Invalid(p.Child(name), q.String(), fmt.Sprintf(format, args...)))
	}
	if r.Min.Cmp(*capacity) > 0 {
		bad("min", r.Min, "min is larger than capacity value: %s", capacity)
	}
	if preset.Cmp(*r.Min) < 0 {
		bad("default", preset, "default is less than min: %s", r.Min)
	}
	if r.Max != nil {
		if r.Min.Cmp(*r.Max) > 0 {
			bad("max", r.Min, "min is larger than max: %s", r.Max)
		}
		if r.Max.Cmp(*capacity) > 0 {
			bad("max", r.Max, "max is larger than capacity value: %s", capacity)
		}
		if preset.Cmp(*r.Max) > 0 {
			bad("default", preset, "default is more than max: %s", r.Max)
		}
	}
	if r.Step == nil {
		return errs
	}
	if r.Step.Sign() <= 0 {
		bad("step", r.Step, "must be greater than zero")
		return errs
	}
	one := r.Min.DeepCopy()
	one.Add(*r.Step)
	if one.Cmp(*capacity) > 0 {
		bad("step", r.Step, "one step %s is larger than capacity value: %s", &one, capacity)
	}
	// The steps are counted in integers, so everything must be one.
	safe := true
	for _, f := range []struct {
		name string
		q    *resource.Quantity
	}{{"default", preset}, {"min", r.Min}, {"max", r.Max}, {"step", r.Step}} {
		if f.q == nil {
			continue
		}
		if f.q.Sign() < 0 {
			bad(f.name, f.q, apivalidation.IsNegativeErrorMsg)
			safe = false
		} else if f.q.CmpInt64(math.MaxInt64) > 0 {
			bad(f.name, f.q, "must not be larger than %d", int64(math.MaxInt64))
			safe = false
		}
	}
	if !safe {
		return errs
	}
	for _, q := range []*resource.Quantity{preset, r.Max} {
		if q != nil && (q.Value()-r.Min.Value())%r.Step.Value() != 0 {
			bad("step", q, "value is not a multiple of a given step (%s) from (%s)", r.Step, r.Min)
		}
	}
	return errs
}
