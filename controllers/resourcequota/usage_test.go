package resourcequota

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/quota"
)

func list(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

func TestSum(t *testing.T) {
	now := time.Unix(1e9, 0)
	pod := func(cpu string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list("cpu", cpu), Limits: list("memory", "64Mi", "example.com/gpu", "1")}}}}}
		if change != nil {
			change(p)
		}
		return p
	}
	ended := pod("1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	stuck := pod("1", func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(now.Add(-time.Minute))), ptr.To[int64](30)
	})
	brief := pod("2", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) })
	svc := func(kind corev1.ServiceType, ports int) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Type: kind, Ports: make([]corev1.ServicePort, ports)}}
	}
	claim := func(class, size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: list("storage", size)}}}
	}
	terminating := corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}}
	for name, test := range map[string]struct {
		kind *quota.Kind
		spec corev1.ResourceQuotaSpec
		hard corev1.ResourceList
		pods []*corev1.Pod
		svcs []*corev1.Service
		pvcs []*corev1.PersistentVolumeClaim
		want corev1.ResourceList
	}{
		"none": {kind: pods, hard: list("pods", "5", "cpu", "1"), want: list("pods", "0", "cpu", "0")},
		"pods": {kind: pods, hard: list("pods", "5", "count/pods", "5", "requests.cpu", "9", "limits.memory", "1Gi"), pods: []*corev1.Pod{pod("500m", nil), brief, ended, stuck},
			want: list("pods", "2", "count/pods", "4", "requests.cpu", "2500m", "limits.memory", "128Mi")},
		"a scope": {kind: pods, spec: terminating, hard: list("cpu", "9"), pods: []*corev1.Pod{pod("500m", nil), brief}, want: list("cpu", "2")},
		"services": {kind: services, hard: list("services", "9", "services.nodeports", "9", "services.loadbalancers", "1", "count/services", "9"),
			svcs: []*corev1.Service{svc(corev1.ServiceTypeClusterIP, 1), svc(corev1.ServiceTypeNodePort, 2), svc(corev1.ServiceTypeLoadBalancer, 3)},
			want: list("services", "3", "services.nodeports", "5", "services.loadbalancers", "1", "count/services", "3")},
		"a scope that is not of services": {kind: services, spec: terminating, hard: list("services", "9"), svcs: []*corev1.Service{svc(corev1.ServiceTypeClusterIP, 1)}, want: list("services", "0")},
		"claims": {kind: claims, hard: list("persistentvolumeclaims", "9", "requests.storage", "9Gi", "fast.storageclass.storage.k8s.io/requests.storage", "9Gi", "none.storageclass.storage.k8s.io/persistentvolumeclaims", "0"),
			pvcs: []*corev1.PersistentVolumeClaim{claim("fast", "1Gi"), claim("slow", "2Gi")},
			want: list("persistentvolumeclaims", "2", "requests.storage", "3Gi", "fast.storageclass.storage.k8s.io/requests.storage", "1Gi", "none.storageclass.storage.k8s.io/persistentvolumeclaims", "0")},
	} {
		t.Run(name, func(t *testing.T) {
			q := &corev1.ResourceQuota{Spec: test.spec}
			names := test.kind.Counts(quota.Names(test.hard))
			var got corev1.ResourceList
			switch test.kind {
			case pods:
				got = sum(nil, pods, q, names, test.pods, now)
			case services:
				got = sum(nil, services, q, names, test.svcs, now)
			default:
				got = sum(nil, claims, q, names, test.pvcs, now)
			}
			if len(got) != len(test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			for n, w := range test.want {
				if g := got[n]; g.Cmp(w) != 0 {
					t.Errorf("%s is %s, want %s", n, g.String(), w.String())
				}
			}
		})
	}
}
