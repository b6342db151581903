// Package rbac declares the resources of rbac.authorization.k8s.io.
//
// Owns: roles, clusterroles and their bindings as objects. Must not: decide who may do
// what: that, and the check against escalation, is the API server's.
package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/skiff-k8s/skiff/api"
)

var groupVersion = rbacv1.SchemeGroupVersion

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{clusterRoleBindings(), clusterRoles(), roleBindings(), roles()}
}

// nameErrors: names like system:node are fine here.
func nameErrors(name string, _ bool) []string { return content.IsPathSegmentName(name) }
