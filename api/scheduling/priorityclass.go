// Package scheduling declares the resources of scheduling.k8s.io.
//
// Owns: priorityclasses and the two that every cluster has. Must not: schedule, nor give
// pods their priority: that is admission's.
package scheduling

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

const (
	highestUserPriority   = 1_000_000_000
	systemPrefix          = "system-"
	systemClusterCritical = 2 * highestUserPriority
	systemNodeCritical    = systemClusterCritical + 1000
)

// Resources lists what the group serves.
func Resources() []*api.Resource { return []*api.Resource{priorityClasses()} }

// SystemPriorityClasses are made when a cluster starts; nobody else may use their prefix.
func SystemPriorityClasses() []*schedulingv1.PriorityClass {
	classes := []*schedulingv1.PriorityClass{{
		ObjectMeta:  metav1.ObjectMeta{Name: "system-node-critical"},
		Value:       systemNodeCritical,
		Description: "Used for system critical pods that must not be moved from their current node.",
	}, {
		ObjectMeta:  metav1.ObjectMeta{Name: "system-cluster-critical"},
		Value:       systemClusterCritical,
		Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
	}}
	for _, c := range classes {
		defaultPriorityClass(c)
	}
	return classes
}

func priorityClasses() *api.Resource {
	doc := schedulingv1.PriorityClass{}.SwaggerDoc()
	return &api.Resource{
		Group: schedulingv1.GroupName, Version: "v1",
		Kind: "PriorityClass", Plural: "priorityclasses",
		ShortNames:  []string{"pc"},
		StoragePath: "priorityclasses",
		New:         func() api.Object { return &schedulingv1.PriorityClass{} },
		NewList:     func() runtime.Object { return &schedulingv1.PriorityClassList{} },
		Default:     api.Defaults(defaultPriorityClass),
		Strategy: api.Strategy{
			Validate: api.Check(validatePriorityClass),
			ValidateUpdate: api.CheckUpdate(func(c, old *schedulingv1.PriorityClass) field.ErrorList {
				var errs field.ErrorList
				if c.Value != old.Value {
					errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
				}
				return append(errs, apivalidation.ValidateImmutableField(c.PreemptionPolicy, old.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
			}),
			// Generation stays 1: nothing that matters can change.
			HasGeneration: true,
			SpecChanged:   func(_, _ runtime.Object) bool { return false },
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Value", "integer", doc["value"], 0),
			api.Column("Global-Default", "boolean", doc["globalDefault"], 0),
			api.AgeColumn(),
			api.Column("PreemptionPolicy", "string", doc["preemptionPolicy"], 0),
		},
		Row: api.Cells(func(c *schedulingv1.PriorityClass, now time.Time) []any {
			return []any{c.Name, int64(c.Value), c.GlobalDefault, api.Age(c.CreationTimestamp, now),
				string(ptr.Deref(c.PreemptionPolicy, ""))}
		}),
	}
}

func defaultPriorityClass(c *schedulingv1.PriorityClass) {
	if c.PreemptionPolicy == nil {
		c.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority)
	}
}

func validatePriorityClass(c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if strings.HasPrefix(c.Name, systemPrefix) {
		if err := checkSystemClass(c); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"),
				fmt.Sprintf("priority class names with '%s' prefix are reserved for system use only. error: %v", systemPrefix, err)))
		}
	} else if c.Value > highestUserPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"),
			fmt.Sprintf("maximum allowed value of a user defined priority is %v", highestUserPriority)))
	}
	if policy := c.PreemptionPolicy; policy != nil {
		valid := []corev1.PreemptionPolicy{corev1.PreemptLowerPriority, corev1.PreemptNever}
		p := field.NewPath("preemptionPolicy")
		if *policy == "" {
			errs = append(errs, field.Required(p, ""))
		} else if !slices.Contains(valid, *policy) {
			errs = append(errs, field.NotSupported(p, *policy, valid))
		}
	}
	return errs
}

// checkSystemClass wants one of the system's classes as they are.
func checkSystemClass(c *schedulingv1.PriorityClass) error {
	for _, s := range SystemPriorityClasses() {
		if s.Name != c.Name {
			continue
		}
		if s.Value != c.Value {
			return fmt.Errorf("value of %v PriorityClass must be %v", s.Name, s.Value)
		}
		if c.GlobalDefault {
			return fmt.Errorf("globalDefault of %v PriorityClass must be %v", s.Name, false)
		}
		return nil
	}
	return fmt.Errorf("%v is not a known system priority class", c.Name)
}
