package policies

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	celtypes "github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/warning"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

// Validating refuses, or warns of, writes that ValidatingAdmissionPolicies do not accept.
type Validating struct {
	Config
	policies match.Memo[*admissionregistrationv1.ValidatingAdmissionPolicy, *validatingPolicy]
	bindings match.Memo[*admissionregistrationv1.ValidatingAdmissionPolicyBinding, *bound[*admissionregistrationv1.ValidatingAdmissionPolicyBinding]]
}

// NewValidating returns a Validating.
func NewValidating(c Config) (*Validating, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	v := &Validating{Config: c}
	v.policies.Build = func(p *admissionregistrationv1.ValidatingAdmissionPolicy) *validatingPolicy {
		return &validatingPolicy{ValidatingAdmissionPolicy: p, criteria: match.ForPolicy(p.Spec.MatchConstraints),
			compiled: sync.OnceValues(func() (*checks, error) { return compileChecks(p) })}
	}
	v.bindings.Build = func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) *bound[*admissionregistrationv1.ValidatingAdmissionPolicyBinding] {
		return &bound[*admissionregistrationv1.ValidatingAdmissionPolicyBinding]{b, match.ForPolicy(b.Spec.MatchResources)}
	}
	return v, nil
}

// validatingPolicy is a policy, compiled when it first meets a write.
type validatingPolicy struct {
	*admissionregistrationv1.ValidatingAdmissionPolicy
	criteria match.Criteria
	compiled func() (*checks, error)
}

type checks struct {
	conditions                         *match.Conditions
	validations, messages, annotations plugincel.ConditionEvaluator
}

func compileChecks(p *admissionregistrationv1.ValidatingAdmissionPolicy) (*checks, error) {
	vars := plugincel.OptionalVariableDeclarations{HasParams: p.Spec.ParamKind != nil, HasAuthorizer: true}
	plain := plugincel.OptionalVariableDeclarations{HasParams: vars.HasParams}
	c, err := newCompiler(p.Spec.Variables, vars)
	if err != nil {
		return nil, err
	}
	var validations, messages, annotations []plugincel.ExpressionAccessor
	for _, v := range p.Spec.Validations {
		validations = append(validations, &match.Expression{Text: v.Expression, Types: []*cel.Type{cel.BoolType}})
		var message plugincel.ExpressionAccessor
		if v.MessageExpression != "" {
			message = &match.Expression{Text: v.MessageExpression, Types: []*cel.Type{cel.StringType}}
		}
		messages = append(messages, message)
	}
	for _, a := range p.Spec.AuditAnnotations {
		annotations = append(annotations, &match.Expression{Name: a.Key, Text: a.ValueExpression, Types: []*cel.Type{cel.StringType, cel.NullType}})
	}
	return &checks{
		conditions:  match.Compile(c, p.Spec.MatchConditions, vars),
		validations: c.CompileCondition(validations, vars, environment.StoredExpressions),
		messages:    c.CompileCondition(messages, plain, environment.StoredExpressions),
		annotations: c.CompileCondition(annotations, vars, environment.StoredExpressions),
	}, nil
}

// denial is one expression that was not true, or that failed.
type denial struct {
	message string
	reason  metav1.StatusReason
	// always: a failure, which no action of the binding softens.
	always bool
	// index is that of the expression.
	index int
}

// Validate returns the first denial; the others only the warnings they ask for.
func (v *Validating) Validate(ctx context.Context, w *match.Write) error {
	if exempt(w) {
		return nil
	}
	bindings, err := lookup.CachedList[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](ctx, v.Caches, resource("validatingadmissionpolicybindings"), "")
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if len(bindings) == 0 {
		return nil
	}
	policies, err := lookup.CachedList[*admissionregistrationv1.ValidatingAdmissionPolicy](ctx, v.Caches, resource("validatingadmissionpolicies"), "")
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	hits, problems := reach(ctx, &v.Config, w, v.policies.Of(policies),
		func(p *validatingPolicy) spec { return spec{&p.criteria, p.Spec.ParamKind} },
		v.bindings.Of(bindings),
		func(p *validatingPolicy, b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) bool {
			return b.Spec.PolicyName == p.Name
		},
		func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) *admissionregistrationv1.ParamRef {
			return b.Spec.ParamRef
		})
	var refused error
	for _, p := range problems {
		if !ignores(p.policy.Spec.FailurePolicy) && refused == nil {
			var b *admissionregistrationv1.ValidatingAdmissionPolicyBinding
			if p.binding != nil {
				b = *p.binding
			}
			refused = deny(w, p.policy.Name, b, denial{message: p.err.Error()})
		}
	}
	t := &trail{}
	for _, h := range hits {
		denials, err := v.evaluate(ctx, w, h, t)
		if err != nil {
			return err
		}
		for _, d := range denials {
			if err := enforce(ctx, w, h, d, t); refused == nil {
				refused = err
			}
		}
	}
	t.publish(ctx)
	return refused
}

type validatingHit = reached[*validatingPolicy, *admissionregistrationv1.ValidatingAdmissionPolicyBinding]

// enforce does what the binding says about a denial.
func enforce(ctx context.Context, w *match.Write, h validatingHit, d denial, t *trail) (err error) {
	if d.always {
		return deny(w, h.policy.Name, h.binding, d)
	}
	for _, action := range h.binding.Spec.ValidationActions {
		switch action {
		case admissionregistrationv1.Deny:
			err = deny(w, h.policy.Name, h.binding, d)
		case admissionregistrationv1.Audit:
			t.failures = append(t.failures, failure{d.message, h.policy.Name, h.binding.Name, d.index, h.binding.Spec.ValidationActions})
		case admissionregistrationv1.Warn:
			warning.AddWarning(ctx, "", fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", h.policy.Name, h.binding.Name, d.message))
		}
	}
	return err
}

func deny(w *match.Write, policy string, binding *admissionregistrationv1.ValidatingAdmissionPolicyBinding, d denial) error {
	message := fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: %s", policy, d.message)
	if binding != nil {
		message = fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", policy, binding.Name, d.message)
	}
	err := apierrors.NewForbidden(w.Resource.GroupResource(), w.Name, errors.New(message))
	err.ErrStatus.Reason = d.reason
	if d.reason == "" {
		err.ErrStatus.Reason = metav1.StatusReasonInvalid
	}
	switch err.ErrStatus.Reason {
	case metav1.StatusReasonForbidden:
		err.ErrStatus.Code = http.StatusForbidden
	case metav1.StatusReasonUnauthorized:
		err.ErrStatus.Code = http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		err.ErrStatus.Code = http.StatusRequestEntityTooLarge
	default:
		err.ErrStatus.Code = http.StatusUnprocessableEntity
	}
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Message: message})
	return err
}

// evaluate checks a write against a policy with each of its parameters.
func (v *Validating) evaluate(ctx context.Context, w *match.Write, h validatingHit, t *trail) ([]denial, error) {
	// Under failurePolicy Ignore, what cannot be evaluated is as good as true.
	failed := func(err error) []denial {
		if ignores(h.policy.Spec.FailurePolicy) {
			return nil
		}
		return []denial{{message: err.Error()}}
	}
	namespace, err := w.TheNamespace(ctx)
	if err != nil {
		return nil, err
	}
	view, err := w.View(h.hit.Kind)
	if err != nil {
		return failed(fmt.Errorf("failed to configure binding: failed to convert object version: %w", err)), nil
	}
	c, err := h.policy.compiled()
	if err != nil {
		return failed(err), nil
	}
	var out []denial
	for _, p := range h.params {
		found, err := v.check(ctx, c, h, view, p, namespace, t)
		if err != nil {
			found = failed(err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// check evaluates the expressions of a policy with one parameter; an error is of all of them.
func (v *Validating) check(ctx context.Context, c *checks, h validatingHit, view *admission.VersionedAttributes, param runtime.Object, namespace *corev1.Namespace, t *trail) ([]denial, error) {
	ok, err := c.conditions.Match(ctx, view, param, v.Authorizer)
	if err != nil || !ok {
		return nil, err
	}
	request := plugincel.CreateAdmissionRequest(view.Attributes, metav1.GroupVersionResource(h.hit.Resource), metav1.GroupVersionKind(view.VersionedKind))
	namespace = plugincel.CreateNamespaceObject(namespace)
	bindings := plugincel.OptionalVariableBindings{VersionedParams: param, Authorizer: v.Authorizer}
	results, budget, err := c.validations.ForInput(ctx, view, request, bindings, namespace, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return nil, err
	}
	messages, _, messageErr := c.messages.ForInput(ctx, view, request, plugincel.OptionalVariableBindings{VersionedParams: param}, namespace, budget)
	exhausted := errors.Is(messageErr, apiservercel.ErrInternal) || errors.Is(messageErr, apiservercel.ErrOutOfBudget)
	ignore := ignores(h.policy.Spec.FailurePolicy)
	var out []denial
	for i, r := range results {
		switch {
		case (r.Error != nil || exhausted) && ignore:
		case r.Error != nil:
			out = append(out, denial{message: r.Error.Error(), index: i})
		case exhausted:
			out = append(out, denial{message: fmt.Sprintf("failed messageExpression: %s", messageErr), index: i})
		case r.EvalResult != celtypes.True:
			d := denial{message: message(&h.policy.Spec.Validations[i], messages, i), index: i}
			if reason := h.policy.Spec.Validations[i].Reason; reason != nil {
				d.reason = *reason
			}
			out = append(out, d)
		}
	}
	annotations, _, err := c.annotations.ForInput(ctx, view, request, bindings, namespace, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return nil, err
	}
	for i, r := range annotations {
		switch {
		case r.Error != nil && !ignore:
			out = append(out, denial{message: r.Error.Error(), always: true})
		case r.Error == nil && r.EvalResult != nil:
			if s, ok := r.EvalResult.Value().(string); ok && strings.TrimSpace(s) != "" {
				t.note(h.policy.Name, h.policy.Spec.AuditAnnotations[i].Key, strings.TrimSpace(s))
			}
		}
	}
	return out, nil
}

// message of a validation that is not true: evaluated, given, or made of the expression.
func message(v *admissionregistrationv1.Validation, evaluated []plugincel.EvaluationResult, i int) string {
	if i < len(evaluated) && evaluated[i].Error == nil && evaluated[i].EvalResult != nil {
		if s, ok := evaluated[i].EvalResult.Value().(string); ok {
			s = strings.TrimSpace(s)
			if s != "" && len(s) <= celconfig.MaxEvaluatedMessageExpressionSizeBytes && !strings.Contains(s, "\n") {
				return s
			}
		}
	}
	if s := strings.TrimSpace(v.Message); s != "" {
		return s
	}
	return "failed expression: " + strings.TrimSpace(v.Expression)
}
