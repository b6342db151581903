// Package policies enforces ValidatingAdmissionPolicies and MutatingAdmissionPolicies:
// CEL that users write, bound to writes and parameters (KEP-3488, KEP-3962).
//
// Owns: which policies meet a write, with which parameters, and what follows. Must not:
// check policies themselves when they are written (api/admissionregistration).
package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

// Config configures Mutating and Validating.
type Config struct {
	Caches lookup.Caches
	// Catalog finds parameters and schemas; nil, as what it returns: there are none.
	Catalog func() match.Catalog
	// Authorizer answers expressions that ask about the user.
	Authorizer authorizer.UnconditionalAuthorizer
	// Scheme knows the built-in kinds.
	Scheme *runtime.Scheme
}

func (c *Config) check() error {
	if c.Caches == nil || c.Authorizer == nil || c.Scheme == nil {
		return errors.New("policies: Caches, Authorizer and Scheme must be set")
	}
	if c.Catalog == nil {
		c.Catalog = func() match.Catalog { return nil }
	}
	return nil
}

// exempt writes would break the cluster if an expression refused them.
func exempt(w *match.Write) bool {
	switch w.Resource.Group {
	case authenticationv1.GroupName:
		return slices.Contains([]string{"selfsubjectreviews", "tokenreviews"}, w.Resource.Resource)
	case authorizationv1.GroupName:
		return slices.Contains([]string{"localsubjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews"}, w.Resource.Resource)
	}
	return match.Exempt(w.Kind)
}

// bound is a binding, read once.
type bound[B any] struct {
	binding  B
	criteria match.Criteria
}

// newCompiler knows the variables of one policy; its expressions are of a stored object.
func newCompiler(variables []admissionregistrationv1.Variable, vars plugincel.OptionalVariableDeclarations) (*plugincel.CompositedCompiler, error) {
	c, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, fmt.Errorf("build CEL environment: %w", err)
	}
	for _, v := range variables {
		c.CompileAndStoreVariable(&match.Expression{Name: v.Name, Text: v.Expression, Types: []*cel.Type{cel.AnyType, cel.DynType}}, vars, environment.StoredExpressions)
	}
	return c, nil
}

// ignores says whether a policy's failures let writes pass.
func ignores(p *admissionregistrationv1.FailurePolicyType) bool {
	return p != nil && *p == admissionregistrationv1.Ignore
}

// reached is a policy that meets a write through a binding.
type reached[P, B any] struct {
	policy  P
	binding B
	hit     match.Hit
	params  []runtime.Object
}

// problem is a policy or binding that cannot be put to use.
type problem[P, B any] struct {
	policy  P
	binding *B // nil: of the policy
	err     error
}

// spec is what the kinds of policies have in common.
type spec struct {
	criteria  *match.Criteria
	paramKind *admissionregistrationv1.ParamKind
}

// reach finds the policies that meet a write, in order of their names and those of their bindings.
func reach[P, B any](ctx context.Context, c *Config, w *match.Write, policies []P, specOf func(P) spec,
	bindings []*bound[B], of func(P, B) bool, ref func(B) *admissionregistrationv1.ParamRef) (out []reached[P, B], problems []problem[P, B]) {
	for _, p := range policies {
		s := specOf(p)
		hit, ok, err := s.criteria.Match(ctx, w)
		if err != nil {
			problems = append(problems, problem[P, B]{policy: p, err: fmt.Errorf("failed to configure policy: %w", err)})
		}
		if err != nil || !ok {
			continue
		}
		for _, b := range bindings {
			if !of(p, b.binding) {
				continue
			}
			_, ok, err := b.criteria.Match(ctx, w)
			var params []runtime.Object
			if err == nil && ok {
				params, err = c.params(ctx, w, s.paramKind, ref(b.binding))
			}
			if err != nil {
				problems = append(problems, problem[P, B]{policy: p, binding: &b.binding, err: fmt.Errorf("failed to configure binding: %w", err)})
			} else if ok && len(params) > 0 {
				out = append(out, reached[P, B]{p, b.binding, hit, params})
			}
		}
	}
	return out, problems
}

func resource(plural string) schema.GroupResource {
	return schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: plural}
}
