package snapshot_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

func node(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"i:1"}, SizeBytes: 7}},
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), "example.com/gpu": resource.MustParse("2")}}}
}

func pod(name, node string, milli int64, port int32) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node,
		Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI), "example.com/gpu": resource.MustParse("1")}}}}}}
	if port > 0 {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: port, Protocol: corev1.ProtocolTCP}}
	}
	if milli%2 == 0 {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "k"}}}}
	}
	return p
}

// TestAccounts compares a snapshot after random events with one made of the outcome.
func TestAccounts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	s := snapshot.New()
	pods := map[string]*corev1.Pod{}
	nodes := map[string]*corev1.Node{}
	for i := range 5000 {
		name := fmt.Sprint("p", rnd.IntN(40))
		on := fmt.Sprint("n", rnd.IntN(6))
		switch rnd.IntN(6) {
		case 0:
			nodes[on] = node(on, fmt.Sprint("z", rnd.IntN(3)))
			s.SetNode(nodes[on])
		case 1:
			if i%10 == 0 {
				delete(nodes, on)
				s.RemoveNode(on)
			}
		case 2:
			delete(pods, name)
			s.RemovePod(types.UID(name))
		case 3:
			if pods[name] == nil {
				p := pod(name, "", rnd.Int64N(9)+1, rnd.Int32N(3))
				s.Assume(snapshot.NewPod(p), on)
				if rnd.IntN(2) == 0 {
					s.Forget(p.UID)
				} else {
					p = p.DeepCopy()
					p.Spec.NodeName = on
					s.SetPod(p)
					pods[name] = p
				}
			}
		default:
			pods[name] = pod(name, on, rnd.Int64N(9)+1, rnd.Int32N(3))
			s.SetPod(pods[name])
		}
	}
	want := snapshot.New()
	for _, n := range nodes {
		want.SetNode(n)
	}
	for _, p := range pods {
		want.SetPod(p)
	}
	s.Order()
	want.Order()
	if len(s.Nodes) != len(want.Nodes) || !reflect.DeepEqual(s.ImageNodes, want.ImageNodes) {
		t.Fatalf("%d nodes, want %d; images %v, want %v", len(s.Nodes), len(want.Nodes), s.ImageNodes, want.ImageNodes)
	}
	for i, n := range s.Nodes {
		w := want.Nodes[i]
		if n.Name() != w.Name() || n.Index != i {
			t.Fatalf("node %d is %s (%d), want %s", i, n.Name(), n.Index, w.Name())
		}
		if n.Requested.MilliCPU != w.Requested.MilliCPU || n.Requested.Scalar("example.com/gpu") != w.Requested.Scalar("example.com/gpu") ||
			n.NonzeroMemory != w.NonzeroMemory || len(n.Pods) != len(w.Pods) || len(n.Ports) != len(w.Ports) || len(n.Affine) != len(w.Affine) || len(n.Repelling) != len(w.Repelling) {
			t.Errorf("node %s: %+v, want %+v", n.Name(), n, w)
		}
	}
}

func TestZonesTakeTurns(t *testing.T) {
	s := snapshot.New()
	for _, n := range []string{"a1", "a2", "a3", "b1", "b2", "c1"} {
		s.SetNode(node(n, n[:1]))
	}
	s.Order()
	var names []string
	for _, n := range s.Nodes {
		names = append(names, n.Name())
	}
	if want := []string{"a1", "b1", "c1", "a2", "b2", "a3"}; !slices.Equal(names, want) {
		t.Errorf("order %v, want %v", names, want)
	}
}
