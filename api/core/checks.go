package core

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The checks below are those that several kinds share. Maps are walked in key
// order so that the same object always gets the same errors.

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func nonNegative[T ~int32 | ~int64](value T, p *field.Path) field.ErrorList {
	return apivalidation.ValidateNonnegativeField(int64(value), p)
}

func positive(value int64, p *field.Path) field.ErrorList {
	if value > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(p, value, "must be greater than zero").WithOrigin("minimum")}
}

// oneOf refuses values outside allowed; empty is missing.
func oneOf[T ~string](value T, p *field.Path, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return oneOfOrEmpty(value, p, allowed...)
}

// supported refuses values outside allowed, the empty one too, and lists them in
// order.
func supported[T ~string](value T, p *field.Path, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(p, value, slices.Sorted(slices.Values(allowed)))}
}

// oneOfAsListed is oneOf for the few fields whose errors list the values in
// an order of their own.
func oneOfAsListed[T ~string](value T, p *field.Path, allowed ...T) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(p, "")}
	case slices.Contains(allowed, value):
		return nil
	}
	return field.ErrorList{field.NotSupported(p, value, allowed)}
}

func oneOfOrEmpty[T ~string](value T, p *field.Path, allowed ...T) field.ErrorList {
	if value == "" {
		return nil
	}
	return supported(value, p, allowed...)
}

// invalid turns the messages of a name check into errors.
func invalid(p *field.Path, value any, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, m := range messages {
		errs = append(errs, field.Invalid(p, value, m))
	}
	return errs
}

func dnsLabel(value string, p *field.Path) field.ErrorList {
	return invalid(p, value, validation.IsDNS1123Label(value))
}

func dnsSubdomain(value string, p *field.Path) field.ErrorList {
	return invalid(p, value, validation.IsDNS1123Subdomain(value))
}

func qualifiedName(value string, p *field.Path) field.ErrorList {
	return invalid(p, value, validation.IsQualifiedName(value))
}

func portNumber(port int32, p *field.Path) field.ErrorList {
	return invalid(p, port, validation.IsValidPortNum(int(port)))
}

func immutable(value, old any, p *field.Path) field.ErrorList {
	return apivalidation.ValidateImmutableField(value, old, p)
}

// amount checks no more of an amount than its sign.
func amount(q resource.Quantity, p *field.Path) field.ErrorList {
	if q.Value() < 0 {
		return field.ErrorList{field.Invalid(p, q.Value(), "must be a valid resource quantity")}
	}
	return nil
}

// quantity checks an amount of a resource: never negative, and whole where the
// resource is counted in units.
func quantity(name v1.ResourceName, q resource.Quantity, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if q.Cmp(resource.Quantity{}) < 0 {
		errs = append(errs, field.Invalid(p, q.String(), apivalidation.IsNegativeErrorMsg))
	}
	if countedInUnits(name) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(p, q, "must be an integer"))
	}
	return errs
}

func equal[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
