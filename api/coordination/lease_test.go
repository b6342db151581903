package coordination

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestLease(t *testing.T) {
	r := leases()
	if !r.CreateOnUpdate || !r.RequireRevision {
		t.Error("leases are made by PUT, and never overwritten blindly")
	}
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", CreationTimestamp: metav1.Unix(1000, 0)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("n1"), LeaseDurationSeconds: ptr.To[int32](40), Strategy: ptr.To(coordinationv1.OldestEmulationVersion)},
	}
	apitest.Want(t, apitest.Create(r, l))
	if l.Spec.Strategy != nil {
		t.Error("coordinated leader election is off")
	}
	apitest.Row(t, r.Row(l, time.Unix(1002, 0)), "n1", "n1", "2s")
	next := l.DeepCopy()
	next.Spec.LeaseDurationSeconds, next.Spec.LeaseTransitions = ptr.To[int32](0), ptr.To[int32](-1)
	apitest.Want(t, apitest.Update(r, next, l),
		"spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
		"spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0")

	// Objects of a cluster that had the feature on keep it.
	l.Spec.Strategy, l.Spec.PreferredHolder = ptr.To[coordinationv1.CoordinatedLeaseStrategy](""), ptr.To("n2")
	next = l.DeepCopy()
	apitest.Want(t, apitest.Update(r, next, l), `spec.strategy.strategy: Unsupported value: "": supported values: "OldestEmulationVersion"`,
		"spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined")
}
