// Package match decides which webhooks and policies a write concerns, and shows the
// write to them in the version they ask for.
//
// Owns: rules, selectors, equivalent versions and CEL match conditions, as webhook
// configurations and admission policies share them. Must not: decide about a write.
package match

import (
	"context"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Criteria say which writes something is about.
type Criteria struct {
	Namespaces, Objects labels.Selector
	// Invalid is why a selector cannot be read; it fails what the rules match.
	Invalid        error
	Rules, Exclude []admissionregistrationv1.NamedRuleWithOperations
	// Equivalent: rules match a resource in any version that it is served in.
	Equivalent bool
	// Everything: no rules match all writes, not none.
	Everything bool
}

// ForWebhook are the criteria of a webhook.
func ForWebhook(namespaces, objects *metav1.LabelSelector, rules []admissionregistrationv1.RuleWithOperations, policy *admissionregistrationv1.MatchPolicyType) Criteria {
	c := newCriteria(namespaces, objects, policy)
	for _, r := range rules {
		c.Rules = append(c.Rules, admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: r})
	}
	return c
}

// ForPolicy are the criteria of a policy or of a binding; r may be nil.
func ForPolicy(r *admissionregistrationv1.MatchResources) Criteria {
	if r == nil {
		r = &admissionregistrationv1.MatchResources{}
	}
	c := newCriteria(r.NamespaceSelector, r.ObjectSelector, r.MatchPolicy)
	c.Rules, c.Exclude, c.Everything = r.ResourceRules, r.ExcludeResourceRules, true
	return c
}

func newCriteria(namespaces, objects *metav1.LabelSelector, policy *admissionregistrationv1.MatchPolicyType) Criteria {
	c := Criteria{Equivalent: policy != nil && *policy == admissionregistrationv1.Equivalent}
	parse := func(s *metav1.LabelSelector, what string) labels.Selector {
		if s == nil {
			return labels.Everything()
		}
		parsed, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			c.Invalid = fmt.Errorf("%s: %w", what, err)
			return labels.Everything()
		}
		return parsed
	}
	c.Namespaces, c.Objects = parse(namespaces, "namespaceSelector"), parse(objects, "objectSelector")
	return c
}

// Hit is how criteria met a write: as this resource and kind.
type Hit struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
}

// Match says whether the criteria meet the write, and as what.
func (c *Criteria) Match(ctx context.Context, w *Write) (Hit, bool, error) {
	if _, excluded := c.resource(w, c.Exclude); excluded {
		return Hit{}, false, nil
	}
	hit, ok := Hit{w.Resource, w.Kind}, c.Everything
	if len(c.Rules) > 0 {
		hit, ok = c.resource(w, c.Rules)
	}
	if !ok || !c.object(w) {
		return Hit{}, false, nil
	}
	if c.Invalid != nil {
		return Hit{}, false, c.Invalid
	}
	ok, err := c.namespace(ctx, w)
	return hit, ok, err
}

func (c *Criteria) resource(w *Write, rules []admissionregistrationv1.NamedRuleWithOperations) (Hit, bool) {
	named := func(r *admissionregistrationv1.NamedRuleWithOperations) bool {
		return len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, w.Name)
	}
	for i := range rules {
		if covers(&rules[i].RuleWithOperations, w, w.Resource) && named(&rules[i]) {
			return Hit{w.Resource, w.Kind}, true
		}
	}
	if !c.Equivalent || len(rules) == 0 {
		return Hit{}, false
	}
	others := w.others()
	for i := range rules {
		for _, hit := range others {
			if covers(&rules[i].RuleWithOperations, w, hit.Resource) && named(&rules[i]) {
				return hit, true
			}
		}
	}
	return Hit{}, false
}

// covers says whether a rule is about a write seen as a write of r.
func covers(rule *admissionregistrationv1.RuleWithOperations, w *Write, r schema.GroupVersionResource) bool {
	return inScope(rule.Scope, w) &&
		slices.ContainsFunc(rule.Operations, func(o admissionregistrationv1.OperationType) bool {
			return o == admissionregistrationv1.OperationAll || string(o) == string(w.Operation)
		}) &&
		oneOf(rule.APIGroups, r.Group) && oneOf(rule.APIVersions, r.Version) &&
		slices.ContainsFunc(rule.Resources, func(pattern string) bool {
			resource, sub, _ := strings.Cut(pattern, "/")
			return (resource == "*" || resource == r.Resource) && (sub == "*" || sub == w.Subresource)
		})
}

// inScope takes a Namespace for what it is, cluster-scoped, although its attributes name
// it as their namespace.
func inScope(scope *admissionregistrationv1.ScopeType, w *Write) bool {
	if scope == nil || *scope == admissionregistrationv1.AllScopes {
		return true
	}
	cluster := w.Namespace == "" || isNamespace(w)
	switch *scope {
	case admissionregistrationv1.NamespacedScope:
		return !cluster
	case admissionregistrationv1.ClusterScope:
		return cluster
	}
	return false
}

func isNamespace(w *Write) bool { return w.Resource.Group == "" && w.Resource.Resource == "namespaces" }

func oneOf(items []string, s string) bool {
	return slices.Contains(items, "*") || slices.Contains(items, s)
}

// object matches when either state of the object does.
func (c *Criteria) object(w *Write) bool {
	if c.Objects.Empty() {
		return true
	}
	matches := func(obj runtime.Object) bool {
		if obj == nil {
			return false
		}
		m, err := meta.Accessor(obj)
		return err == nil && c.Objects.Matches(labels.Set(m.GetLabels()))
	}
	return matches(w.Object) || matches(w.OldObject)
}

// namespace exempts nothing of cluster scope but namespaces, whose own labels count: the new
// ones on writes of the object itself.
func (c *Criteria) namespace(ctx context.Context, w *Write) (bool, error) {
	if c.Namespaces.Empty() || w.Namespace == "" && !isNamespace(w) {
		return true, nil
	}
	if isNamespace(w) && w.Subresource == "" && (w.Operation == seams.Create || w.Operation == seams.Update) {
		m, err := meta.Accessor(w.Object)
		if err != nil {
			return false, fmt.Errorf("read the labels of namespace %s: %w", w.Name, err)
		}
		return c.Namespaces.Matches(labels.Set(m.GetLabels())), nil
	}
	ns, err := w.namespaceNamed(ctx, w.Namespace)
	if err != nil {
		return false, err
	}
	return c.Namespaces.Matches(labels.Set(ns.Labels)), nil
}

// Exempt writes are of the configuration of admission itself, which must stay mendable.
func Exempt(kind schema.GroupVersionKind) bool {
	if kind.Group != admissionregistrationv1.GroupName {
		return false
	}
	switch kind.Kind {
	case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy",
		"ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding":
		return true
	}
	return false
}
