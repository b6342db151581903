// Package rbac decides by Roles and their bindings, from an index over the watch
// cache: who asks leads to bindings, bindings lead to rules.
//
// Owns: the index, the decision, and the checks that keep writers of roles from giving
// away what they do not have. Must not: write objects.
package rbac

import (
	"context"
	"errors"
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Authorize implements authorizer.Authorizer.
func (x *Index) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	q := newQuery(a)
	var allowed *grant
	var errs []error
	x.visit(a.GetUser(), a.GetNamespace(), func(g *grant, rules []rbacv1.PolicyRule, err error) bool {
		if err != nil {
			errs = append(errs, err)
			return true
		}
		for i := range rules {
			if q.allowedBy(&rules[i]) {
				allowed = g
				return false
			}
		}
		return true
	})
	if allowed != nil {
		return authorizer.DecisionAllow, "RBAC: allowed by " + allowed.String(), nil
	}
	if len(errs) > 0 {
		return authorizer.DecisionNoOpinion, "RBAC: " + joined(errs), nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer without conditions.
func (x *Index) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(x.Authorize(ctx, a))
}

// EvaluateConditions implements authorizer.Authorizer without conditions.
func (*Index) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver.
func (x *Index) RulesFor(_ context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	rules, err := x.PolicyRules(u, namespace)
	var resource []authorizer.ResourceRuleInfo
	var nonResource []authorizer.NonResourceRuleInfo
	for i := range rules {
		r := &rules[i]
		if len(r.Resources) > 0 {
			resource = append(resource, &authorizer.DefaultResourceRuleInfo{
				Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames,
			})
		}
		if len(r.NonResourceURLs) > 0 {
			nonResource = append(nonResource, &authorizer.DefaultNonResourceRuleInfo{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs})
		}
	}
	return resource, nonResource, false, err
}

// PolicyRules are all rules that apply to a user cluster-wide and in a namespace (if not empty).
func (x *Index) PolicyRules(u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	var all []rbacv1.PolicyRule
	var errs []error
	x.visit(u, namespace, func(_ *grant, rules []rbacv1.PolicyRule, err error) bool {
		all = append(all, rules...)
		if err != nil {
			errs = append(errs, err)
		}
		return true
	})
	return all, errors.Join(errs...)
}

// query is a request in the form that rules are compared with.
type query struct {
	isResource         bool
	verb, group, name  string
	resource           string // with the subresource
	anyWithSubresource string // "*/status"; empty without subresource
	path               string
}

func newQuery(a authorizer.Attributes) query {
	q := query{isResource: a.IsResourceRequest(), verb: a.GetVerb()}
	if !q.isResource {
		q.path = a.GetPath()
		return q
	}
	q.group, q.name, q.resource = a.GetAPIGroup(), a.GetName(), a.GetResource()
	if sub := a.GetSubresource(); sub != "" {
		q.resource += "/" + sub
		q.anyWithSubresource = "*/" + sub
	}
	return q
}

// Allows says whether a rule allows a request.
func Allows(a authorizer.Attributes, r *rbacv1.PolicyRule) bool {
	q := newQuery(a)
	return q.allowedBy(r)
}

func (q *query) allowedBy(r *rbacv1.PolicyRule) bool {
	if !has(r.Verbs, q.verb) {
		return false
	}
	if !q.isResource {
		for _, u := range r.NonResourceURLs {
			if u == "*" || u == q.path {
				return true
			}
			if prefix := strings.TrimRight(u, "*"); len(prefix) < len(u) && strings.HasPrefix(q.path, prefix) {
				return true
			}
		}
		return false
	}
	return has(r.APIGroups, q.group) && q.resourceIn(r.Resources) && (len(r.ResourceNames) == 0 || contains(r.ResourceNames, q.name))
}

func (q *query) resourceIn(resources []string) bool {
	for _, s := range resources {
		if s == "*" || s == q.resource || (q.anyWithSubresource != "" && s == q.anyWithSubresource) {
			return true
		}
	}
	return false
}

func has(list []string, want string) bool {
	for _, s := range list {
		if s == "*" || s == want {
			return true
		}
	}
	return false
}

func contains(list []string, want string) bool {
	for _, s := range list {
		if s == want {
			return true
		}
	}
	return false
}

// joined lists errors the way upstream's messages do.
func joined(errs []error) string {
	if len(errs) == 1 {
		return errs[0].Error()
	}
	var msgs []string
	seen := map[string]bool{}
	for _, e := range errs {
		if m := e.Error(); !seen[m] {
			seen[m] = true
			msgs = append(msgs, m)
		}
	}
	if len(msgs) == 1 {
		return msgs[0]
	}
	return "[" + strings.Join(msgs, ", ") + "]"
}

// String describes a grant in reasons.
func (g *grant) String() string {
	subject := g.subject.Name
	ns := g.subject.Namespace
	if ns == "" {
		ns = g.binding.namespace
	}
	if g.subject.Kind == rbacv1.ServiceAccountKind {
		subject += "/" + ns
	}
	kind, name := "ClusterRoleBinding", g.binding.name
	if g.binding.namespace != "" {
		kind, name = "RoleBinding", g.binding.name+"/"+g.binding.namespace
	}
	return fmt.Sprintf("%s %q of %s %q to %s %q", kind, name, g.roleRef.Kind, g.roleRef.Name, g.subject.Kind, subject)
}
