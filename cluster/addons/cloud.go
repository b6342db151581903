package addons

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
)

// cloudControllers is the user, the ServiceAccount's role and the name of both.
const cloudControllers = "cloud-controller-manager"

// WithCloudControllers adds what the cloud's controllers need: the rights that a manifest for a
// cloud-controller-manager gives it, to the user and the ServiceAccount that it runs as.
func WithCloudControllers(p bootstrap.Policy) bootstrap.Policy {
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}, Resources: resources}
	}
	role := clusterRole("system:"+cloudControllers,
		rule("coordination.k8s.io", []string{"get", "list", "watch", "create", "update", "patch"}, "leases"),
		rule("", []string{"get", "list", "watch", "update", "patch", "delete"}, "nodes"),
		rule("", []string{"patch", "update"}, "nodes/status"),
		rule("", []string{"get", "list", "watch", "update", "patch"}, "services"),
		rule("", []string{"patch", "update"}, "services/status"),
		// --use-service-account-credentials
		rule("", []string{"get", "list", "watch", "create", "update"}, "serviceaccounts"),
		rule("", []string{"create"}, "serviceaccounts/token"),
		rule("", []string{"create", "patch", "update"}, "events"),
		rule("events.k8s.io", []string{"create", "patch", "update"}, "events"),
	)
	user := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:" + cloudControllers}
	p.ClusterRoles = append(p.ClusterRoles, role)
	bound := clusterBinding(role.Name, role.Name, user)
	bound.Subjects = append(bound.Subjects, account(cloudControllers))
	p.ClusterRoleBindings = append(p.ClusterRoleBindings, bound)
	return p
}
