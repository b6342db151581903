package sim

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestQuotaCounts(t *testing.T) {
	c := start(t, 1)
	ctx := t.Context()
	hard := corev1.ResourceList{}
	for _, n := range []corev1.ResourceName{"pods", "requests.cpu", "secrets", "count/configmaps", "count/deployments.apps", "services"} {
		hard[n] = resource.MustParse("10")
	}
	if _, err := c.Admin.CoreV1().ResourceQuotas("default").Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func(want map[corev1.ResourceName]string) func() string {
		return func() string {
			q, err := c.Admin.CoreV1().ResourceQuotas("default").Get(ctx, "q", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			for n, v := range want {
				got, ok := q.Status.Used[n]
				if !ok || got.Cmp(resource.MustParse(v)) != 0 {
					return fmt.Sprintf("%s is %s, want %s", n, got.String(), v)
				}
			}
			return ""
		}
	}
	// kube-root-ca.crt is a ConfigMap, the Service kubernetes is there.
	eventually(t, "counted", used(map[corev1.ResourceName]string{"pods": "0", "requests.cpu": "0", "secrets": "0", "count/configmaps": "1", "count/deployments.apps": "0", "services": "1"}))
	if _, err := c.Admin.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: template(nil).Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Admin.CoreV1().Secrets("default").Delete(ctx, "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a Secret given back", used(map[corev1.ResourceName]string{"secrets": "0"}))
	if err := c.Admin.CoreV1().Pods("default").Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a pod given back", used(map[corev1.ResourceName]string{"pods": "0", "requests.cpu": "0"}))
}
