package rbac

import (
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAggregate(t *testing.T) {
	role := func(name, label string, verbs ...string) *rbacv1.ClusterRole {
		r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"to": label}}}
		for _, v := range verbs {
			r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{v}, Resources: []string{"pods"}, APIGroups: []string{""}})
		}
		return r
	}
	all := []*rbacv1.ClusterRole{role("b", "x", "list", "get"), role("a", "x", "get"), role("other", "y", "delete"), role("sum", "x", "old")}
	of := func(ss ...metav1.LabelSelector) *rbacv1.ClusterRole {
		r := role("sum", "x")
		r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: ss}
		return r
	}
	x := metav1.LabelSelector{MatchLabels: map[string]string{"to": "x"}}
	y := metav1.LabelSelector{MatchLabels: map[string]string{"to": "y"}}
	bad := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "to", Operator: "Maybe"}}}
	for name, test := range map[string]struct {
		role *rbacv1.ClusterRole
		want string
	}{
		"by name, each once, not itself": {of(x), "[get list]"},
		"both":                           {of(y, x), "[delete get list]"},
		"none":                           {of(), "[]"},
		"a bad selector":                 {of(x, bad), "clusterRoleSelectors[1]"},
	} {
		rules, err := Aggregate(test.role, all)
		verbs := []string{}
		for _, r := range rules {
			verbs = append(verbs, r.Verbs...)
		}
		got := fmt.Sprint(verbs)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, test.want) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}
