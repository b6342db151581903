package api

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestInternal(t *testing.T) {
	for _, c := range []struct {
		name string
		in   any
		want string
	}{
		{"nothing", nil, `null`},
		{"no struct", "x", `"x"`},
		{"of the machinery", metav1.LabelSelector{}, `{}`},
		{"struct", rbacv1.RoleRef{Kind: "Role", Name: "a"}, `{"APIGroup":"","Kind":"Role","Name":"a"}`},
		{"pointer", &rbacv1.RoleRef{Name: "a"}, `{"APIGroup":"","Kind":"","Name":"a"}`},
		{"list", []rbacv1.RoleRef{{Name: "a"}}, `[{"APIGroup":"","Kind":"","Name":"a"}]`},
		{"empty fields", policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1))},
			`{"MinAvailable":1,"Selector":null,"MaxUnavailable":null,"UnhealthyPodEvictionPolicy":null}`},
		{"metadata and embedded", corev1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}},
			`{"labels":{"a":"b"},"Spec":{"AccessModes":null,"Selector":null,"Resources":{"Limits":null,"Requests":null},"VolumeName":"","StorageClassName":null,"VolumeMode":null,"DataSource":null,"DataSourceRef":null,"VolumeAttributesClassName":null}}`},
		{"embedded source", corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := json.Marshal(Internal(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" { // too long to spell out: the source's fields stand beside the name
				var m map[string]any
				if err := json.Unmarshal(b, &m); err != nil || m["Name"] != "v" || m["EmptyDir"] == nil || m["HostPath"] != nil {
					t.Errorf("got %s, %v", b, err)
				}
				return
			}
			if string(b) != c.want {
				t.Errorf("got  %s\nwant %s", b, c.want)
			}
		})
	}
}
