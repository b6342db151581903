package admissionregistration

import (
	"fmt"
	"strings"
	"time"

	celgo "github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"github.com/skiff-k8s/skiff/api"
)

const (
	maxAuditAnnotations = 20
	maxAuditExpression  = 5 * 1024
)

func validatingPolicies() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ValidatingAdmissionPolicy", Plural: "validatingadmissionpolicies",
		Categories:  []string{"api-extensions"},
		StoragePath: "validatingadmissionpolicies",
		New:         func() api.Object { return &admissionregistrationv1.ValidatingAdmissionPolicy{} },
		NewList:     func() runtime.Object { return &admissionregistrationv1.ValidatingAdmissionPolicyList{} },
		Default: api.Defaults(func(v *admissionregistrationv1.ValidatingAdmissionPolicy) {
			setDefault(&v.Spec.FailurePolicy, admissionregistrationv1.Fail)
			defaultMatchResources(v.Spec.MatchConstraints)
		}),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(v *admissionregistrationv1.ValidatingAdmissionPolicy) {
				v.Status = admissionregistrationv1.ValidatingAdmissionPolicyStatus{}
			}),
			Validate: api.Check(func(v *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
				return append(validateValidatingPolicy(v, nil), validateName(v.Name)...)
			}),
			PrepareUpdate:  api.OnUpdate(func(v, old *admissionregistrationv1.ValidatingAdmissionPolicy) { v.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(validateValidatingPolicy),
			Warnings: api.Warn(func(v, old *admissionregistrationv1.ValidatingAdmissionPolicy) []string {
				return nameWarnings(v.Name, old == nil)
			}),
			HasGeneration:   true,
			RequireRevision: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(v, old *admissionregistrationv1.ValidatingAdmissionPolicy) {
					v.Spec = old.Spec
					metav1.ResetObjectMetaForStatus(&v.ObjectMeta, &old.ObjectMeta)
				}),
				ValidateUpdate: api.CheckUpdate(func(v, _ *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
					return validatePolicyStatus(&v.Status, field.NewPath("status"))
				}),
				RequireRevision:   true,
				IgnoredApplyPaths: []string{"metadata", "spec"},
			},
		}},
		Columns: countColumns("Validations", "Validations indicates the number of validation rules defined in this configuration",
			"ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy"),
		Row: api.Cells(func(v *admissionregistrationv1.ValidatingAdmissionPolicy, now time.Time) []any {
			return []any{v.Name, int64(len(v.Spec.Validations)), paramKindCell(v.Spec.ParamKind), api.Age(v.CreationTimestamp, now)}
		}),
	}
}

func paramKindCell(k *admissionregistrationv1.ParamKind) string {
	if k == nil {
		return "<unset>"
	}
	return k.APIVersion + "/" + k.Kind
}

// validateValidatingPolicy takes a nil old on create.
func validateValidatingPolicy(v, old *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
	s, p := &v.Spec, field.NewPath("spec")
	params := s.ParamKind != nil
	errs := validatePolicyHead(s.FailurePolicy, s.ParamKind, s.MatchConstraints, p)

	var conditions, expressions sets.Set[string]
	if old != nil {
		conditions, expressions = sets.New[string](), sets.New[string]()
		for _, m := range old.Spec.MatchConditions {
			conditions.Insert(m.Expression)
		}
		for _, x := range old.Spec.Validations {
			expressions.Insert(x.Expression, x.MessageExpression)
		}
		for _, a := range old.Spec.AuditAnnotations {
			expressions.Insert(a.ValueExpression)
		}
	}
	same := old != nil && equality.Semantic.DeepEqual(s.ParamKind, old.Spec.ParamKind) &&
		equality.Semantic.DeepEqual(s.MatchConditions, old.Spec.MatchConditions)
	if !same {
		errs = append(errs, validateMatchConditions(s.MatchConditions, params, conditions, p.Child("matchConditions"))...)
	}
	c, err := newCompiler(len(s.Variables) > 0, expressions)
	if err != nil {
		return append(errs, field.InternalError(p, err))
	}
	errs = append(errs, validateVariables(c, s.Variables, params, p.Child("variables"))...)
	if len(s.Validations) == 0 && len(s.AuditAnnotations) == 0 {
		const msg = "validations or auditAnnotations must contain at least one item"
		return append(errs, field.Required(p.Child("validations"), msg), field.Required(p.Child("auditAnnotations"), msg))
	}
	for i := range s.Validations {
		errs = append(errs, validateValidation(c, &s.Validations[i], params, p.Child("validations").Index(i))...)
	}
	return append(errs, validateAuditAnnotations(c, v.Name, s, params, p.Child("auditAnnotations"))...)
}

// validatePolicyHead validates what both kinds of policy begin with.
func validatePolicyHead(failure *admissionregistrationv1.FailurePolicyType, kind *admissionregistrationv1.ParamKind,
	match *admissionregistrationv1.MatchResources, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if failure == nil {
		errs = append(errs, field.Required(p.Child("failurePolicy"), ""))
	} else {
		errs = append(errs, oneOf(*failure, p.Child("failurePolicy"), admissionregistrationv1.Fail, admissionregistrationv1.Ignore)...)
	}
	if kind != nil {
		errs = append(errs, validateParamKind(kind, p.Child("paramKind"))...)
	}
	mp := p.Child("matchConstraints")
	if match == nil {
		return append(errs, field.Required(mp, ""))
	}
	errs = append(errs, validateMatchResources(match, mp)...)
	if len(match.ResourceRules) == 0 { // they say which types the expressions are about
		errs = append(errs, field.Required(mp.Child("resourceRules"), ""))
	}
	return errs
}

func validateParamKind(k *admissionregistrationv1.ParamKind, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	vp := p.Child("apiVersion")
	group, version, ok := strings.Cut(k.APIVersion, "/")
	if !ok {
		group, version = "", k.APIVersion
	}
	switch {
	case k.APIVersion == "":
		errs = append(errs, field.Required(vp, ""))
	case strings.Contains(version, "/"):
		errs = append(errs, field.Invalid(vp, k.APIVersion, "unexpected GroupVersion string: "+k.APIVersion))
	default:
		if group != "" {
			if msgs := validation.IsDNS1123Subdomain(group); len(msgs) > 0 {
				errs = append(errs, field.Invalid(vp, group, strings.Join(msgs, ",")))
			}
		}
		if version == "" {
			errs = append(errs, field.Invalid(vp, k.APIVersion, "version must be specified"))
		} else if msgs := validation.IsDNS1035Label(version); len(msgs) > 0 {
			errs = append(errs, field.Invalid(vp, version, strings.Join(msgs, ",")))
		}
	}
	if k.Kind == "" {
		errs = append(errs, field.Required(p.Child("kind"), ""))
	} else if msgs := validation.IsDNS1035Label(strings.ToLower(k.Kind)); len(msgs) > 0 {
		errs = append(errs, field.Invalid(p.Child("kind"), k.Kind, "may have mixed case, but should otherwise match: "+strings.Join(msgs, ",")))
	}
	return errs
}

func validateValidation(c *compiler, v *admissionregistrationv1.Validation, params bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if strings.TrimSpace(v.Expression) == "" {
		errs = append(errs, field.Required(p.Child("expression"), "expression is not specified"))
	} else {
		errs = append(errs, c.check(&expression{text: v.Expression, types: []*celgo.Type{celgo.BoolType}},
			plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, p.Child("expression"))...)
	}
	if v.MessageExpression != "" {
		mp := p.Child("messageExpression")
		if strings.TrimSpace(v.MessageExpression) == "" {
			errs = append(errs, field.Invalid(mp, v.MessageExpression, "must be non-empty if specified"))
		} else {
			errs = append(errs, c.check(&expression{text: v.MessageExpression, types: []*celgo.Type{celgo.StringType}},
				plugincel.OptionalVariableDeclarations{HasParams: params}, mp)...)
		}
	}
	switch message := strings.TrimSpace(v.Message); {
	case v.Message != "" && message == "":
		errs = append(errs, field.Invalid(p.Child("message"), v.Message, "must be non-empty if specified"))
	case strings.ContainsAny(message, "\n\r"):
		errs = append(errs, field.Invalid(p.Child("message"), v.Message, "must not contain line breaks"))
	}
	if v.Reason != nil {
		errs = append(errs, oneOf(*v.Reason, p.Child("reason"), metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge)...)
	}
	return errs
}

func validateAuditAnnotations(c *compiler, policy string, s *admissionregistrationv1.ValidatingAdmissionPolicySpec, params bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.AuditAnnotations) > maxAuditAnnotations {
		errs = append(errs, field.Invalid(p, s.AuditAnnotations, fmt.Sprintf("must not have more than %d auditAnnotations", maxAuditAnnotations)))
	}
	seen := sets.New[string]()
	for i := range s.AuditAnnotations {
		a, ap := &s.AuditAnnotations[i], p.Index(i)
		if policy == "" {
			errs = append(errs, field.Invalid(ap.Child("key"), a.Key, "requires metadata.name be non-empty"))
		} else {
			errs = append(errs, metav1validation.ValidateLabelName(policy+"/"+a.Key, ap.Child("key"))...)
		}
		vp := ap.Child("valueExpression")
		switch text := strings.TrimSpace(a.ValueExpression); {
		case text == "":
			errs = append(errs, field.Required(vp, "valueExpression is not specified"))
		case len(text) > maxAuditExpression:
			errs = append(errs, field.Required(vp, fmt.Sprintf("must not exceed %d bytes in length", maxAuditExpression)))
		default:
			errs = append(errs, c.check(&expression{text: text, types: []*celgo.Type{celgo.StringType, celgo.NullType}},
				plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, vp)...)
		}
		if seen.Has(a.Key) {
			errs = append(errs, field.Duplicate(ap.Child("key"), a.Key))
		}
		seen.Insert(a.Key)
	}
	return errs
}

func validatePolicyStatus(s *admissionregistrationv1.ValidatingAdmissionPolicyStatus, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t := s.TypeChecking; t != nil {
		for i, w := range t.ExpressionWarnings {
			wp := p.Child("typeChecking", "expressionWarnings").Index(i)
			if w.Warning == "" {
				errs = append(errs, field.Required(wp.Child("warning"), ""))
			}
			if strings.TrimSpace(w.FieldRef) == "" {
				errs = append(errs, field.Required(wp.Child("fieldRef"), ""))
			}
		}
	}
	return append(errs, metav1validation.ValidateConditions(s.Conditions, p.Child("conditions"))...)
}
