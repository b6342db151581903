package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestServiceInformersHoldNoManagedFields: with ten thousand Services they are most of what a node
// would hold.
func TestServiceInformersHoldNoManagedFields(t *testing.T) {
	owned := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "n", Name: name, Labels: map[string]string{"a": "b"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate}}}
	}
	shared := serviceInformers(fake.NewClientset(
		&corev1.Service{ObjectMeta: owned("s"), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9"}},
		&discoveryv1.EndpointSlice{ObjectMeta: owned("e"), AddressType: discoveryv1.AddressTypeIPv4}))
	services, slices := shared.Core().V1().Services(), shared.Discovery().V1().EndpointSlices()
	services.Informer()
	slices.Informer()
	shared.Start(t.Context().Done())
	shared.WaitForCacheSync(t.Context().Done())
	svc, err := services.Lister().Services("n").Get("s")
	if err != nil {
		t.Fatal(err)
	}
	slice, err := slices.Lister().EndpointSlices("n").Get("e")
	if err != nil {
		t.Fatal(err)
	}
	if svc.ManagedFields != nil || slice.ManagedFields != nil {
		t.Errorf("held: %v, %v", svc.ManagedFields, slice.ManagedFields)
	}
	if svc.Spec.ClusterIP != "10.96.0.9" || slice.Labels["a"] != "b" {
		t.Errorf("the rest is lost: %v, %v", svc, slice)
	}
}
