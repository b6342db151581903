package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func amounts(cpu, memory, pages, pods string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		corev1.ResourceHugePagesPrefix + "2Mi": resource.MustParse(pages), corev1.ResourcePods: resource.MustParse(pods),
	}
}

// Nodes that divide a machine have together no more than it.
func TestDivide(t *testing.T) {
	machine := amounts("2", "1000", "14Mi", "110")
	for n, want := range map[int64]corev1.ResourceList{
		0: machine, 1: machine,
		2: amounts("1", "500", "6Mi", "110"),
		3: amounts("666m", "333", "4Mi", "110"),
	} {
		got := divide(machine, n)
		for name, w := range want {
			if g := got[name]; g.Cmp(w) != 0 {
				t.Errorf("%s of one of %d nodes: %s, want %s", name, n, g.String(), w.String())
			}
		}
	}
}

func TestTheShareIsFollowed(t *testing.T) {
	share := int64(1)
	n := &Node{cfg: Config{Share: func() int64 { return share }}, machine: amounts("4", "8Gi", "0", "110")}
	for _, want := range []struct {
		share  int64
		memory string
	}{{1, "8092Mi"}, {2, "3996Mi"}, {4, "1948Mi"}, {1, "8092Mi"}} { // 100Mi are kept free of pods
		share = want.share
		n.takeShare()
		if got := n.Allocatable()[corev1.ResourceMemory]; got.Cmp(resource.MustParse(want.memory)) != 0 {
			t.Errorf("one of %d nodes allocates %s, want %s", share, got.String(), want.memory)
		}
	}
}
