package addons

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/localpath"
)

const (
	// LocalPathAccount is the ServiceAccount in kube-system that provisions local-path volumes.
	LocalPathAccount = "local-path-provisioner"

	localPathClass = "local-path"
	localPathRole  = "skiff:local-path-provisioner"
	// localPathRemoved is the ConfigMap of the provisioner.
	localPathRemoved = "local-path-removed"

	defaultClass = "storageclass.kubernetes.io/is-default-class"
	// madeName is the ConfigMap that has what was made once and belongs to the user since.
	madeName = "skiff-addons"
	madeKey  = "storageclass." + localPathClass
)

// EnsureStorageClass makes the StorageClass local-path once in the life of a cluster, as the
// default one unless there is another. A user who changes or deletes it keeps his will.
func EnsureStorageClass(ctx context.Context, client kubernetes.Interface) error {
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	made, err := maps.Get(ctx, madeName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	switch {
	case missing:
		made = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: madeName}}
	case err != nil:
		return fmt.Errorf("read config map %s: %w", madeName, err)
	case made.Data[madeKey] != "":
		return nil
	}
	classes, err := client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list storage classes: %w", err)
	}
	isDefault := "true"
	for _, c := range classes.Items {
		if c.Annotations[defaultClass] == "true" {
			isDefault = "false"
		}
	}
	opts := metav1.CreateOptions{FieldManager: manager}
	_, err = client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: localPathClass, Annotations: map[string]string{defaultClass: isDefault}},
		Provisioner:       localpath.Provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete),
		AllowVolumeExpansion: ptr.To(false),
	}, opts)
	if failed(err) {
		return fmt.Errorf("create storage class %s: %w", localPathClass, err)
	}
	if made.Data == nil {
		made.Data = map[string]string{}
	}
	made.Data[madeKey] = "made"
	if missing {
		_, err = maps.Create(ctx, made, opts)
	} else {
		_, err = maps.Update(ctx, made, metav1.UpdateOptions{FieldManager: manager})
	}
	if err != nil {
		return fmt.Errorf("write config map %s: %w", madeName, err)
	}
	return nil
}

// localPathAccess is what the provisioner may. Nodes need nothing beyond their own Node.
func localPathAccess() (*rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding, *rbacv1.Role, *rbacv1.RoleBinding) {
	rule := func(group, resource string, names []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
	}
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: LocalPathAccount}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: localPathRole}, Rules: []rbacv1.PolicyRule{
		rule("", "persistentvolumes", nil, "get", "list", "watch", "create", "update", "delete"),
		rule("", "persistentvolumeclaims", nil, "get", "list", "watch", "update"),
		rule(storagev1.GroupName, "storageclasses", nil, "get", "list", "watch"),
		rule("", "nodes", nil, "get", "list", "watch", "patch"),
		rule("", "events", nil, "create", "patch", "update"),
	}}
	own := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: localPathRole}, Rules: []rbacv1.PolicyRule{
		rule("", "configmaps", []string{localPathRemoved}, "get", "update"),
		rule("", "configmaps", nil, "create"),
	}}
	return role, clusterBinding(localPathRole, localPathRole, account), own, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: localPathRole},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: localPathRole}, Subjects: []rbacv1.Subject{account},
	}
}
