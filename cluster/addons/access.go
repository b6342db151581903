package addons

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
)

// KubeletClientUser is who the API server is to kubelets (logs, exec, port-forward).
const KubeletClientUser = "kube-apiserver-kubelet-client"

// Policy is what the cluster's own certificates need beyond the standard policy.
func Policy() bootstrap.Policy {
	return bootstrap.Policy{ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{
		clusterBinding("skiff:kubelet-api-admin", "system:kubelet-api-admin", rbacv1.UserKind, KubeletClientUser),
		// A node's proxy and DNS have its identity, and read what the node authorizer does not open.
		clusterBinding("skiff:node-proxier", "system:node-proxier", rbacv1.GroupKind, user.NodesGroup),
	}}
}

func clusterBinding(name, role, kind, to string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: kind, Name: to}},
	}
}

// EnsureAccess makes what is missing of Policy where others run the API server; our own keeps it.
func EnsureAccess(ctx context.Context, client kubernetes.Interface) error {
	for _, b := range Policy().ClusterRoleBindings {
		_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, b, metav1.CreateOptions{FieldManager: manager})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create cluster role binding %s: %w", b.Name, err)
		}
	}
	return nil
}
