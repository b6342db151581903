package admissionregistration

import (
	"strings"
	"time"

	celgo "github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"github.com/skiff-k8s/skiff/api"
)

func mutatingPolicies() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "MutatingAdmissionPolicy", Plural: "mutatingadmissionpolicies",
		Categories:  []string{"api-extensions"},
		StoragePath: "mutatingadmissionpolicies",
		New:         func() api.Object { return &admissionregistrationv1.MutatingAdmissionPolicy{} },
		NewList:     func() runtime.Object { return &admissionregistrationv1.MutatingAdmissionPolicyList{} },
		Default: api.Defaults(func(m *admissionregistrationv1.MutatingAdmissionPolicy) {
			setDefault(&m.Spec.FailurePolicy, admissionregistrationv1.Fail)
			defaultMatchResources(m.Spec.MatchConstraints)
		}),
		Strategy: api.Strategy{
			Validate: api.Check(func(m *admissionregistrationv1.MutatingAdmissionPolicy) field.ErrorList {
				return append(validateMutatingPolicy(m, nil), validateName(m.Name)...)
			}),
			ValidateUpdate: api.CheckUpdate(validateMutatingPolicy),
			Warnings: api.Warn(func(m, old *admissionregistrationv1.MutatingAdmissionPolicy) []string {
				return nameWarnings(m.Name, old == nil)
			}),
			HasGeneration:   true,
			RequireRevision: true,
		},
		Columns: countColumns("Mutations", "Mutation indicates the number of mutations rules defined in this configuration",
			"ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy"),
		Row: api.Cells(func(m *admissionregistrationv1.MutatingAdmissionPolicy, now time.Time) []any {
			return []any{m.Name, int64(len(m.Spec.Mutations)), paramKindCell(m.Spec.ParamKind), api.Age(m.CreationTimestamp, now)}
		}),
	}
}

// validateMutatingPolicy takes a nil old on create.
func validateMutatingPolicy(m, old *admissionregistrationv1.MutatingAdmissionPolicy) field.ErrorList {
	s, p := &m.Spec, field.NewPath("spec")
	params := s.ParamKind != nil
	errs := validatePolicyHead(s.FailurePolicy, s.ParamKind, s.MatchConstraints, p)
	errs = append(errs, validateMutable(s.MatchConstraints, p.Child("matchConstraints"))...)

	var conditions, expressions sets.Set[string]
	if old != nil {
		conditions, expressions = sets.New[string](), sets.New[string]()
		for _, c := range old.Spec.MatchConditions {
			conditions.Insert(c.Expression)
		}
		for _, x := range old.Spec.Mutations {
			if x.ApplyConfiguration != nil {
				expressions.Insert(x.ApplyConfiguration.Expression)
			}
		}
	}
	same := old != nil && equality.Semantic.DeepEqual(s.ParamKind, old.Spec.ParamKind) &&
		equality.Semantic.DeepEqual(s.MatchConditions, old.Spec.MatchConditions)
	if !same {
		errs = append(errs, validateMatchConditions(s.MatchConditions, params, conditions, p.Child("matchConditions"))...)
	}
	if len(s.Mutations) == 0 {
		errs = append(errs, field.Required(p.Child("mutations"), "mutations must contain at least one item"))
	}
	if len(s.Mutations)+len(s.Variables) > 0 {
		c, err := newCompiler(true, expressions)
		if err != nil {
			return append(errs, field.InternalError(p, err))
		}
		errs = append(errs, validateVariables(c, s.Variables, params, p.Child("variables"))...)
		for i := range s.Mutations {
			errs = append(errs, validateMutation(c, &s.Mutations[i], params, p.Child("mutations").Index(i))...)
		}
	}
	rp := p.Child("reinvocationPolicy")
	if s.ReinvocationPolicy == "" {
		return append(errs, field.Required(rp, ""))
	}
	return append(errs, oneOf(s.ReinvocationPolicy, rp, admissionregistrationv1.IfNeededReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy)...)
}

func validateMutation(c *compiler, m *admissionregistrationv1.Mutation, params bool, p *field.Path) field.ErrorList {
	vars := plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true, HasPatchTypes: true}
	patch := func(text string, t *celgo.Type, p *field.Path) field.ErrorList {
		if text = strings.TrimSpace(text); text == "" {
			return field.ErrorList{field.Required(p, "")}
		}
		return c.check(&expression{text: text, types: []*celgo.Type{t}}, vars, p)
	}
	var errs field.ErrorList
	jp, ap := p.Child("jsonPatch"), p.Child("applyConfiguration")
	switch m.PatchType {
	case "":
		errs = append(errs, field.Required(p.Child("patchType"), ""))
	case admissionregistrationv1.PatchTypeJSONPatch:
		if m.JSONPatch == nil {
			errs = append(errs, field.Required(jp, "must be specified when patchType is JSONPatch"))
		} else {
			errs = append(errs, patch(m.JSONPatch.Expression, celgo.ListType(celgo.ObjectType("JSONPatch")), jp.Child("expression"))...)
		}
		if m.ApplyConfiguration != nil {
			errs = append(errs, field.Invalid(ap, "{applyConfiguration}", "must not be specified when patchType is JSONPatch"))
		}
	case admissionregistrationv1.PatchTypeApplyConfiguration:
		if m.ApplyConfiguration == nil {
			errs = append(errs, field.Required(ap, "must be specified when patchType is ApplyConfiguration"))
		} else {
			errs = append(errs, patch(m.ApplyConfiguration.Expression, celgo.ObjectType("Object"), ap.Child("expression"))...)
		}
		if m.JSONPatch != nil {
			errs = append(errs, field.Invalid(jp, "{jsonPatch}", "must not be specified when patchType is ApplyConfiguration"))
		}
	default:
		errs = append(errs, field.NotSupported(p.Child("patchType"), m.PatchType,
			[]admissionregistrationv1.PatchType{admissionregistrationv1.PatchTypeApplyConfiguration, admissionregistrationv1.PatchTypeJSONPatch}))
	}
	return errs
}
