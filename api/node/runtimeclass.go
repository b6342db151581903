// Package node declares the resources of node.k8s.io.
//
// Owns: runtimeclasses. Must not: know which handlers a node has.
package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/core"
)

// Resources lists what the group serves.
func Resources() []*api.Resource { return []*api.Resource{runtimeClasses()} }

func runtimeClasses() *api.Resource {
	return &api.Resource{
		Group: nodev1.GroupName, Version: "v1",
		Kind: "RuntimeClass", Plural: "runtimeclasses",
		StoragePath: "runtimeclasses",
		New:         func() api.Object { return &nodev1.RuntimeClass{} },
		NewList:     func() runtime.Object { return &nodev1.RuntimeClassList{} },
		Default: api.Defaults(func(c *nodev1.RuntimeClass) {
			if c.Overhead != nil {
				core.DefaultResourceList(c.Overhead.PodFixed)
			}
		}),
		Strategy: api.Strategy{
			Validate: api.Check(validateRuntimeClass),
			ValidateUpdate: api.CheckUpdate(func(c, old *nodev1.RuntimeClass) field.ErrorList {
				errs := validateRuntimeClass(c)
				return append(errs, api.Immutable(c.Handler, old.Handler, field.NewPath("handler"))...)
			}),
			CreateOnUpdate:  true,
			RequireRevision: true,
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Handler", "string", "", 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(c *nodev1.RuntimeClass, now time.Time) []any {
			return []any{c.Name, c.Handler, api.Age(c.CreationTimestamp, now)}
		}),
	}
}

func validateRuntimeClass(c *nodev1.RuntimeClass) field.ErrorList {
	var errs field.ErrorList
	if c.Handler == "" {
		errs = append(errs, field.Required(field.NewPath("handler"), ""))
	} else {
		for _, msg := range validation.IsDNS1123Label(c.Handler) {
			errs = append(errs, field.Invalid(field.NewPath("handler"), c.Handler, msg))
		}
	}
	if c.Overhead != nil {
		errs = append(errs, core.ValidateContainerLimits(c.Overhead.PodFixed, field.NewPath("overhead"))...)
	}
	if s := c.Scheduling; s != nil {
		p := field.NewPath("scheduling")
		errs = append(errs, metav1validation.ValidateLabels(s.NodeSelector, p.Child("nodeSelector"))...)
		errs = append(errs, validateTolerations(s.Tolerations, p.Child("tolerations"))...)
	}
	return errs
}

// validateTolerations also wants each only once: they are merged into the pods' own.
func validateTolerations(tolerations []corev1.Toleration, p *field.Path) field.ErrorList {
	errs := core.ValidateTolerations(tolerations, p)
	seen := sets.New[corev1.Toleration]()
	for i, t := range tolerations {
		key := corev1.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect}
		if seen.Has(key) {
			errs = append(errs, field.Duplicate(p.Index(i), t))
		}
		seen.Insert(key)
	}
	return errs
}
