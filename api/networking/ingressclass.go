package networking

import (
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

const maxIngressController = 250

func ingressClasses() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "IngressClass", Plural: "ingressclasses",
		StoragePath: "ingressclasses",
		New:         func() api.Object { return &networkingv1.IngressClass{} },
		NewList:     func() runtime.Object { return &networkingv1.IngressClassList{} },
		Default: api.Defaults(func(c *networkingv1.IngressClass) {
			if p := c.Spec.Parameters; p != nil && p.Scope == nil {
				p.Scope = ptr.To(networkingv1.IngressClassParametersReferenceScopeCluster)
			}
		}),
		Strategy: api.Strategy{
			Validate: api.Check(func(c *networkingv1.IngressClass) field.ErrorList {
				return validateIngressClassSpec(&c.Spec, field.NewPath("spec"))
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *networkingv1.IngressClass) field.ErrorList {
				p := field.NewPath("spec")
				errs := apivalidation.ValidateImmutableField(c.Spec.Controller, old.Spec.Controller, p.Child("controller"))
				return append(errs, validateIngressClassSpec(&c.Spec, p)...)
			}),
			HasGeneration: true,
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Controller", "string", "Controller that is responsible for handling this class", 0),
			api.Column("Parameters", "string", "A reference to a resource with additional parameters", 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(c *networkingv1.IngressClass, now time.Time) []any {
			name, parameters := c.Name, "<none>"
			if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
				name += " (default)"
			}
			if p := c.Spec.Parameters; p != nil {
				parameters = p.Kind
				if p.APIGroup != nil {
					parameters += "." + *p.APIGroup
				}
				parameters += "/" + p.Name
			}
			return []any{name, c.Spec.Controller, parameters, api.Age(c.CreationTimestamp, now)}
		}),
	}
}

func validateIngressClassSpec(s *networkingv1.IngressClassSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Controller) > maxIngressController {
		errs = append(errs, field.TooLong(p.Child("controller"), "", maxIngressController))
	}
	errs = append(errs, validation.IsDomainPrefixedPath(p.Child("controller"), s.Controller)...)
	if s.Parameters != nil {
		errs = append(errs, validateParameters(s.Parameters, p.Child("parameters"))...)
	}
	return errs
}

func validateParameters(r *networkingv1.IngressClassParametersReference, p *field.Path) field.ErrorList {
	errs := validateLocalReference(r.APIGroup, r.Kind, r.Name, p)
	scopes := []string{networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace}
	np := p.Child("namespace")
	switch {
	case r.Scope == nil:
		errs = append(errs, field.Required(p.Child("scope"), ""))
	case !slices.Contains(scopes, *r.Scope):
		errs = append(errs, field.NotSupported(p.Child("scope"), *r.Scope, scopes))
	case *r.Scope == networkingv1.IngressClassParametersReferenceScopeCluster:
		if r.Namespace != nil {
			errs = append(errs, field.Forbidden(np, "`parameters.scope` is set to 'Cluster'"))
		}
	case r.Namespace == nil:
		errs = append(errs, field.Required(np, "`parameters.scope` is set to 'Namespace'"))
	default:
		for _, msg := range validation.IsDNS1123Label(*r.Namespace) {
			errs = append(errs, field.Invalid(np, *r.Namespace, msg))
		}
	}
	return errs
}

// validateLocalReference validates a reference to an object of any kind.
func validateLocalReference(group *string, kind, name string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if group != nil {
		for _, msg := range validation.IsDNS1123Subdomain(*group) {
			errs = append(errs, field.Invalid(p.Child("apiGroup"), *group, msg))
		}
	}
	segment := func(value, name string) {
		if value == "" {
			errs = append(errs, field.Required(p.Child(name), ""))
		} else {
			for _, msg := range content.IsPathSegmentName(value) {
				errs = append(errs, field.Invalid(p.Child(name), value, msg))
			}
		}
	}
	segment(kind, "kind")
	segment(name, "name")
	return errs
}
