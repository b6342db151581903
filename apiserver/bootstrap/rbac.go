package bootstrap

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/skiff-k8s/skiff/api"
)

// objects are all objects of the policy.
func (p *Policy) objects() []api.Object {
	var all []api.Object
	for _, o := range p.ClusterRoles {
		all = append(all, o)
	}
	for _, o := range p.ClusterRoleBindings {
		all = append(all, o)
	}
	for _, o := range p.Roles {
		all = append(all, o)
	}
	for _, o := range p.RoleBindings {
		all = append(all, o)
	}
	return all
}

// outcome is what has to happen to a stored object.
type outcome uint8

const (
	keep outcome = iota
	update
	replace // immutable fields differ
)

// reconcileRBAC decides what has to change in a stored object so that it grants at least what the
// standard one grants: what is missing is added, what an administrator added is kept, and an object
// whose rbac.authorization.kubernetes.io/autoupdate is "false" is left alone. next is a new object.
func reconcileRBAC(have, want runtime.Object) (next api.Object, o outcome) {
	switch want := want.(type) {
	case *rbacv1.ClusterRole:
		have := have.(*rbacv1.ClusterRole)
		n := have.DeepCopy()
		changed := mergeMeta(n, want)
		if want.AggregationRule != nil {
			// The rules are the aggregator's; what to gather is the union.
			if n.AggregationRule == nil {
				n.AggregationRule = &rbacv1.AggregationRule{}
			}
			for _, s := range want.AggregationRule.ClusterRoleSelectors {
				if !slices.ContainsFunc(n.AggregationRule.ClusterRoleSelectors, equalTo(s)) {
					n.AggregationRule.ClusterRoleSelectors = append(n.AggregationRule.ClusterRoleSelectors, s)
					changed = true
				}
			}
		} else {
			changed = addRules(&n.Rules, want.Rules) || changed
		}
		return n, decide(have, changed)
	case *rbacv1.Role:
		have := have.(*rbacv1.Role)
		n := have.DeepCopy()
		changed := mergeMeta(n, want)
		changed = addRules(&n.Rules, want.Rules) || changed
		return n, decide(have, changed)
	case *rbacv1.ClusterRoleBinding:
		have := have.(*rbacv1.ClusterRoleBinding)
		n := have.DeepCopy()
		changed := mergeMeta(n, want)
		changed = addSubjects(&n.Subjects, want.Subjects) || changed
		if have.RoleRef != want.RoleRef && autoUpdates(have) {
			n.RoleRef = want.RoleRef
			return n, replace
		}
		return n, decide(have, changed)
	case *rbacv1.RoleBinding:
		have := have.(*rbacv1.RoleBinding)
		n := have.DeepCopy()
		changed := mergeMeta(n, want)
		changed = addSubjects(&n.Subjects, want.Subjects) || changed
		if have.RoleRef != want.RoleRef && autoUpdates(have) {
			n.RoleRef = want.RoleRef
			return n, replace
		}
		return n, decide(have, changed)
	}
	return nil, keep
}

func equalTo[T any](want T) func(T) bool {
	return func(have T) bool { return apiequality.Semantic.DeepEqual(have, want) }
}

func autoUpdates(o api.Object) bool {
	return o.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] != "false"
}

func decide(have api.Object, changed bool) outcome {
	if !changed || !autoUpdates(have) {
		return keep
	}
	return update
}

// mergeMeta adds labels and annotations that are missing; an existing value wins.
func mergeMeta(n, want api.Object) bool {
	changed := false
	merge := func(have, want map[string]string, set func(map[string]string)) {
		for k, v := range want {
			if _, ok := have[k]; ok {
				continue
			}
			if have == nil {
				have = map[string]string{}
			}
			have[k] = v
			changed = true
		}
		set(have)
	}
	merge(n.GetLabels(), want.GetLabels(), n.SetLabels)
	merge(n.GetAnnotations(), want.GetAnnotations(), n.SetAnnotations)
	return changed
}

func addRules(have *[]rbacv1.PolicyRule, want []rbacv1.PolicyRule) bool {
	// The common case, nothing changed, is compared cheaply first.
	if apiequality.Semantic.DeepEqual(*have, want) {
		return false
	}
	ok, missing := validation.Covers(*have, want)
	if ok {
		return false
	}
	*have = append(*have, missing...)
	return true
}

func addSubjects(have *[]rbacv1.Subject, want []rbacv1.Subject) bool {
	changed := false
	for _, s := range want {
		if !slices.Contains(*have, s) {
			*have = append(*have, s)
			changed = true
		}
	}
	return changed
}
