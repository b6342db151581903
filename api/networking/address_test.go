package networking

import (
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestServiceCIDR(t *testing.T) {
	r := serviceCIDRs()
	cidr := func(list ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", CreationTimestamp: metav1.Unix(1000, 0)},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: list}}
	}
	c := cidr("10.96.0.0/16")
	c.Status.Conditions = []metav1.Condition{{Type: "Ready"}}
	apitest.Want(t, apitest.Create(r, c))
	if c.Status.Conditions != nil {
		t.Error("create keeps a status")
	}
	apitest.Row(t, r.Row(cidr("10.0.0.0/8", "fd00::/64"), time.Unix(1002, 0)), "kubernetes", "10.0.0.0/8,fd00::/64", "2s")
	apitest.Want(t, apitest.Create(r, cidr()), "spec.cidrs: Required value: at least one CIDR required")
	apitest.Want(t, apitest.Create(r, cidr("10.0.0.1/8")), `spec.cidrs[0]: Invalid value: "10.0.0.1/8": must not have bits set beyond the prefix length`)
	apitest.Want(t, apitest.Create(r, cidr("10.0.0.0/8", "11.0.0.0/8")), "spec.cidrs: Invalid value: [\"10.0.0.0/8\",\"11.0.0.0/8\"]: may specify no more than one IP for each IP family")
	apitest.Want(t, apitest.Create(r, cidr("10.0.0.0/8", "fd00::/64", "11.0.0.0/8")), "spec.cidrs: Invalid value")

	apitest.Want(t, apitest.Update(r, cidr("10.96.0.0/16", "fd00::/64"), c))
	apitest.Want(t, apitest.Update(r, cidr("10.97.0.0/16"), c), `spec.cidrs[0]: Invalid value: "10.97.0.0/16": field is immutable`)
	apitest.Want(t, apitest.Update(r, cidr(), c), "spec.cidrs: Invalid value")

	next := cidr("1.0.0.0/8")
	next.Status.Conditions = []metav1.Condition{{Type: "Ready"}}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", next, c))
	if next.Spec.CIDRs[0] != "10.96.0.0/16" || len(next.Status.Conditions) != 1 {
		t.Errorf("%+v", next)
	}
}

func TestIPAddress(t *testing.T) {
	r := ipAddresses()
	a := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.96.0.1"},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "kubernetes"}}}
	apitest.Want(t, apitest.Create(r, a))
	apitest.Row(t, r.Row(a, time.Time{}), "10.96.0.1", "services/default/kubernetes")
	for name, ok := range map[string]bool{"10.96.0.1": true, "fd00::1": true, "fd00::0001": false, "010.1.1.1": false, "web": false} {
		if got := len(r.NameErrors(name, false)) == 0; got != ok {
			t.Errorf("%s: %v", name, got)
		}
	}
	next := a.DeepCopy()
	next.Spec.ParentRef = nil
	apitest.Want(t, apitest.Update(r, next, a), "spec.parentRef: Required value", "spec.parentRef: Invalid value: null: field is immutable")
	bad := a.DeepCopy()
	bad.Spec.ParentRef = &networkingv1.ParentReference{Group: "A", Namespace: "a/b"}
	apitest.Want(t, apitest.Create(r, bad), `spec.parentRef.group: Invalid value: "A"`, "spec.parentRef.resource: Required value",
		"spec.parentRef.name: Required value", `spec.parentRef.namespace: Invalid value: "a/b"`)
}
