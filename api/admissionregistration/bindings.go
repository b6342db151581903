package admissionregistration

import (
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func bindingColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		api.NameColumn(),
		api.Column("PolicyName", "string", "PolicyName indicates the policy definition which the policy binding binded to", 0),
		api.Column("ParamRef", "string", "ParamRef indicates the param resource which sets the configuration param", 0),
		api.AgeColumn(),
	}
}

func paramCell(r *admissionregistrationv1.ParamRef) string {
	switch {
	case r == nil:
		return "<unset>"
	case r.Name != "" && r.Namespace != "":
		return r.Namespace + "/" + r.Name
	case r.Name != "": // cluster-scoped or of each namespace: the binding doesn't tell
		return "*/" + r.Name
	case r.Selector != nil:
		return r.Selector.String()
	}
	return "<unset>"
}

func validatingPolicyBindings() *api.Resource {
	validate := func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
		p := field.NewPath("spec")
		errs := validateBinding(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, p)
		return append(errs, validateActions(b.Spec.ValidationActions, p.Child("validationActions"))...)
	}
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ValidatingAdmissionPolicyBinding", Plural: "validatingadmissionpolicybindings",
		Categories:  []string{"api-extensions"},
		StoragePath: "validatingadmissionpolicybindings",
		New:         func() api.Object { return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{} },
		NewList:     func() runtime.Object { return &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{} },
		Default: api.Defaults(func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
			defaultMatchResources(b.Spec.MatchResources)
		}),
		Strategy: api.Strategy{
			Validate: api.Check(func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
				return append(validate(b), validateName(b.Name)...)
			}),
			ValidateUpdate: api.CheckUpdate(func(b, _ *admissionregistrationv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
				return validate(b)
			}),
			Warnings: api.Warn(func(b, old *admissionregistrationv1.ValidatingAdmissionPolicyBinding) []string {
				return nameWarnings(b.Name, old == nil)
			}),
			HasGeneration:   true,
			RequireRevision: true,
		},
		Columns: bindingColumns(),
		Row: api.Cells(func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding, now time.Time) []any {
			return []any{b.Name, b.Spec.PolicyName, paramCell(b.Spec.ParamRef), api.Age(b.CreationTimestamp, now)}
		}),
	}
}

func mutatingPolicyBindings() *api.Resource {
	validate := func(b *admissionregistrationv1.MutatingAdmissionPolicyBinding) field.ErrorList {
		p := field.NewPath("spec")
		errs := validateBinding(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, p)
		return append(errs, validateMutable(b.Spec.MatchResources, p.Child("matchResources"))...)
	}
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "MutatingAdmissionPolicyBinding", Plural: "mutatingadmissionpolicybindings",
		Categories:  []string{"api-extensions"},
		StoragePath: "mutatingadmissionpolicybindings",
		New:         func() api.Object { return &admissionregistrationv1.MutatingAdmissionPolicyBinding{} },
		NewList:     func() runtime.Object { return &admissionregistrationv1.MutatingAdmissionPolicyBindingList{} },
		Default: api.Defaults(func(b *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
			defaultMatchResources(b.Spec.MatchResources)
		}),
		Strategy: api.Strategy{
			Validate: api.Check(func(b *admissionregistrationv1.MutatingAdmissionPolicyBinding) field.ErrorList {
				return append(validate(b), validateName(b.Name)...)
			}),
			ValidateUpdate: api.CheckUpdate(func(b, _ *admissionregistrationv1.MutatingAdmissionPolicyBinding) field.ErrorList {
				return validate(b)
			}),
			Warnings: api.Warn(func(b, old *admissionregistrationv1.MutatingAdmissionPolicyBinding) []string {
				return nameWarnings(b.Name, old == nil)
			}),
			HasGeneration:   true,
			RequireRevision: true,
		},
		Columns: bindingColumns(),
		Row: api.Cells(func(b *admissionregistrationv1.MutatingAdmissionPolicyBinding, now time.Time) []any {
			return []any{b.Name, b.Spec.PolicyName, paramCell(b.Spec.ParamRef), api.Age(b.CreationTimestamp, now)}
		}),
	}
}

func validateBinding(policy string, ref *admissionregistrationv1.ParamRef, match *admissionregistrationv1.MatchResources, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policy == "" {
		errs = append(errs, field.Required(p.Child("policyName"), ""))
	} else {
		for _, msg := range validation.IsDNS1123Subdomain(policy) {
			errs = append(errs, field.Invalid(p.Child("policyName"), policy, msg))
		}
	}
	if ref != nil {
		errs = append(errs, validateParamRef(ref, p.Child("paramRef"))...)
	}
	return append(errs, validateMatchResources(match, p.Child("matchResources"))...)
}

func validateParamRef(r *admissionregistrationv1.ParamRef, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	const exclusive = "name and selector are mutually exclusive"
	named, selected := r.Name != "", r.Selector != nil
	if named {
		for _, msg := range content.IsPathSegmentName(r.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), r.Name, msg))
		}
		if selected {
			errs = append(errs, field.Forbidden(p.Child("name"), exclusive))
		}
	}
	if selected {
		errs = append(errs, metav1validation.ValidateLabelSelector(r.Selector, metav1validation.LabelSelectorValidationOptions{}, p.Child("selector"))...)
		if named {
			errs = append(errs, field.Forbidden(p.Child("selector"), exclusive))
		}
	}
	if !named && !selected {
		errs = append(errs, field.Required(p, "one of name or selector must be specified"))
	}
	missing := []admissionregistrationv1.ParameterNotFoundActionType{admissionregistrationv1.DenyAction, admissionregistrationv1.AllowAction}
	if a := r.ParameterNotFoundAction; a == nil || *a == "" {
		errs = append(errs, field.Required(p.Child("parameterNotFoundAction"), ""))
	} else if !slices.Contains(missing, *a) {
		errs = append(errs, field.NotSupported(p.Child("parameterNotFoundAction"), a, missing))
	}
	return errs
}

func validateActions(actions []admissionregistrationv1.ValidationAction, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[admissionregistrationv1.ValidationAction]()
	for i, a := range actions {
		errs = append(errs, oneOf(a, p.Index(i), admissionregistrationv1.Audit, admissionregistrationv1.Deny, admissionregistrationv1.Warn)...)
		if seen.Has(a) {
			errs = append(errs, field.Duplicate(p.Index(i), a))
		}
		seen.Insert(a)
	}
	if seen.HasAll(admissionregistrationv1.Deny, admissionregistrationv1.Warn) {
		errs = append(errs, field.Invalid(p, actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	if len(actions) == 0 {
		errs = append(errs, field.Required(p, ""))
	}
	return errs
}
