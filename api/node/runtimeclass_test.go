package node

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestRuntimeClass(t *testing.T) {
	r := runtimeClasses()
	c := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata", CreationTimestamp: metav1.Unix(1000, 0)}, Handler: "kata",
		Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{"memory": resource.MustParse("64Mi")}}}
	apitest.Want(t, apitest.Create(r, c))
	apitest.Row(t, r.Row(c, time.Unix(1002, 0)), "kata", "kata", "2s")
	twice := corev1.Toleration{Key: "a", Operator: "Exists"}
	bad := c.DeepCopy()
	bad.Handler = "K_"
	bad.Overhead.PodFixed["cpu"] = resource.MustParse("-1")
	bad.Scheduling = &nodev1.Scheduling{NodeSelector: map[string]string{"a b": ""}, Tolerations: []corev1.Toleration{twice, twice, {}}}
	apitest.Want(t, apitest.Create(r, bad), `handler: Invalid value: "K_"`, `overhead.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0`,
		`scheduling.nodeSelector: Invalid value: "a b"`, "scheduling.tolerations[1]: Duplicate value", "scheduling.tolerations[2].operator: Invalid value")
	next := c.DeepCopy()
	next.Handler = "other"
	apitest.Want(t, apitest.Update(r, next, c), `handler: Invalid value: null: field is immutable`)
	apitest.Want(t, apitest.Create(r, &nodev1.RuntimeClass{}), "handler: Required value")
}
