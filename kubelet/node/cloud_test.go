package node

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/kubelet/internal/fakeapi"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"

	"log/slog"

	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// A node registers as its provider's controller wants it, and what that says of addresses stays.
func TestExternalCloud(t *testing.T) {
	rt := fakecri.Start(t)
	for _, tt := range []struct {
		name      string
		external  bool
		provided  []string
		taint     bool
		annotated string
		addresses []corev1.NodeAddress
	}{
		{"no cloud", false, nil, false, "", []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeHostName, Address: "host1"}}},
		{"no cloud and a node IP", false, []string{"192.0.2.1"}, false, "", []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeHostName, Address: "host1"}}},
		{"cloud", true, nil, true, "", []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "host1"}}},
		{"cloud and node IPs", true, []string{"192.0.2.1", "2001:db8::1"}, true, "192.0.2.1,2001:db8::1",
			[]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"}, {Type: corev1.NodeHostName, Address: "host1"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := cri.New(cri.Config{RuntimeEndpoint: rt.Endpoint()})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			client := fakeapi.New()
			cfg := Config{Name: "n1", Hostname: "host1", Client: client, CRI: c, IPs: []string{"192.0.2.1"}, RootDir: t.TempDir(),
				Taints: []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoSchedule}}, ExternalCloud: tt.external, Provided: tt.provided, Logger: slog.New(slog.DiscardHandler)}
			n, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := n.tryRegister(t.Context()); err != nil {
				t.Fatal(err)
			}
			o, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			taint := corev1.Taint{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule}
			if slices.Contains(o.Spec.Taints, taint) != tt.taint || o.Spec.Taints[0].Key != "own" {
				t.Errorf("taints %v", o.Spec.Taints)
			}
			if got := o.Annotations["alpha.kubernetes.io/provided-node-ip"]; got != tt.annotated {
				t.Errorf("annotation %q", got)
			}
			if !slices.Equal(o.Status.Addresses, tt.addresses) {
				t.Errorf("addresses %v", o.Status.Addresses)
			}
			// What the controller says stays, with it only.
			said := []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "198.51.100.1"}}
			if got := n.status(t.Context(), &corev1.NodeStatus{Addresses: said}).Addresses; slices.Equal(got, said) != tt.external {
				t.Errorf("addresses become %v", got)
			}
			// Started again without a cloud, the annotation goes, and no other.
			cfg.ExternalCloud = false
			if n, err = New(cfg); err != nil {
				t.Fatal(err)
			}
			if err := n.tryRegister(t.Context()); err != nil {
				t.Fatal(err)
			}
			if o, err = client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, left := o.Annotations["alpha.kubernetes.io/provided-node-ip"]; left || len(o.Annotations) == 0 {
				t.Errorf("annotations are %v", o.Annotations)
			}
		})
	}
}
