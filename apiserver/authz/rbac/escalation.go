package rbac

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Escalation refuses writes of roles and bindings by which somebody would gain, or give
// away, more than they have, unless they may "escalate" the role or "bind" it.
type Escalation struct {
	rules interface {
		PolicyRules(u user.Info, namespace string) ([]rbacv1.PolicyRule, error)
	}
	authorizer authorizer.UnconditionalAuthorizer
	caches     lookup.Caches
}

// NewEscalation returns the check. The authorizer is the whole chain, not this package's alone.
func NewEscalation(x *Index, a authorizer.UnconditionalAuthorizer, caches lookup.Caches) *Escalation {
	return &Escalation{rules: x, authorizer: a, caches: caches}
}

// Admit implements seams.Admission.
func (*Escalation) Admit(context.Context, *seams.Attributes) error { return nil }

// Validate implements seams.Admission.
func (e *Escalation) Validate(ctx context.Context, a *seams.Attributes) error {
	if a.Resource.Group != rbacv1.GroupName || a.Subresource != "" || (a.Operation != seams.Create && a.Operation != seams.Update) {
		return nil
	}
	if slices.Contains(a.User.GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	if a.OldObject != nil && onlyForCollection(a.Object, a.OldObject) {
		return nil
	}
	gr := a.Resource.GroupResource()
	forbidden := func(err error) error { return apierrors.NewForbidden(gr, a.Name, err) }
	switch obj := a.Object.(type) {
	case *rbacv1.Role:
		if e.may(ctx, a, "escalate", gr.Resource, a.Name) {
			return nil
		}
		if err := e.covers(a.User, a.Namespace, obj.Rules); err != nil {
			return forbidden(err)
		}
	case *rbacv1.ClusterRole:
		if e.may(ctx, a, "escalate", gr.Resource, a.Name) {
			return nil
		}
		old, _ := a.OldObject.(*rbacv1.ClusterRole)
		if err := e.covers(a.User, "", obj.Rules); err != nil {
			return forbidden(err)
		}
		if aggregates(obj) || (old != nil && aggregates(old)) {
			if err := e.covers(a.User, "", everything); err != nil {
				return forbidden(errors.New("must have cluster-admin privileges to use the aggregationRule"))
			}
		}
	case *rbacv1.RoleBinding:
		return e.binding(ctx, a, obj.RoleRef, forbidden)
	case *rbacv1.ClusterRoleBinding:
		return e.binding(ctx, a, obj.RoleRef, forbidden)
	}
	return nil
}

var everything = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

func aggregates(r *rbacv1.ClusterRole) bool {
	return r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}

func (e *Escalation) binding(ctx context.Context, a *seams.Attributes, ref rbacv1.RoleRef, forbidden func(error) error) error {
	var resource string
	switch ref.Kind {
	case "Role":
		resource = "roles"
	case "ClusterRole":
		resource = "clusterroles"
	default:
		return nil // validation refuses it
	}
	if e.may(ctx, a, "bind", resource, ref.Name) {
		return nil
	}
	rules, err := e.roleRules(ctx, ref, a.Namespace)
	if apierrors.IsNotFound(err) { // told, as upstream does, as if the binding were missing
		return apierrors.NewNotFound(a.Resource.GroupResource(), ref.Name)
	}
	if err != nil {
		return err
	}
	if err := e.covers(a.User, a.Namespace, rules); err != nil {
		return forbidden(err)
	}
	return nil
}

// roleRules reads the role as it is now, not as the index knows it: a user may just have made it.
func (e *Escalation) roleRules(ctx context.Context, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	if ref.Kind == "Role" {
		r, err := lookup.Fresh[*rbacv1.Role](ctx, e.caches, schema.GroupResource{Group: rbacv1.GroupName, Resource: "roles"}, namespace, ref.Name)
		if err != nil {
			return nil, err
		}
		return r.Rules, nil
	}
	r, err := lookup.Fresh[*rbacv1.ClusterRole](ctx, e.caches, schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}, "", ref.Name)
	if err != nil {
		return nil, err
	}
	return r.Rules, nil
}

func (e *Escalation) may(ctx context.Context, a *seams.Attributes, verb, resource, name string) bool {
	decision, _, _ := e.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.User, Verb: verb, APIGroup: rbacv1.GroupName, APIVersion: "*",
		Resource: resource, Name: name, Namespace: a.Namespace, ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow
}

// covers is an error that lists what the user lacks of rules.
func (e *Escalation) covers(u user.Info, namespace string, rules []rbacv1.PolicyRule) error {
	owned, resolveErr := e.rules.PolicyRules(u, namespace)
	ok, missing := validation.Covers(owned, rules)
	if ok {
		return nil
	}
	var lines []string
	for _, r := range mergeVerbs(missing) {
		lines = append(lines, compact(r))
	}
	slices.Sort(lines)
	msg := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		u.GetName(), u.GetGroups(), strings.Join(lines, "\n"))
	if resolveErr != nil {
		msg += fmt.Sprintf("; resolution errors: %v", resolveErr)
	}
	return errors.New(msg)
}

// mergeVerbs joins rules that differ in nothing but their verbs.
func mergeVerbs(rules []rbacv1.PolicyRule) []*rbacv1.PolicyRule {
	var merged []*rbacv1.PolicyRule
	byRest := map[string]*rbacv1.PolicyRule{}
	for i := range rules {
		rest := rules[i]
		rest.Verbs = nil
		k := compact(&rest)
		if r, ok := byRest[k]; ok {
			for _, v := range rules[i].Verbs {
				if !slices.Contains(r.Verbs, v) {
					r.Verbs = append(r.Verbs, v)
				}
			}
			continue
		}
		r := rules[i].DeepCopy()
		byRest[k] = r
		merged = append(merged, r)
	}
	return merged
}

func compact(r *rbacv1.PolicyRule) string {
	var parts []string
	for _, p := range []struct {
		name   string
		values []string
	}{
		{"APIGroups", r.APIGroups}, {"Resources", r.Resources}, {"NonResourceURLs", r.NonResourceURLs},
		{"ResourceNames", r.ResourceNames}, {"Verbs", r.Verbs},
	} {
		if len(p.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", p.name, p.values))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// onlyForCollection: the update touches owner references, finalizers and managed fields
// alone, which the garbage collector must be able to do to any role.
func onlyForCollection(obj, old runtime.Object) bool {
	next, before := obj.DeepCopyObject(), old.DeepCopyObject()
	for _, o := range []runtime.Object{next, before} {
		m, err := meta.Accessor(o)
		if err != nil {
			return false
		}
		m.SetOwnerReferences(nil)
		m.SetFinalizers(nil)
		m.SetManagedFields(nil)
	}
	return apiequality.Semantic.DeepEqual(next, before)
}
