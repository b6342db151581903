package cluster

import (
	"reflect"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers"
	"github.com/skiff-k8s/skiff/network/cni"
	"github.com/skiff-k8s/skiff/network/routes"
)

func TestPodNetworkChange(t *testing.T) {
	text := func(s string) *string { return &s }
	port, off := uint16(4789), false
	for _, test := range []struct {
		to   PodNetworkChange
		want PodNetworkConfig
		err  string
	}{
		{PodNetworkChange{}, PodNetworkConfig{Mode: routes.Never, CNIConfDir: "/old"}, ""},
		{PodNetworkChange{Mode: text("auto"), VXLANPort: &port}, PodNetworkConfig{VXLANPort: 4789, CNIConfDir: "/old"}, ""},
		{PodNetworkChange{Mode: text("vxlan"), CNIConfDir: text(""), CNIBinDirs: []string{"/bin"}}, PodNetworkConfig{Mode: routes.Always, CNIBinDirs: []string{"/bin"}}, ""},
		{PodNetworkChange{Policy: &off}, PodNetworkConfig{Mode: routes.Never, CNIConfDir: "/old", NoPolicy: true}, ""},
		{PodNetworkChange{ProxyMode: text("iptables")}, PodNetworkConfig{Mode: routes.Never, CNIConfDir: "/old", ProxyMode: ProxyIPTables}, ""},
		{PodNetworkChange{ProxyMode: text("userspace")}, PodNetworkConfig{}, `--proxy-mode: "userspace" is no mode of a proxy; there are nftables, iptables, ipvs`},
		{PodNetworkChange{Mode: text("")}, PodNetworkConfig{}, `--pod-network=: must be auto, vxlan or routes`},
		{PodNetworkChange{Mode: text("host-gw")}, PodNetworkConfig{}, `--pod-network=host-gw: must be auto`},
		{PodNetworkChange{CNIConfDir: text("net.d")}, PodNetworkConfig{}, "--cni-conf-dir=net.d: must be absolute"},
		{PodNetworkChange{CNIBinDirs: []string{"/a", "b"}}, PodNetworkConfig{}, "--cni-bin-dir=b: must be absolute"},
	} {
		c := PodNetworkConfig{Mode: routes.Never, CNIConfDir: "/old"}
		changed, err := c.change(test.to)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%+v: error is %v, want %s", test.to, err, test.err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(c, test.want) || changed == reflect.DeepEqual(test.to, PodNetworkChange{}) {
			t.Errorf("%+v: got %+v, %t, %v, want %+v", test.to, c, changed, err, test.want)
		}
	}
}

func TestCNISandbox(t *testing.T) {
	s := containers.Sandbox{
		ID: "id", Namespace: "ns", Name: "pod", UID: "uid", NetNSPath: "/ns",
		PortMappings: []*runtimeapi.PortMapping{
			{ContainerPort: 8080},
			{ContainerPort: 53, HostPort: 5353, Protocol: runtimeapi.Protocol_UDP, HostIp: "192.0.2.1"},
		},
		Annotations: map[string]string{ingressBandwidth: "10M", "other": "x"},
		DNS:         &runtimeapi.DNSConfig{Servers: []string{"10.96.0.10"}, Searches: []string{"cluster.local"}, Options: []string{"ndots:5"}},
	}
	got, err := cniSandbox(s)
	want := cni.Sandbox{
		ID: "id", Namespace: "ns", Name: "pod", UID: "uid", NetNS: "/ns", Ingress: 10_000_000,
		Ports: []cni.Port{{HostPort: 5353, ContainerPort: 53, Protocol: "udp", HostIP: "192.0.2.1"}},
		DNS:   cni.DNS{Servers: []string{"10.96.0.10"}, Searches: []string{"cluster.local"}, Options: []string{"ndots:5"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"", "fast", "999", "2P", "-1M"} {
		s.Annotations = map[string]string{egressBandwidth: bad}
		if _, err := cniSandbox(s); err == nil || !strings.Contains(err.Error(), egressBandwidth) {
			t.Errorf("%q: error is %v, want the annotation's name", bad, err)
		}
	}
}
