package policies

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Mutating changes writes as MutatingAdmissionPolicies say.
type Mutating struct {
	Config
	interfaces admission.ObjectInterfaces
	policies   match.Memo[*admissionregistrationv1.MutatingAdmissionPolicy, *mutatingPolicy]
	bindings   match.Memo[*admissionregistrationv1.MutatingAdmissionPolicyBinding, *bound[*admissionregistrationv1.MutatingAdmissionPolicyBinding]]
}

// NewMutating returns a Mutating.
func NewMutating(c Config) (*Mutating, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	m := &Mutating{Config: c, interfaces: admission.NewObjectInterfacesFromScheme(c.Scheme)}
	m.policies.Build = func(p *admissionregistrationv1.MutatingAdmissionPolicy) *mutatingPolicy {
		return &mutatingPolicy{MutatingAdmissionPolicy: p, criteria: match.ForPolicy(p.Spec.MatchConstraints),
			compiled: sync.OnceValues(func() (*mutations, error) { return compileMutations(p) })}
	}
	m.bindings.Build = func(b *admissionregistrationv1.MutatingAdmissionPolicyBinding) *bound[*admissionregistrationv1.MutatingAdmissionPolicyBinding] {
		return &bound[*admissionregistrationv1.MutatingAdmissionPolicyBinding]{b, match.ForPolicy(b.Spec.MatchResources)}
	}
	return m, nil
}

// mutatingPolicy is a policy, compiled when it first meets a write.
type mutatingPolicy struct {
	*admissionregistrationv1.MutatingAdmissionPolicy
	criteria match.Criteria
	compiled func() (*mutations, error)
}

type mutations struct {
	compiler   *plugincel.CompositedCompiler
	conditions *match.Conditions
	patchers   []patch.Patcher
}

func compileMutations(p *admissionregistrationv1.MutatingAdmissionPolicy) (*mutations, error) {
	vars := plugincel.OptionalVariableDeclarations{HasParams: p.Spec.ParamKind != nil, HasAuthorizer: true}
	c, err := newCompiler(p.Spec.Variables, vars)
	if err != nil {
		return nil, err
	}
	m := &mutations{compiler: c, conditions: match.Compile(c, p.Spec.MatchConditions, vars)}
	vars.HasPatchTypes = true
	for _, mutation := range p.Spec.Mutations {
		switch {
		case mutation.PatchType == admissionregistrationv1.PatchTypeJSONPatch && mutation.JSONPatch != nil:
			m.patchers = append(m.patchers, patch.NewJSONPatcher(c.CompileMutatingEvaluator(
				&patch.JSONPatchCondition{Expression: mutation.JSONPatch.Expression}, vars, environment.StoredExpressions)))
		case mutation.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration && mutation.ApplyConfiguration != nil:
			m.patchers = append(m.patchers, patch.NewApplyConfigurationPatcher(c.CompileMutatingEvaluator(
				&patch.ApplyConfigurationCondition{Expression: mutation.ApplyConfiguration.Expression}, vars, environment.StoredExpressions)))
		default:
			return nil, fmt.Errorf("patchType %q needs the field of its name", mutation.PatchType)
		}
	}
	return m, nil
}

type mutatingHit = reached[*mutatingPolicy, *admissionregistrationv1.MutatingAdmissionPolicyBinding]

// Mutate runs one round: the object of the write becomes what the policies make of it.
func (m *Mutating) Mutate(ctx context.Context, w *match.Write, r *match.Reinvocation) error {
	if exempt(w) || w.Operation == seams.Delete || w.Object == nil {
		return nil
	}
	bindings, err := lookup.CachedList[*admissionregistrationv1.MutatingAdmissionPolicyBinding](ctx, m.Caches, resource("mutatingadmissionpolicybindings"), "")
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if len(bindings) == 0 {
		return nil
	}
	policies, err := lookup.CachedList[*admissionregistrationv1.MutatingAdmissionPolicy](ctx, m.Caches, resource("mutatingadmissionpolicies"), "")
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	r.Begin(w.Object)
	hits, problems := reach(ctx, &m.Config, w, m.policies.Of(policies),
		func(p *mutatingPolicy) spec { return spec{&p.criteria, p.Spec.ParamKind} },
		m.bindings.Of(bindings),
		func(p *mutatingPolicy, b *admissionregistrationv1.MutatingAdmissionPolicyBinding) bool {
			return b.Spec.PolicyName == p.Name
		},
		func(b *admissionregistrationv1.MutatingAdmissionPolicyBinding) *admissionregistrationv1.ParamRef {
			return b.Spec.ParamRef
		})
	for _, h := range hits {
		for _, p := range h.params {
			err := m.apply(ctx, w, h, p, r)
			var status *apierrors.StatusError
			if errors.As(err, &status) {
				return err
			}
			if err != nil {
				problems = append(problems, problem[*mutatingPolicy, *admissionregistrationv1.MutatingAdmissionPolicyBinding]{h.policy, &h.binding, err})
			}
		}
	}
	r.End(w.Object)
	return refusal(w, problems)
}

// refusal is the error of the policies that could not be applied and do not ignore that.
func refusal(w *match.Write, problems []problem[*mutatingPolicy, *admissionregistrationv1.MutatingAdmissionPolicyBinding]) error {
	var refused *apierrors.StatusError
	for _, p := range problems {
		if ignores(p.policy.Spec.FailurePolicy) {
			continue
		}
		message := fmt.Sprintf("policy %q denied request: %s", p.policy.Name, p.err)
		if p.binding != nil {
			message = fmt.Sprintf("policy '%s' with binding '%s' denied request: %s", p.policy.Name, (*p.binding).Name, p.err)
		}
		if refused == nil {
			refused = apierrors.NewForbidden(w.Resource.GroupResource(), w.Name, nil)
			refused.ErrStatus.Message, refused.ErrStatus.Reason = message, metav1.StatusReasonInvalid
		}
		refused.ErrStatus.Details.Causes = append(refused.ErrStatus.Details.Causes, metav1.StatusCause{Message: message})
	}
	if refused == nil {
		return nil
	}
	return refused
}

// apply runs the mutations of a policy with one parameter, each on what the last one made.
func (m *Mutating) apply(ctx context.Context, w *match.Write, h mutatingHit, param runtime.Object, r *match.Reinvocation) error {
	key := h.policy.Name + "/" + h.binding.Name
	if param != nil {
		if o, err := meta.Accessor(param); err == nil {
			key += "/" + o.GetNamespace() + "/" + o.GetName()
		}
	}
	namespace, err := w.TheNamespace(ctx)
	if err != nil {
		return err
	}
	c, err := h.policy.compiled()
	if err != nil {
		return fmt.Errorf("failed to configure policy: %w", err)
	}
	view, err := w.View(h.hit.Kind)
	if err != nil {
		return fmt.Errorf("failed to configure policy: %w", err)
	}
	ok, err := c.conditions.Match(ctx, view, param, m.Authorizer)
	if err != nil || !ok || !r.Calls(key) {
		return err
	}
	composed := c.compiler.CreateContext(ctx)
	changed := false
	for _, p := range c.patchers {
		did, err := m.patch(composed, w, h, p, param, namespace)
		if err != nil {
			r.Called(key, changed, false)
			return err
		}
		changed = changed || did
	}
	r.Called(key, changed, h.policy.Spec.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy)
	return nil
}

func (m *Mutating) patch(ctx context.Context, w *match.Write, h mutatingHit, p patch.Patcher, param runtime.Object, namespace *corev1.Namespace) (changed bool, err error) {
	view, err := w.View(h.hit.Kind)
	if err != nil {
		return false, err
	}
	types, err := m.types(h.hit)
	if err != nil {
		return false, err
	}
	before := view.VersionedObject.Object()
	after, err := p.Patch(ctx, patch.Request{
		MatchedResource: h.hit.Resource, VersionedAttributes: view, ObjectInterfaces: m.interfaces,
		OptionalVariables: plugincel.OptionalVariableBindings{VersionedParams: param, Authorizer: m.Authorizer},
		Namespace:         plugincel.CreateNamespaceObject(namespace), TypeConverter: types,
	}, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return false, err
	}
	if after, err = likeTyped(after, before); err != nil {
		return false, err
	}
	if after == before || equality.Semantic.DeepEqual(before, after) {
		return false, nil
	}
	return true, w.Set(after, h.hit.Kind)
}

// types gives the schema of what is patched.
func (m *Mutating) types(hit match.Hit) (managedfields.TypeConverter, error) {
	catalog := m.Catalog()
	if catalog == nil {
		return managedfields.NewDeducedTypeConverter(), nil
	}
	for _, s := range catalog.Served(hit.Resource.GroupResource()) {
		if s.GVK() == hit.Kind && s.Types != nil {
			return s.Types, nil
		}
	}
	return catalog.TypeConverter()
}

// likeTyped gives a merged object the Go type of the one before.
func likeTyped(obj, before runtime.Object) (runtime.Object, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	if _, ok := before.(*unstructured.Unstructured); ok {
		return obj, nil
	}
	out := reflect.New(reflect.TypeOf(before).Elem()).Interface().(runtime.Object)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("read patched object: %w", err)
	}
	return out, nil
}
