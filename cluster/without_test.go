package cluster

import (
	"slices"
	"strings"
	"testing"
)

func TestWithout(t *testing.T) {
	for _, tt := range []struct {
		without, says string
		ports         []uint16
	}{
		{"", "", []uint16{6443, 10250}},
		{"kube-scheduler", "", []uint16{6443, 10250}},
		{"kubelet,kube-proxy", "", []uint16{6443}},
		{"kube-apiserver,kube-scheduler,kube-controller-manager", "", []uint16{10250}},
		{"kube-apiserver,kube-scheduler", "run skiff kube-controller-manager", nil},
		{"scheduler", "--without=scheduler: there is no such component", nil},
	} {
		names := strings.FieldsFunc(tt.without, func(r rune) bool { return r == ',' })
		err := checkWithout(names)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %v, want %q", tt.without, err, tt.says)
		}
		if c := (&Config{APIPort: 6443, KubeletPort: 10250, Without: names}); err == nil && !slices.Equal(c.ports(), tt.ports) {
			t.Errorf("%q: ports %v, want %v", tt.without, c.ports(), tt.ports)
		}
	}
}
