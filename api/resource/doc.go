// Package resource declares the resources of resource.k8s.io: dynamic resource allocation.
//
// Owns: names, defaults, validation, strategies and table cells of the group's kinds.
// Must not: allocate devices; decide who may use a device for administration, bind a claim
// or write a driver's status: that is the API server's (see WantsAdmin).
package resource

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

var groupVersion = resourcev1.SchemeGroupVersion

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{
		deviceClasses(),
		deviceTaintRules(),
		resourceClaims(),
		resourceClaimTemplates(),
		resourceSlices(),
	}
}

// each checks every item of a list of at most limit items; a longer list is not looked at.
func each[T any](list []T, limit int, p *field.Path, check func(*T, *field.Path) field.ErrorList) field.ErrorList {
	if len(list) > limit {
		return field.ErrorList{field.TooMany(p, len(list), limit)}
	}
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, check(&list[i], p.Index(i))...)
	}
	return errs
}

// unique does what each does and wants every item to have another key. An error about a
// second one shows the item.
func unique[T any](list []T, limit int, p *field.Path, key func(*T) string, check func(*T, *field.Path) field.ErrorList) field.ErrorList {
	return append(each(list, limit, p, check), duplicates(list, limit, p, key, func(item *T) any { return *item })...)
}

// uniqueKeys does the same; its errors show the key.
func uniqueKeys[T any](list []T, limit int, p *field.Path, key func(*T) string, check func(*T, *field.Path) field.ErrorList) field.ErrorList {
	return append(each(list, limit, p, check), duplicates(list, limit, p, key, func(item *T) any { return key(item) })...)
}

func duplicates[T any](list []T, limit int, p *field.Path, key func(*T) string, shown func(*T) any) field.ErrorList {
	if len(list) > limit {
		return nil
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range list {
		k := key(&list[i])
		if seen[k] {
			errs = append(errs, field.Duplicate(p.Index(i), shown(&list[i])))
		}
		seen[k] = true
	}
	return errs
}

func itself(s *string) string { return *s }

// anySize is the limit of lists whose size nothing else limits.
const anySize = 1 << 30

// sortedKeys make errors about a map come in one order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func invalid(value string, msgs []string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(p, value, msg))
	}
	return errs
}

func validateLabel(name string, p *field.Path) field.ErrorList {
	return invalid(name, validation.IsDNS1123Label(name), p)
}

func validateSubdomain(name string, p *field.Path) field.ErrorList {
	return invalid(name, validation.IsDNS1123Subdomain(name), p)
}

func validateDriverName(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.DriverNameMaxLength {
		errs = append(errs, field.TooLong(p, "", resourcev1.DriverNameMaxLength))
	}
	return append(errs, invalid(name, validation.IsDNS1123Subdomain(strings.ToLower(name)), p)...)
}

// validatePoolName wants subdomains separated by slashes.
func validatePoolName(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.PoolNameMaxLength {
		errs = append(errs, field.TooLong(p, "", resourcev1.PoolNameMaxLength))
	}
	for _, part := range strings.Split(name, "/") {
		errs = append(errs, validateSubdomain(part, p)...)
	}
	return errs
}

// declared checks a value with one of upstream's declarative formats.
func declared(value string, p *field.Path, format func(context.Context, operation.Operation, *field.Path, *string, *string) field.ErrorList) field.ErrorList {
	return format(context.Background(), operation.Operation{}, p, &value, nil)
}

func validateDriver(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	errs := declared(name, p, validate.LongNameCaseless[string])
	return append(errs, validate.MaxLength(context.Background(), operation.Operation{}, p, &name, nil, resourcev1.DriverNameMaxLength)...)
}

// validateQualifiedName wants an identifier of C, with or without a domain and a slash
// before it.
func validateQualifiedName(name string, p *field.Path) field.ErrorList {
	domain, id, qualified := strings.Cut(name, "/")
	if !qualified {
		return validateIdentifier(name, p)
	}
	if strings.Contains(id, "/") {
		return nil // as upstream
	}
	var errs field.ErrorList
	if domain == "" {
		errs = append(errs, field.Invalid(p, "", "the domain must not be empty"))
	} else {
		errs = append(errs, validateDriverName(domain, p)...)
	}
	if id == "" {
		return append(errs, field.Invalid(p, "", "the name must not be empty"))
	}
	return append(errs, validateIdentifier(id, p)...)
}

func validateIdentifier(id string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(id) > resourcev1.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(p, "", resourcev1.DeviceMaxIDLength))
	}
	return append(errs, invalid(id, content.IsCIdentifier(id), p)...)
}

// validateObject wants a JSON object of at most limit bytes.
func validateObject(raw []byte, limit int, p *field.Path) field.ErrorList {
	var v any
	if len(raw) == 0 {
		return field.ErrorList{field.Required(p, "")}
	}
	if len(raw) > limit {
		return field.ErrorList{field.TooLong(p, "", limit)}
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return field.ErrorList{field.Invalid(p, "<value omitted>", fmt.Sprintf("error parsing data as JSON: %v", err))}
	}
	if v == nil {
		return field.ErrorList{field.Required(p, "")}
	}
	if _, ok := v.(map[string]any); !ok {
		return field.ErrorList{field.Invalid(p, "<value omitted>", "must be a valid JSON object")}
	}
	return nil
}
