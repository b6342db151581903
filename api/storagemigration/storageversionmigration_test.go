package storagemigration

import (
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestStorageVersionMigration(t *testing.T) {
	r := storageVersionMigrations()
	m := &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: "apps", Resource: "deployments"}},
	}
	apitest.Want(t, apitest.Create(r, m))
	apitest.Row(t, r.Row(m, time.Time{}), "m", "deployments.apps", "Unknown")
	bad := m.DeepCopy()
	bad.Spec.Resource = metav1.GroupResource{Group: "-"}
	apitest.Want(t, apitest.Create(r, bad), "spec.resource.resource: Required value: resource is required to be set", `spec.resource.group: Invalid value: "-"`)
	bad.Spec.Resource.Resource = "A"
	apitest.Want(t, apitest.Update(r, bad, m), `spec.resource.resource: Invalid value: "A"`, `spec.resource.group: Invalid value: "-"`, "spec: Invalid value")

	condition := func(kind storagemigrationv1.MigrationConditionType) metav1.Condition {
		return metav1.Condition{Type: string(kind), Status: "True", Reason: "R", LastTransitionTime: metav1.Unix(1, 0)}
	}
	done := m.DeepCopy()
	done.Status = storagemigrationv1.StorageVersionMigrationStatus{ResourceVersion: "5", Conditions: []metav1.Condition{condition("Succeeded")}}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", done, m))
	apitest.Row(t, r.Row(done, time.Time{}), "m", "deployments.apps", "Succeeded")
	undone := m.DeepCopy()
	undone.Status = storagemigrationv1.StorageVersionMigrationStatus{ResourceVersion: "x"}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", undone, done),
		`status.resourceVersion: Invalid value: "x": `, `status.resourceVersion: Invalid value: "x": field is immutable`,
		"status.conditions: Invalid value: null: Success condition cannot be set to false once it is true")
	both := m.DeepCopy()
	both.Status.Conditions = []metav1.Condition{condition("Succeeded"), condition("Failed")}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", both, m), "status.conditions: Invalid value: ")
	failed := m.DeepCopy()
	failed.Status.Conditions = []metav1.Condition{condition("Failed")}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", m.DeepCopy(), failed), "status.conditions: Invalid value: null: Failed condition cannot be set to false once it is true")
}
