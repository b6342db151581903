// Package admissionregistration declares the resources of admissionregistration.k8s.io.
//
// Owns: webhook configurations, admission policies and their bindings as objects, their
// CEL expressions compiled to check them. Must not: call webhooks or evaluate policies,
// nor decide who may bind to what: that is the API server's.
package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

var groupVersion = admissionregistrationv1.SchemeGroupVersion

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{
		mutatingPolicies(),
		mutatingPolicyBindings(),
		mutatingWebhooks(),
		validatingPolicies(),
		validatingPolicyBindings(),
		validatingWebhooks(),
	}
}

// staticSuffix ends the names of what a server reads from files (KEP-5793).
const staticSuffix = ".static.k8s.io"

const reserved = "names ending with %q are reserved for static manifest-based configurations and cannot be managed via the API"

func validateName(name string) field.ErrorList {
	if strings.HasSuffix(name, staticSuffix) {
		return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name, fmt.Sprintf(reserved, staticSuffix))}
	}
	return nil
}

// nameWarnings are for objects from before the names were reserved: new ones are refused.
func nameWarnings(name string, isNew bool) []string {
	if !isNew && strings.HasSuffix(name, staticSuffix) {
		return []string{"metadata.name: " + fmt.Sprintf(reserved, staticSuffix)}
	}
	return nil
}

func setDefault[T any](at **T, value T) {
	if *at == nil {
		*at = &value
	}
}

// oneOf wants one of the values, which are listed in order.
func oneOf[T ~string](value T, p *field.Path, values ...T) field.ErrorList {
	if slices.Contains(values, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(p, value, values)}
}

func countColumns(name, description, second, secondDescription string) []metav1.TableColumnDefinition {
	columns := []metav1.TableColumnDefinition{api.NameColumn(), api.Column(name, "integer", description, 0)}
	if second != "" {
		columns = append(columns, api.Column(second, "string", secondDescription, 0))
	}
	return append(columns, api.AgeColumn())
}
