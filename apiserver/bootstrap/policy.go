package bootstrap

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/api/rbac"
)

//go:embed roles.txt
var rolesText string

// Policy is the standard RBAC policy.
type Policy struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
	Roles               []*rbacv1.Role
	RoleBindings        []*rbacv1.RoleBinding
}

// aggregationPrefix begins the labels by which ClusterRoles are gathered into others.
const aggregationPrefix = "rbac.authorization.k8s.io/"

var verbSets = map[string][]string{
	"read":      {"get", "list", "watch"},
	"write":     {"create", "delete", "deletecollection", "patch", "update"},
	"readwrite": {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
}

// StandardPolicy reads the policy that is built in. Each call builds new objects.
func StandardPolicy() (*Policy, error) {
	p, err := parsePolicy(rolesText)
	if err != nil {
		return nil, err
	}
	p.aggregate()
	return p, nil
}

// NodeRules are the rules of the ClusterRole system:node, by which the node authorizer works.
func NodeRules() ([]rbacv1.PolicyRule, error) {
	p, err := parsePolicy(rolesText)
	if err != nil {
		return nil, err
	}
	for _, r := range p.ClusterRoles {
		if r.Name == "system:node" {
			return r.Rules, nil
		}
	}
	return nil, fmt.Errorf("standard policy has no ClusterRole system:node")
}

func parsePolicy(text string) (*Policy, error) {
	p := &Policy{}
	var rules *[]rbacv1.PolicyRule
	var bind func(rbacv1.RoleRef, []rbacv1.Subject)
	for n, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		bad := func(what string) error { return fmt.Errorf("roles.txt:%d: %s: %q", n+1, what, line) }
		if strings.HasPrefix(line, "\t") {
			switch {
			case bind != nil && len(fields) >= 2:
				subjects, err := parseSubjects(fields[2:])
				if err != nil {
					return nil, bad(err.Error())
				}
				bind(rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: fields[0], Name: fields[1]}, subjects)
			case rules != nil && len(fields) >= 3:
				*rules = append(*rules, parseRule(fields))
			default:
				return nil, bad("not a rule or binding")
			}
			continue
		}
		if len(fields) < 2 {
			return nil, bad("no name")
		}
		meta := metav1.ObjectMeta{
			Name:        fields[1],
			Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
			Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
		}
		var from []metav1.LabelSelector
		for _, f := range fields[2:] {
			if to, ok := strings.CutPrefix(f, "+"); ok {
				meta.Labels[aggregationPrefix+to] = "true"
			} else if f, ok := strings.CutPrefix(f, "<"); ok {
				from = append(from, metav1.LabelSelector{MatchLabels: map[string]string{aggregationPrefix + f: "true"}})
			} else {
				return nil, bad("neither + nor <")
			}
		}
		rules, bind = nil, nil
		if fields[0] == "Role" || fields[0] == "RoleBinding" {
			var ok bool
			if meta.Namespace, meta.Name, ok = strings.Cut(fields[1], "/"); !ok {
				return nil, bad("no namespace")
			}
		}
		switch fields[0] {
		case "ClusterRole":
			r := &rbacv1.ClusterRole{ObjectMeta: meta}
			if len(from) > 0 {
				r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: from}
			}
			p.ClusterRoles = append(p.ClusterRoles, r)
			rules = &r.Rules
		case "Role":
			r := &rbacv1.Role{ObjectMeta: meta}
			p.Roles = append(p.Roles, r)
			rules = &r.Rules
		case "ClusterRoleBinding":
			b := &rbacv1.ClusterRoleBinding{ObjectMeta: meta}
			p.ClusterRoleBindings = append(p.ClusterRoleBindings, b)
			bind = func(ref rbacv1.RoleRef, s []rbacv1.Subject) { b.RoleRef, b.Subjects = ref, s }
		case "RoleBinding":
			b := &rbacv1.RoleBinding{ObjectMeta: meta}
			p.RoleBindings = append(p.RoleBindings, b)
			bind = func(ref rbacv1.RoleRef, s []rbacv1.Subject) { b.RoleRef, b.Subjects = ref, s }
		default:
			return nil, bad("unknown kind")
		}
	}
	return p, nil
}

func list(s string) []string {
	l := strings.Split(s, ",")
	for i := range l {
		if l[i] == `""` {
			l[i] = ""
		}
	}
	return l
}

func parseRule(fields []string) rbacv1.PolicyRule {
	verbs, ok := verbSets[fields[0]]
	if ok {
		verbs = slices.Clone(verbs)
	} else {
		verbs = list(fields[0])
	}
	if fields[1] == "urls" {
		return rbacv1.PolicyRule{Verbs: verbs, NonResourceURLs: list(fields[2])}
	}
	r := rbacv1.PolicyRule{Verbs: verbs, APIGroups: list(fields[1]), Resources: list(fields[2])}
	if len(fields) > 3 {
		r.ResourceNames = list(fields[3])
	}
	return r
}

func parseSubjects(fields []string) ([]rbacv1.Subject, error) {
	var subjects []rbacv1.Subject
	for _, f := range fields {
		kind, name, _ := strings.Cut(f, ":")
		s := rbacv1.Subject{Kind: kind, Name: name}
		switch kind {
		case rbacv1.UserKind, rbacv1.GroupKind:
			s.APIGroup = rbacv1.GroupName
		case rbacv1.ServiceAccountKind:
			var ok bool
			if s.Namespace, s.Name, ok = strings.Cut(name, "/"); !ok {
				return nil, fmt.Errorf("no namespace in %s", f)
			}
		default:
			return nil, fmt.Errorf("unknown kind of subject %s", f)
		}
		subjects = append(subjects, s)
	}
	return subjects, nil
}

// aggregate fills the rules of the roles that gather others, so that a fresh cluster has
// them at once; the aggregation controller keeps them.
func (p *Policy) aggregate() {
	// Roles gather roles that gather: as many rounds as there are levels.
	for range 4 {
		changed := false
		for _, r := range p.ClusterRoles {
			if r.AggregationRule == nil {
				continue
			}
			rules, err := rbac.Aggregate(r, p.ClusterRoles)
			if err == nil && len(rules) != len(r.Rules) { // the controller tells of a selector that is none
				r.Rules, changed = rules, true
			}
		}
		if !changed {
			return
		}
	}
}
