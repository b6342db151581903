package webhook

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
)

func TestResolve(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	slice := func(name, service string, port *string, ready *bool, address string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: meta(name), AddressType: discoveryv1.AddressTypeIPv4,
			Ports:     []discoveryv1.EndpointPort{{Name: ptr.To("metrics"), Port: ptr.To[int32](9)}, {Name: port, Port: ptr.To[int32](8443)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}}}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		return s
	}
	caches := lookuptest.New(t,
		&corev1.Service{ObjectMeta: meta("named"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "metrics", Port: 90}, {Name: "https", Port: 443}}}},
		slice("named-1", "named", ptr.To("https"), nil, "10.0.0.1"),
		slice("named-2", "named", ptr.To("https"), ptr.To(false), "10.0.0.2"),
		slice("stray", "another", ptr.To("https"), nil, "10.0.0.3"),
		&corev1.Service{ObjectMeta: meta("plain"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}},
		slice("plain-1", "plain", nil, ptr.To(true), "10.0.0.4"),
		&corev1.Service{ObjectMeta: meta("idle"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}},
		&corev1.Service{ObjectMeta: meta("outside"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}},
	)
	for _, tt := range []struct {
		name string
		port int32
		want string
		err  string
	}{
		{"named", 443, "10.0.0.1:8443", ""},
		{"named", 90, "10.0.0.1:9", ""},
		{"named", 80, "", `no service port 80 found for service "named"`},
		{"plain", 443, "10.0.0.4:8443", ""},
		{"idle", 443, "", `no endpoints available for service "idle"`},
		{"outside", 443, "example.com:443", ""},
		{"missing", 443, "", "not found"},
	} {
		got, err := Resolve(t.Context(), caches, "ns", tt.name, tt.port)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s:%d: %q, %v; want %q, %q", tt.name, tt.port, got, err, tt.want, tt.err)
		}
	}
}
