package servicecidr

import (
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
)

func cidr(name, prefix string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{prefix}}}
}

func TestWaitsForAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := controllertest.New(t, cidr("main", "10.96.0.0/16"), cidr("extra", "10.97.0.0/24"), cidr("inner", "10.96.1.0/24"),
			&networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.97.0.7", Labels: map[string]string{networkingv1.LabelManagedBy: allocator}}},
			&networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.96.1.7", Labels: map[string]string{networkingv1.LabelManagedBy: allocator}}})
		c, err := New(e.Config)
		if err != nil {
			t.Fatal(err)
		}
		e.Start(c)
		client := e.Client.NetworkingV1().ServiceCIDRs()
		get := func(name string) (finalizers int, ready string) {
			t.Helper()
			s, err := client.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if cond := meta.FindStatusCondition(s.Status.Conditions, networkingv1.ServiceCIDRConditionReady); cond != nil {
				ready = string(cond.Status)
			}
			return len(s.Finalizers), ready
		}
		for _, name := range []string{"main", "extra", "inner"} {
			if n, ready := get(name); n != 1 || ready != "True" {
				t.Errorf("%s: %d finalizers, ready %s", name, n, ready)
			}
		}
		for _, name := range []string{"extra", "inner"} { // kubectl delete
			s, err := client.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			now := metav1.Now()
			s.DeletionTimestamp = &now
			if _, err := client.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		e.After(time.Minute)
		if n, ready := get("extra"); n != 1 || ready != "False" {
			t.Errorf("in use: %d finalizers, ready %s", n, ready)
		}
		if n, _ := get("inner"); n != 0 {
			t.Errorf("within another: %d finalizers", n)
		}
		if err := e.Client.NetworkingV1().IPAddresses().Delete(t.Context(), "10.97.0.7", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		if n, _ := get("extra"); n != 0 {
			t.Errorf("free: %d finalizers", n)
		}
	})
}
