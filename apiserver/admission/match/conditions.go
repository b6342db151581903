package match

import (
	"context"

	"github.com/google/cel-go/cel"
	celtypes "github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
)

// Expression is CEL text and what it may evaluate to.
type Expression struct {
	Name, Text string
	Types      []*cel.Type
}

func (e *Expression) GetExpression() string    { return e.Text }
func (e *Expression) ReturnTypes() []*cel.Type { return e.Types }
func (e *Expression) GetName() string          { return e.Name }

// Conditions are compiled match conditions.
type Conditions struct {
	evaluator plugincel.ConditionEvaluator
}

// Compile compiles match conditions; nil if there are none. Errors show on Match: what is
// stored was accepted by some server once.
func Compile(c plugincel.ConditionCompiler, conditions []admissionregistrationv1.MatchCondition, vars plugincel.OptionalVariableDeclarations) *Conditions {
	if len(conditions) == 0 {
		return nil
	}
	all := make([]plugincel.ExpressionAccessor, len(conditions))
	for i, m := range conditions {
		all[i] = &Expression{Name: m.Name, Text: m.Expression, Types: []*cel.Type{cel.BoolType}}
	}
	return &Conditions{c.CompileCondition(all, vars, environment.StoredExpressions)}
}

// Match says whether all conditions are true. One that is false decides, whatever
// errors the others give.
func (c *Conditions) Match(ctx context.Context, v *admission.VersionedAttributes, params runtime.Object, a authorizer.UnconditionalAuthorizer) (bool, error) {
	if c == nil {
		return true, nil
	}
	request := plugincel.CreateAdmissionRequest(v.Attributes, metav1.GroupVersionResource(v.GetResource()), metav1.GroupVersionKind(v.VersionedKind))
	results, _, err := c.evaluator.ForInput(ctx, v, request, plugincel.OptionalVariableBindings{VersionedParams: params, Authorizer: a},
		nil, celconfig.RuntimeCELCostBudgetMatchConditions)
	if err != nil {
		return false, err
	}
	var failed []error
	for _, r := range results {
		if r.EvalResult == celtypes.False {
			return false, nil
		}
		if r.Error != nil {
			failed = append(failed, r.Error)
		}
	}
	return len(failed) == 0, utilerrors.NewAggregate(failed)
}
