package resourcequota

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/api/quota"
)

// Kinds whose objects differ in what they use: they are looked at one by one.
var (
	pods     = quota.For(schema.GroupResource{Resource: "pods"})
	services = quota.For(schema.GroupResource{Resource: "services"})
	claims   = quota.For(schema.GroupResource{Resource: "persistentvolumeclaims"})
)

// countPrefix is that of the numbers of objects.
const countPrefix = "count/"

// sum adds to used, under those of a quota's names that the kind counts, what objects in its scopes use.
func sum[T runtime.Object](used corev1.ResourceList, kind *quota.Kind, q *corev1.ResourceQuota, names []corev1.ResourceName, objs []T, now time.Time) corev1.ResourceList {
	zero := corev1.ResourceList{}
	for _, n := range names {
		zero[n] = *resource.NewQuantity(0, resource.DecimalSI)
	}
	used = quota.Add(used, zero)
	for _, o := range objs {
		if kind.InScopes(&q.Spec, o) {
			used = quota.Add(used, quota.Only(kind.Usage(o, now), names))
		}
	}
	return used
}
