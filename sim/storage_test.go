package sim

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestClaimBindsAndReleases(t *testing.T) {
	c := start(t, 1)
	ctx := t.Context()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}, StorageClassName: "manual", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain}}
	if _, err := c.Admin.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	phase := func(want corev1.PersistentVolumePhase) func() string {
		return func() string {
			v, err := c.Admin.CoreV1().PersistentVolumes().Get(ctx, "disk", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if v.Status.Phase != want {
				return fmt.Sprintf("%s, claim %v", v.Status.Phase, v.Spec.ClaimRef)
			}
			return ""
		}
	}
	eventually(t, "available", phase(corev1.VolumeAvailable))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("manual"),
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	if _, err := c.Admin.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "bound", phase(corev1.VolumeBound))
	eventually(t, "claim bound", func() string {
		p, err := c.Admin.CoreV1().PersistentVolumeClaims("default").Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if q := p.Status.Capacity[corev1.ResourceStorage]; p.Status.Phase != corev1.ClaimBound || p.Spec.VolumeName != "disk" || q.String() != "2Gi" {
			return fmt.Sprintf("%+v", p.Status)
		}
		return ""
	})
	if err := c.Admin.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "claim gone", func() string {
		return gone(c.Admin.CoreV1().PersistentVolumeClaims("default").Get(ctx, "data", metav1.GetOptions{}))
	})
	eventually(t, "released", phase(corev1.VolumeReleased))
}

func TestBudgetGuardsEviction(t *testing.T) {
	c := start(t, 1)
	ctx := t.Context()
	for i := range 2 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Labels: map[string]string{"app": "x"}}, Spec: template(nil).Spec}
		if _, err := c.Admin.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}}
	if _, err := c.Admin.PolicyV1().PodDisruptionBudgets("default").Create(ctx, b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	allowed := func(n int32) func() string {
		return func() string {
			b, err := c.Admin.PolicyV1().PodDisruptionBudgets("default").Get(ctx, "x", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if b.Status.DisruptionsAllowed != n || b.Status.ObservedGeneration != b.Generation {
				return fmt.Sprintf("%+v", b.Status)
			}
			return ""
		}
	}
	eventually(t, "one may go", allowed(1))
	evict := func(name string) error {
		return c.Admin.PolicyV1().Evictions("default").Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}})
	}
	if err := evict("p0"); err != nil {
		t.Fatal(err)
	}
	if err := evict("p1"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the second eviction: %v, want too many requests", err)
	}
	eventually(t, "none may go", allowed(0))
}

func TestMirrorsEndpoints(t *testing.T) {
	c := start(t, 0)
	ctx := t.Context()
	if _, err := c.Admin.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: "192.0.2.7"}}, Ports: []corev1.EndpointPort{{Port: 8080}}}}}
	if _, err := c.Admin.CoreV1().Endpoints("default").Create(ctx, e, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "mirrored", func() string {
		list, err := c.Admin.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=ext"})
		if err != nil {
			return err.Error()
		}
		if len(list.Items) != 1 || list.Items[0].Endpoints[0].Addresses[0] != "192.0.2.7" || *list.Items[0].Ports[0].Port != 8080 {
			return fmt.Sprintf("%+v", list.Items)
		}
		return ""
	})
	list, err := c.Admin.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d slices of the Service kubernetes, %v", len(list.Items), err)
	}
	if err := c.Admin.CoreV1().Endpoints("default").Delete(ctx, "ext", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gone", func() string {
		list, err := c.Admin.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=ext"})
		if err != nil || len(list.Items) > 0 {
			return fmt.Sprintf("%d slices, %v", len(list.Items), err)
		}
		return ""
	})
}

func TestVolumesFollowPods(t *testing.T) {
	c := start(t, 2)
	ctx := t.Context()
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	if _, err := c.Admin.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &wait}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("local-", i)}, Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/srv"}}, StorageClassName: "local",
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"node-1"}}}}}}}}}
		if _, err := c.Admin.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	l := map[string]string{"app": "db"}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), ServiceName: "db", PodManagementPolicy: appsv1.ParallelPodManagement,
		Selector: &metav1.LabelSelector{MatchLabels: l}, Template: template(l),
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("local"),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}}}}
	if _, err := c.Admin.AppsV1().StatefulSets("default").Create(ctx, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two run where the volumes are, the third waits", func() string {
		pods, err := c.Admin.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		running, waiting := 0, ""
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.Spec.NodeName == "node-1" {
				running++
				continue
			}
			for _, cond := range p.Status.Conditions {
				if cond.Type == corev1.PodScheduled {
					waiting += cond.Message
				}
			}
		}
		const want = "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
		if running != 2 || waiting != want {
			return fmt.Sprintf("%d run, the third says %q", running, waiting)
		}
		return ""
	})
}
