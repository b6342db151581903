package storage

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1000, 0)}
}

var now = time.Unix(1002, 0)

func TestStorageClass(t *testing.T) {
	r := storageClasses()
	c := &storagev1.StorageClass{ObjectMeta: named("local"), Provisioner: "example.com/local"}
	apitest.Want(t, apitest.Create(r, c))
	apitest.Row(t, r.Row(c, now), "local", "example.com/local", "Delete", "Immediate", false, "2s")
	c.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	if got := r.Row(c, now)[0]; got != "local (default)" {
		t.Error(got)
	}
	zone := corev1.TopologySelectorTerm{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"a", "a"}}}}
	bad := &storagev1.StorageClass{ObjectMeta: named("x"), ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimRecycle),
		VolumeBindingMode: ptr.To[storagev1.VolumeBindingMode]("Later"), Parameters: map[string]string{"": strings.Repeat("x", 256<<10+1)},
		AllowedTopologies: []corev1.TopologySelectorTerm{zone, zone}}
	apitest.Want(t, apitest.Create(r, bad), "provisioner: Required value", `reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"`,
		`volumeBindingMode: Unsupported value: "Later": supported values: "Immediate", "WaitForFirstConsumer"`,
		`parameters: Invalid value: "": field can not be empty.`, "parameters: Too long",
		`allowedTopologies[0].matchLabelExpressions[0].values[1]: Duplicate value: "a"`, `allowedTopologies[1].matchLabelExpressions[0].values[1]: Duplicate value: "a"`,
		`allowedTopologies[1].matchLabelExpressions: Duplicate value: ""`)
	next := c.DeepCopy()
	next.Provisioner, next.Parameters = "other", map[string]string{"a": "b"}
	next.AllowVolumeExpansion = ptr.To(true)
	apitest.Want(t, apitest.Update(r, next, c), "provisioner: Invalid value", "parameters: Invalid value")
}

func TestCSIDriver(t *testing.T) {
	r := csiDrivers()
	d := &storagev1.CSIDriver{ObjectMeta: named("csi.example.com")}
	apitest.Want(t, apitest.Create(r, d))
	apitest.Row(t, r.Row(d, now), "csi.example.com", true, false, false, "<unset>", false, "Persistent", "2s")
	next := d.DeepCopy()
	next.Spec.AttachRequired = ptr.To(false)
	next.Spec.FSGroupPolicy = ptr.To[storagev1.FSGroupPolicy]("Some")
	next.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "a", ExpirationSeconds: ptr.To[int64](1)}, {Audience: "a"}}
	apitest.Want(t, apitest.Update(r, next, d), "spec.attachedRequired: Invalid value: false: field is immutable",
		`spec.fsGroupPolicy: Unsupported value: "Some": supported values: "File", "None", "ReadWriteOnceWithFSType"`,
		"spec.tokenRequests[0].expirationSeconds: Invalid value: 1", `spec.tokenRequests[1].audience: Duplicate value: "a"`)
	if len(csiDriverWarnings(next, d)) != 1 || len(csiDriverWarnings(next, next)) != 0 {
		t.Error("warnings")
	}
}

func TestCSINode(t *testing.T) {
	r := csiNodes()
	driver := storagev1.CSINodeDriver{Name: "csi.example.com", NodeID: "n1", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](5)}}
	n := &storagev1.CSINode{ObjectMeta: named("n1"), Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{driver}}}
	apitest.Want(t, apitest.Create(r, n))
	apitest.Row(t, r.Row(n, now), "n1", int64(1), "2s")
	next := n.DeepCopy()
	next.Spec.Drivers[0].Allocatable.Count = ptr.To[int32](7)
	apitest.Want(t, apitest.Update(r, next, n))
	next.Spec.Drivers[0].NodeID = "n2"
	next.Spec.Drivers = append(next.Spec.Drivers, storagev1.CSINodeDriver{Name: "b", TopologyKeys: []string{"z", "z"}})
	apitest.Want(t, apitest.Update(r, next, n), "spec.drivers: Invalid value", "spec.drivers[1].nodeID: Required value", `spec.drivers[1]: Duplicate value: "z"`)
}

func TestOthers(t *testing.T) {
	capacity := &storagev1.CSIStorageCapacity{ObjectMeta: named("c"), StorageClassName: "local", Capacity: ptr.To(resource.MustParse("1Gi"))}
	apitest.Want(t, apitest.Create(csiStorageCapacities(), capacity))
	apitest.Row(t, csiStorageCapacities().Row(capacity, now), "c", "local", "1Gi")
	next := capacity.DeepCopy()
	next.StorageClassName, next.Capacity = "B_", ptr.To(resource.MustParse("-1"))
	apitest.Want(t, apitest.Update(csiStorageCapacities(), next, capacity), `storageClassName: Invalid value: "B_": a lowercase`,
		`capacity: Invalid value: "-1": must be greater than or equal to 0`, `storageClassName: Invalid value: "B_": field is immutable`)

	a := &storagev1.VolumeAttachment{ObjectMeta: named("a"), Spec: storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: "n1",
		Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv")}}, Status: storagev1.VolumeAttachmentStatus{Attached: true}}
	apitest.Want(t, apitest.Create(volumeAttachments(), a))
	apitest.Row(t, volumeAttachments().Row(a, now), "a", "csi.example.com", "pv", "n1", false, "2s")
	attached := a.DeepCopy()
	attached.Spec.NodeName = "n2"
	attached.Status.Attached = true
	attached.Status.AttachError = &storagev1.VolumeError{ErrorCode: ptr.To[int32](-1)}
	apitest.Want(t, apitest.UpdateSub(t, volumeAttachments(), "status", attached, a), "status.attachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive")
	if attached.Spec.NodeName != "n1" {
		t.Error("a status update changes the spec")
	}
	attached.Spec.Source.InlineVolumeSpec = &corev1.PersistentVolumeSpec{}
	apitest.Want(t, apitest.Create(volumeAttachments(), attached), "spec.source: Forbidden: must specify exactly one of inlineVolumeSpec and persistentVolumeName")

	class := &storagev1.VolumeAttributesClass{ObjectMeta: named("fast"), DriverName: "csi.example.com"}
	apitest.Want(t, apitest.Create(volumeAttributesClasses(), class), "parameters: Required value: must contain at least one key/value pair")
}
