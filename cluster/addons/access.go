package addons

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// KubeletClientUser is who the API server is to kubelets (logs, exec, port-forward).
const KubeletClientUser = "kube-apiserver-kubelet-client"

// EnsureAccess grants what the cluster's own certificates need beyond the standard policy.
func EnsureAccess(ctx context.Context, client kubernetes.Interface) error {
	b := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "skiff:kubelet-api-admin"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: KubeletClientUser}},
	}
	_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, b, metav1.CreateOptions{FieldManager: manager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create cluster role binding %s: %w", b.Name, err)
	}
	return nil
}
