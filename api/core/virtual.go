package core

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

// bindings are never stored: creating one assigns a pod to a node.
func bindings() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "Binding", Plural: "bindings", Namespaced: true,
		Verbs: []string{"create"},
		New:   func() api.Object { return &v1.Binding{} },
		Strategy: api.Strategy{
			Validate: api.Check(ValidateBinding),
		},
	}
}

// ValidateBinding validates what assigns a pod to a node.
func ValidateBinding(b *v1.Binding) field.ErrorList {
	var errs field.ErrorList
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		errs = append(errs, field.NotSupported(field.NewPath("target", "kind"), b.Target.Kind, []string{"Node", "<empty>"}))
	}
	if name := field.NewPath("target", "name"); b.Target.Name == "" {
		errs = append(errs, field.Required(name, ""))
	} else if len(errs) == 0 {
		errs = append(errs, dnsSubdomain(b.Target.Name, name)...)
	}
	return errs
}

// componentStatuses are never stored: the API server asks the components.
func componentStatuses() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "ComponentStatus", Plural: "componentstatuses", ShortNames: []string{"cs"},
		Verbs:   []string{"get", "list"},
		New:     func() api.Object { return &v1.ComponentStatus{} },
		NewList: func() runtime.Object { return &v1.ComponentStatusList{} },
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Status", "string", "Status of the component conditions", 0),
			api.Column("Message", "string", "Message of the component conditions", 0),
			api.Column("Error", "string", "Error of the component conditions", 0),
		},
		Row: api.Cells(func(s *v1.ComponentStatus, _ time.Time) []any {
			for _, c := range s.Conditions {
				if c.Type != v1.ComponentHealthy {
					continue
				}
				if c.Status == v1.ConditionTrue {
					return []any{s.Name, "Healthy", c.Message, c.Error}
				}
				return []any{s.Name, "Unhealthy", c.Message, c.Error}
			}
			return []any{s.Name, "Unknown", "", ""}
		}),
	}
}
