package addons

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/skiff-k8s/skiff/api/metrics"
)

// metricsReader lets whoever may view a namespace see what its pods use, under the name and
// with the labels of metrics-server's manifests.
func metricsReader() *rbacv1.ClusterRole {
	role := clusterRole("system:aggregated-metrics-reader", rbacv1.PolicyRule{
		Verbs: []string{"get", "list", "watch"}, APIGroups: []string{metrics.GroupVersion.Group}, Resources: []string{metrics.Pods.Resource, metrics.Nodes.Resource},
	})
	role.Labels = map[string]string{}
	for _, to := range []string{"view", "edit", "admin"} {
		role.Labels["rbac.authorization.k8s.io/aggregate-to-"+to] = "true"
	}
	return role
}
