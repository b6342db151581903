package nodeipam_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
	"github.com/skiff-k8s/skiff/controllers/nodeipam"
)

func TestAllocate(t *testing.T) {
	v4, v6, small := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48"), netip.MustParsePrefix("10.0.0.0/24")
	tests := []struct {
		ranges []netip.Prefix
		masks  []int
		used   []string
		want   string
	}{
		{[]netip.Prefix{v4}, []int{24}, nil, "[10.244.0.0/24]"},
		{[]netip.Prefix{v4}, []int{24}, []string{"10.244.0.0/24", "10.244.2.0/24"}, "[10.244.1.0/24]"},
		{[]netip.Prefix{v4}, []int{24}, []string{"10.244.0.0/23"}, "[10.244.2.0/24]"},
		{[]netip.Prefix{v4, v6}, []int{24, 64}, []string{"fd00:10:244::/64"}, "[10.244.0.0/24 fd00:10:244:1::/64]"},
		{[]netip.Prefix{small}, []int{25}, []string{"10.0.0.0/25", "10.0.0.128/25"}, "pod network 10.0.0.0/24 has no free /25 left"},
	}
	for _, tt := range tests {
		used := map[string]bool{}
		for _, u := range tt.used {
			used[u] = true
		}
		got, err := nodeipam.Allocate(tt.ranges, tt.masks, used)
		s := fmt.Sprint(got)
		if err != nil {
			s = err.Error()
		}
		if s != tt.want {
			t.Errorf("Allocate(%v, %v): %s, want %s", tt.ranges, tt.used, s, tt.want)
		}
	}
}

func TestEachNodeItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := controllertest.New(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}}})
		c, err := nodeipam.New(nodeipam.Config{Config: e.Config, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
		if err != nil {
			t.Fatal(err)
		}
		e.Start(c)
		for i := range 20 {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
			if _, err := e.Client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		e.Settle()
		list, err := e.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]string{}
		for _, n := range list.Items {
			if other, dup := seen[n.Spec.PodCIDR]; dup || n.Spec.PodCIDR == "" {
				t.Errorf("node %s has %q as %s", n.Name, n.Spec.PodCIDR, other)
			}
			seen[n.Spec.PodCIDR] = n.Name
		}
	})
}
