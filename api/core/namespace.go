package core

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/meta"
)

func namespaces() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "Namespace", Plural: "namespaces", ShortNames: []string{"ns"},
		// No deletecollection: emptying a namespace takes its controller.
		Verbs:       []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		StoragePath: "namespaces",
		New:         func() api.Object { return &v1.Namespace{} },
		NewList:     func() runtime.Object { return &v1.NamespaceList{} },
		Default:     api.Defaults(defaultNamespace),
		Strategy: api.Strategy{
			NameErrors: meta.DNSLabel,
			PrepareCreate: api.OnCreate(func(n *v1.Namespace) {
				n.Status = v1.NamespaceStatus{Phase: v1.NamespaceActive}
				if !slices.Contains(n.Spec.Finalizers, v1.FinalizerKubernetes) {
					n.Spec.Finalizers = append(n.Spec.Finalizers, v1.FinalizerKubernetes)
				}
			}),
			Validate: api.Check(validateNamespace),
			PrepareUpdate: api.OnUpdate(func(n, old *v1.Namespace) {
				n.Spec.Finalizers, n.Status = old.Spec.Finalizers, old.Status
			}),
			ValidateUpdate: api.CheckUpdate(func(n, _ *v1.Namespace) field.ErrorList { return validateNamespace(n) }),
			// A generated name is known only after defaulting.
			Canonicalize: func(obj runtime.Object) { labelWithName(obj.(*v1.Namespace)) },
		},
		Subresources: []api.Subresource{
			{Name: "status", Verbs: []string{"get", "patch", "update"}, Strategy: api.Strategy{
				PrepareUpdate:     api.OnUpdate(func(n, old *v1.Namespace) { n.Spec = old.Spec }),
				ValidateUpdate:    api.CheckUpdate(validateNamespaceStatus),
				Canonicalize:      func(obj runtime.Object) { labelWithName(obj.(*v1.Namespace)) },
				IgnoredApplyPaths: []string{"spec"},
			}},
			{Name: "finalize", Verbs: []string{"update"}, Strategy: api.Strategy{
				PrepareUpdate:     api.OnUpdate(func(n, old *v1.Namespace) { n.Status = old.Status }),
				ValidateUpdate:    api.CheckUpdate(validateNamespaceFinalize),
				Canonicalize:      func(obj runtime.Object) { labelWithName(obj.(*v1.Namespace)) },
				IgnoredApplyPaths: []string{"status"},
			}},
		},
		Fields: api.Selectable(func(n *v1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(n.Status.Phase)}
		}),
		FieldLabels: []string{"status.phase"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Status", "string", "The status of the namespace", 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(n *v1.Namespace, now time.Time) []any {
			return []any{n.Name, string(n.Status.Phase), api.Age(n.CreationTimestamp, now)}
		}),
	}
}

func defaultNamespace(n *v1.Namespace) {
	if n.Name != "" {
		labelWithName(n)
	}
	setIfEmpty(&n.Status.Phase, v1.NamespaceActive)
}

func labelWithName(n *v1.Namespace) {
	if n.Labels[v1.LabelMetadataName] == n.Name {
		return
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[v1.LabelMetadataName] = n.Name
}

func validateNamespace(n *v1.Namespace) field.ErrorList {
	var errs field.ErrorList
	for _, f := range n.Spec.Finalizers {
		errs = append(errs, meta.FinalizerName(string(f), field.NewPath("spec", "finalizers"))...)
	}
	return errs
}

func validateNamespaceStatus(n, _ *v1.Namespace) field.ErrorList {
	p := field.NewPath("status", "Phase")
	if n.DeletionTimestamp.IsZero() {
		if n.Status.Phase != v1.NamespaceActive {
			return field.ErrorList{field.Invalid(p, n.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
		}
	} else if n.Status.Phase != v1.NamespaceTerminating {
		return field.ErrorList{field.Invalid(p, n.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}

func validateNamespaceFinalize(n, _ *v1.Namespace) field.ErrorList {
	var errs field.ErrorList
	for i, f := range n.Spec.Finalizers {
		errs = append(errs, meta.FinalizerName(string(f), field.NewPath("spec", "finalizers").Index(i))...)
	}
	return errs
}
