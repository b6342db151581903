package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// service has no selector, so that no controller makes its endpoints.
func (b *bench) service(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", b.prefix, i)},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
}

// slice has the service's endpoints, at addresses of the pod network that differ for the first
// 20,000 or so.
func (b *bench) slice(i, endpoints int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("%s-%d", b.prefix, i)
	port, portName, protocol, ready := int32(8080), "http", corev1.ProtocolTCP, true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "apibench"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
	}
	for e := range endpoints {
		at := (i*endpoints + e) % (254 * 250)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.244.%d.%d", 2+at/250, 2+at%250)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}
