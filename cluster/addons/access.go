package addons

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
)

const (
	// KubeletClientUser is who the API server is to kubelets (logs, exec, port-forward).
	KubeletClientUser = "kube-apiserver-kubelet-client"
	// BootstrapGroup is who bears a bootstrap token for nodes, as kubeadm makes them.
	BootstrapGroup = "system:bootstrappers:kubeadm:default-node-token"
)

// Policy is what the cluster grants beyond the standard policy: what its own certificates
// need, and under kubeadm's names what nodes need that join by a token.
func Policy() bootstrap.Policy {
	clusterInfo := grant{metav1.NamespacePublic, "kubeadm:bootstrap-signer-clusterinfo", "configmaps", clusterInfoName}
	clusterConfig := grant{metav1.NamespaceSystem, "kubeadm:nodes-kubeadm-config", "configmaps", kubeadmConfigName}
	kubeletConfig := grant{metav1.NamespaceSystem, "kubeadm:kubelet-config", "configmaps", kubeletConfigName}
	proxyConfig := grant{metav1.NamespaceSystem, "kube-proxy", "configmaps", proxyConfigName}
	joining, nodes := group(BootstrapGroup), group(user.NodesGroup)
	volumes, volumesBinding, ownVolumes, ownVolumesBinding := localPathAccess()
	return bootstrap.Policy{
		ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{
			clusterBinding("skiff:kubelet-api-admin", "system:kubelet-api-admin", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: KubeletClientUser}),
			// A node's proxy and DNS have its identity, and read what the node authorizer does not open.
			clusterBinding("skiff:node-proxier", "system:node-proxier", nodes),
			clusterBinding(networkPolicies, networkPolicies, nodes),
			clusterBinding("kubeadm:node-proxier", "system:node-proxier", account("kube-proxy")),
			clusterBinding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", joining),
			clusterBinding("kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", joining),
			clusterBinding("kubeadm:node-autoapprove-certificate-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", nodes),
			clusterBinding(getNodes, getNodes, joining),
			clusterBinding(approveServing, approveServing, account("certificate-controller")),
			volumesBinding,
		},
		ClusterRoles: []*rbacv1.ClusterRole{
			clusterRole(getNodes, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"}}),
			clusterRole(approveServing, rbacv1.PolicyRule{
				Verbs: []string{"approve"}, APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"signers"},
				ResourceNames: []string{certificatesv1.KubeletServingSignerName},
			}),
			// What a pod may reach follows from all pods' labels and addresses.
			clusterRole(networkPolicies,
				rbacv1.PolicyRule{Verbs: []string{"list", "watch"}, APIGroups: []string{networkingv1.GroupName}, Resources: []string{"networkpolicies"}},
				rbacv1.PolicyRule{Verbs: []string{"list", "watch"}, APIGroups: []string{""}, Resources: []string{"pods", "namespaces"}}),
			volumes, metricsReader(),
		},
		Roles: []*rbacv1.Role{clusterInfo.role(), clusterConfig.role(), kubeletConfig.role(), proxyConfig.role(), ownVolumes},
		RoleBindings: []*rbacv1.RoleBinding{
			// Whoever joins reads cluster-info before it has any credentials; the signatures in it prove that it is true.
			clusterInfo.to(rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user.Anonymous}),
			clusterConfig.to(joining, nodes),
			kubeletConfig.to(nodes, joining),
			proxyConfig.to(joining),
			ownVolumesBinding,
		},
	}
}

const (
	getNodes        = "kubeadm:get-nodes"
	approveServing  = "skiff:approve-kubelet-serving"
	networkPolicies = "skiff:node-network-policy"
)

func account(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: name}
}

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}

func clusterBinding(name, role string, to rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{to},
	}
}

// grant is a role to get one object, and its binding of the same name.
type grant struct{ namespace, name, resource, object string }

func (g grant) role() *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: g.name},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{g.resource}, ResourceNames: []string{g.object}}},
	}
}

func (g grant) to(subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: g.name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: g.name},
		Subjects:   subjects,
	}
}

// EnsureAccess makes what is missing of Policy where others run the API server; our own keeps it.
func EnsureAccess(ctx context.Context, client kubernetes.Interface) error {
	p, rbac, opts := Policy(), client.RbacV1(), metav1.CreateOptions{FieldManager: manager}
	for _, o := range p.ClusterRoles {
		if _, err := rbac.ClusterRoles().Create(ctx, o, opts); failed(err) {
			return fmt.Errorf("create cluster role %s: %w", o.Name, err)
		}
	}
	for _, o := range p.ClusterRoleBindings {
		if _, err := rbac.ClusterRoleBindings().Create(ctx, o, opts); failed(err) {
			return fmt.Errorf("create cluster role binding %s: %w", o.Name, err)
		}
	}
	for _, o := range p.Roles {
		if _, err := rbac.Roles(o.Namespace).Create(ctx, o, opts); failed(err) {
			return fmt.Errorf("create role %s: %w", o.Name, err)
		}
	}
	for _, o := range p.RoleBindings {
		if _, err := rbac.RoleBindings(o.Namespace).Create(ctx, o, opts); failed(err) {
			return fmt.Errorf("create role binding %s: %w", o.Name, err)
		}
	}
	return nil
}

func failed(err error) bool { return err != nil && !apierrors.IsAlreadyExists(err) }
