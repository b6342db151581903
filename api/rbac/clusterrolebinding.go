package rbac

import (
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func clusterRoleBindings() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ClusterRoleBinding", Plural: "clusterrolebindings",
		StoragePath: "clusterrolebindings",
		New:         func() api.Object { return &rbacv1.ClusterRoleBinding{} },
		NewList:     func() runtime.Object { return &rbacv1.ClusterRoleBindingList{} },
		Default:     api.Defaults(func(b *rbacv1.ClusterRoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) }),
		Strategy: api.Strategy{
			NameErrors: nameErrors,
			Validate: api.Check(func(b *rbacv1.ClusterRoleBinding) field.ErrorList {
				return validateBinding(&b.RoleRef, b.Subjects, false)
			}),
			ValidateUpdate: api.CheckUpdate(func(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
				errs := validateBinding(&b.RoleRef, b.Subjects, false)
				return append(errs, apivalidation.ValidateImmutableField(b.RoleRef, old.RoleRef, field.NewPath("roleRef"))...)
			}),
			CreateOnUpdate: true,
		},
		Columns: bindingColumns("clusterRoleBinding", rbacv1.ClusterRoleBinding{}.SwaggerDoc()["roleRef"]),
		Row: api.Cells(func(b *rbacv1.ClusterRoleBinding, now time.Time) []any {
			return bindingRow(&b.ObjectMeta, &b.RoleRef, b.Subjects, now)
		}),
	}
}
