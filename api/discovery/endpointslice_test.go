package discovery

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func slice(change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-abc", Namespace: "default", CreationTimestamp: metav1.Unix(1000, 0)},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.5"}, NodeName: ptr.To("n1")}},
	}
	if change != nil {
		change(s)
	}
	return s
}

func TestDefaults(t *testing.T) {
	s := slice(func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].DeprecatedTopology = map[string]string{"kubernetes.io/hostname": "n9"}
	})
	apitest.Want(t, apitest.Create(endpointSlices(), s))
	if *s.Ports[0].Name != "" || *s.Ports[0].Protocol != "TCP" {
		t.Errorf("%+v", s.Ports[0])
	}
	if s.Endpoints[0].DeprecatedTopology != nil {
		t.Error("deprecatedTopology can be written")
	}
}

func TestValidation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*discoveryv1.EndpointSlice)
		errs   []string
	}{
		"no type":      {func(s *discoveryv1.EndpointSlice) { s.AddressType = "" }, []string{"addressType: Required value"}},
		"type":         {func(s *discoveryv1.EndpointSlice) { s.AddressType = "IPX" }, []string{`addressType: Unsupported value: "IPX": supported values: "FQDN", "IPv4", "IPv6"`}},
		"no addresses": {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = nil }, []string{"endpoints[0].addresses: Required value"}},
		"no IP":        {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "web" }, []string{`endpoints[0].addresses[0]: Invalid value: "web": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`}},
		"IPv6 in IPv4": {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "fd00::1" }, []string{`endpoints[0].addresses: Invalid value: "fd00::1": must be an IPv4 address`}},
		"loopback":     {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "127.0.0.1" }, []string{`endpoints[0].addresses[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`}},
		"link-local":   {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "169.254.1.1" }, []string{`endpoints[0].addresses[0]: Invalid value: "169.254.1.1": may not be in the link-local range`}},
		"unspecified":  {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "0.0.0.0" }, []string{`endpoints[0].addresses[0]: Invalid value: "0.0.0.0": may not be unspecified (0.0.0.0)`}},
		"names": {func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].NodeName, s.Endpoints[0].Hostname = ptr.To("N_1"), ptr.To("a.b")
		},
			[]string{`endpoints[0].nodeName: Invalid value: "N_1"`, `endpoints[0].hostname: Invalid value: "a.b"`}},
		"ports": {func(s *discoveryv1.EndpointSlice) {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Protocol: ptr.To(corev1.Protocol("ICMP")), AppProtocol: ptr.To("a b")}, discoveryv1.EndpointPort{Name: ptr.To("A")})
		}, []string{`ports[1].name: Duplicate value: ""`, `ports[1].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"`,
			`ports[1].appProtocol: Invalid value: "a b"`, `ports[2].name: Invalid value: "A"`}},
		"hints": {func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "a"}, {Name: "b c"}}}
		}, []string{`endpoints[0].hints.forZones[1].name: Duplicate value: "a"`, `endpoints[0].hints.forZones[2].name: Invalid value: "b c"`}},
		"too many": {func(s *discoveryv1.EndpointSlice) { s.Endpoints = make([]discoveryv1.Endpoint, 1001) }, []string{"endpoints: Too many: 1001: must have at most 1000 items"}},
	} {
		t.Run(name, func(t *testing.T) {
			apitest.Want(t, apitest.Create(endpointSlices(), slice(c.change)), c.errs...)
		})
	}
}

func TestUpdate(t *testing.T) {
	r := endpointSlices()
	old := slice(nil)
	apitest.Create(r, old)
	next := old.DeepCopy()
	next.Annotations = map[string]string{"a": "b"}
	if r.SpecChanged(next, old) {
		t.Error("annotations do not bump the generation")
	}
	next.Labels = map[string]string{"a": "b"}
	if !r.SpecChanged(next, old) {
		t.Error("labels bump the generation")
	}
	next.AddressType = discoveryv1.AddressTypeIPv6
	next.Endpoints[0].Addresses[0] = "fd00::1"
	apitest.Want(t, apitest.Update(r, next, old), `addressType: Invalid value: null: field is immutable`)

	// Endpoints that are invalid by now stay as long as nobody changes them.
	old.Endpoints[0].Addresses[0] = "127.0.0.1"
	next = old.DeepCopy()
	next.Labels = map[string]string{"a": "b"}
	apitest.Want(t, apitest.Update(r, next, old))
}

func TestTable(t *testing.T) {
	r := endpointSlices()
	s := slice(nil)
	apitest.Create(r, s)
	apitest.Row(t, r.Row(s, time.Unix(1005, 0)), "web-abc", "IPv4", "80", "10.244.0.5", "5s")
	s.Ports = nil
	s.Endpoints = nil
	for i := range 5 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.0.0." + strconv.Itoa(i)}})
	}
	apitest.Row(t, r.Row(s, time.Unix(1005, 0)), "web-abc", "IPv4", "<unset>", "10.0.0.0,10.0.0.1,10.0.0.2 + 2 more...", "5s")
}
