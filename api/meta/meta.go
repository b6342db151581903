// Package meta validates metadata the way every resource does: names, labels,
// annotations, owners, finalizers and managed fields, on create and on update.
//
// Owns: the rules that hold for all kinds. Must not: know any kind.
package meta

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NameErrors validates a name, or with prefix set a generateName.
type NameErrors func(name string, prefix bool) []string

// Names of the usual forms; resources name one in their Strategy.
var (
	DNSSubdomain NameErrors = apivalidation.NameIsDNSSubdomain
	DNSLabel     NameErrors = apivalidation.NameIsDNSLabel
	DNS1035Label NameErrors = apivalidation.NameIsDNS1035Label
)

// PathSegment accepts whatever can stand in a URL path (RBAC names).
func PathSegment(name string, prefix bool) []string {
	return path.ValidatePathSegmentName(name, prefix)
}

// ValidateObjectMeta validates the metadata of a new object, whose name was
// generated already if it was to be. nil nameErrors means a DNS subdomain.
func ValidateObjectMeta(m metav1.Object, namespaced bool, nameErrors NameErrors) field.ErrorList {
	if nameErrors == nil {
		nameErrors = DNSSubdomain
	}
	p := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(m, namespaced, apivalidation.ValidateNameFunc(nameErrors), p)
	if len(errs) == 0 {
		// A laxer rule of the resource never lets through what breaks paths.
		errs = apivalidation.ValidateObjectMetaAccessor(m, namespaced, PathSegment, p)
	}
	return errs
}

// ValidateObjectMetaUpdate validates the metadata of an update against the old
// object's. Names are held to what URLs can carry only: rules for new names
// never lock existing objects.
func ValidateObjectMetaUpdate(m, old metav1.Object, namespaced bool) field.ErrorList {
	p := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(m, namespaced, PathSegment, p)
	seen := make(map[string]bool, len(errs))
	for _, e := range errs {
		seen[e.Error()] = true
	}
	for _, e := range apivalidation.ValidateObjectMetaAccessorUpdate(m, old, p) {
		if !seen[e.Error()] {
			errs = append(errs, e)
		}
	}
	return errs
}

// FinalizerName validates a finalizer of a built-in kind: one of the standard
// ones, or prefixed with a domain.
func FinalizerName(name string, p *field.Path) field.ErrorList {
	errs := apivalidation.ValidateFinalizerName(name, p)
	if !strings.Contains(name, "/") {
		errs = append(errs, standardFinalizer(name, p)...)
	}
	return errs
}

// BuiltinFinalizers validates what ValidateObjectMeta leaves open: custom
// resources may have finalizers of any name, built-in kinds not.
func BuiltinFinalizers(m metav1.Object) field.ErrorList {
	var errs field.ErrorList
	for i, name := range m.GetFinalizers() {
		if !strings.Contains(name, "/") {
			errs = append(errs, standardFinalizer(name, field.NewPath("metadata", "finalizers").Index(i))...)
		}
	}
	return errs
}

func standardFinalizer(name string, p *field.Path) field.ErrorList {
	switch name {
	case string(v1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
		return nil
	}
	return field.ErrorList{field.Invalid(p, name, "name is neither a standard finalizer name nor is it fully qualified")}
}
