package rbac

import (
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestRules(t *testing.T) {
	role := &rbacv1.Role{Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}},
		{Verbs: []string{"get"}},
		{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz"}, Resources: []string{"pods"}},
	}}
	apitest.Want(t, apitest.Create(roles(), role),
		"rules[1].verbs: Required value",
		"rules[2].apiGroups: Required value: resource rules must supply at least one api group",
		"rules[2].resources: Required value: resource rules must supply at least one resource",
		`rules[3].nonResourceURLs: Invalid value: ["/healthz"]: namespaced rules cannot apply to non-resource URLs`,
		`rules[3].nonResourceURLs: Invalid value: ["/healthz"]: rules cannot apply to both regular resources and non-resource URLs`)
	apitest.Want(t, apitest.Create(clusterRoles(), &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"*"}}}}))
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"system:node": true, "UPPER case": true, "a/b": false, "..": false, "50%": false} {
		if got := len(roles().NameErrors(name, false)) == 0; got != ok {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestAggregation(t *testing.T) {
	r := clusterRoles()
	bad := metav1.LabelSelector{MatchLabels: map[string]string{"a": "not a value"}}
	c := &rbacv1.ClusterRole{AggregationRule: &rbacv1.AggregationRule{}}
	apitest.Want(t, apitest.Create(r, c), "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil")
	c.AggregationRule.ClusterRoleSelectors = []metav1.LabelSelector{bad}
	apitest.Want(t, apitest.Create(r, c), "aggregationRule.clusterRoleSelectors[0].matchLabels: Invalid value", "aggregationRule.clusterRoleSelectors[0]: Invalid value")
}

func TestBindings(t *testing.T) {
	b := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b", CreationTimestamp: metav1.Unix(1000, 0)},
		RoleRef:    rbacv1.RoleRef{Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: "jane"}, {Kind: "Group", Name: "devs"}, {Kind: "Group", Name: "ops"},
			{Kind: "ServiceAccount", Name: "sa", Namespace: "ns"}},
	}
	apitest.Want(t, apitest.Create(roleBindings(), b))
	if b.RoleRef.APIGroup != "rbac.authorization.k8s.io" || b.Subjects[0].APIGroup != "rbac.authorization.k8s.io" || b.Subjects[3].APIGroup != "" {
		t.Errorf("defaults: %+v", b)
	}
	apitest.Row(t, roleBindings().Row(b, time.Unix(1060, 0)), "b", "Role/reader", "60s", "jane", "devs, ops", "ns/sa")

	next := b.DeepCopy()
	next.RoleRef.Name = "writer"
	apitest.Want(t, apitest.Update(roleBindings(), next, b), "roleRef: Invalid value: {")

	bad := b.DeepCopy()
	bad.RoleRef = rbacv1.RoleRef{Kind: "Pod", Name: "a/b", APIGroup: "x"}
	bad.Subjects = []rbacv1.Subject{{Kind: "User", APIGroup: "y"}, {Kind: "ServiceAccount", Name: "A", APIGroup: "z"}, {Kind: "Pod", Name: "p"}}
	apitest.Want(t, apitest.Create(roleBindings(), bad),
		`roleRef.apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io"`,
		`roleRef.kind: Unsupported value: "Pod": supported values: "Role", "ClusterRole"`,
		`roleRef.name: Invalid value: "a/b": may not contain '/'`,
		`subjects[0].name: Required value`, `subjects[0].apiGroup: Unsupported value: "y"`,
		`subjects[1].name: Invalid value: "A"`, `subjects[1].apiGroup: Unsupported value: "z": supported values: ""`,
		`subjects[2].kind: Unsupported value: "Pod": supported values: "ServiceAccount", "User", "Group"`)

	c := &rbacv1.ClusterRoleBinding{RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "r"}, Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "sa"}}}
	apitest.Want(t, apitest.Create(clusterRoleBindings(), c),
		`roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"`, `subjects[0].namespace: Required value`)
}
