package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const leaseNamespace = "kube-node-lease"

func (b *bench) nodeName(i int) string { return fmt.Sprintf("%s-node-%d", b.prefix, i) }

// node is Ready and has room for 110 pods.
func (b *bench) node(i int) *corev1.Node {
	name := b.nodeName(i)
	now := metav1.Now()
	rl := corev1.ResourceList{
		"cpu": resource.MustParse("32"), "memory": resource.MustParse("256Gi"),
		"pods": resource.MustParse("110"), "ephemeral-storage": resource.MustParse("500Gi"),
	}
	cond := func(t corev1.NodeConditionType, s corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s, LastHeartbeatTime: now, LastTransitionTime: now, Reason: "apibench"}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"apibench-node": b.prefix, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			"topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", i%3), "topology.kubernetes.io/region": "r1",
		}},
		Status: corev1.NodeStatus{
			Capacity: rl, Allocatable: rl,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.20.%d.%d", i/250, 1+i%250)}},
			Conditions: []corev1.NodeCondition{
				cond(corev1.NodeReady, corev1.ConditionTrue), cond(corev1.NodeMemoryPressure, corev1.ConditionFalse),
				cond(corev1.NodeDiskPressure, corev1.ConditionFalse), cond(corev1.NodePIDPressure, corev1.ConditionFalse),
			},
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.37.2", OSImage: "fake", Architecture: "amd64", OperatingSystem: "linux"},
		},
	}
}

// lease says that the node's kubelet lives: within less than the node controllers' grace (50 s)
// each must be renewed, or the node is tainted.
func (b *bench) lease(i int) *coordinationv1.Lease {
	name, now, seconds := b.nodeName(i), metav1.NowMicro(), int32(40)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: leaseNamespace},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
}

// nodes are those that were made. Real ones renew their Leases every ten seconds; these do when
// the oldest renewal is renewAfter old, so that a case that is done sooner is not disturbed.
type nodes struct {
	mu      sync.Mutex
	count   int
	renewed time.Time // when the last sweep over all began
	swept   int       // renewals so far
}

const renewAfter = 30 * time.Second

// made says that nodes up to count exist, the last of them as of since.
func (n *nodes) made(count int, since time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count = max(n.count, count)
	if n.renewed.IsZero() {
		n.renewed = since
	}
}

func (n *nodes) renewals() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.swept
}

func (n *nodes) due(now time.Time) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.count == 0 || now.Sub(n.renewed) < renewAfter {
		return 0
	}
	return n.count
}

// live renews the Leases of the nodes until ctx ends.
func (n *nodes) live(ctx context.Context, b *bench) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if count := n.due(time.Now()); count > 0 {
			b.sweep(ctx, count, 8, &result{}) // what fails is tried again by the next
		}
	}
}

// sweep renews count Leases.
func (b *bench) sweep(ctx context.Context, count, c int, r *result) {
	b.nodes.mu.Lock()
	b.nodes.renewed = time.Now()
	b.nodes.mu.Unlock()
	run(r, count, c, func(w, i int) (int64, error) {
		body := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
		_, err := b.client(w).CoordinationV1().Leases(leaseNamespace).Patch(ctx, b.nodeName(i), types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return 0, err
	})
	b.nodes.mu.Lock()
	b.nodes.swept += r.Ops
	b.nodes.mu.Unlock()
}

func caseNodes(ctx context.Context, b *bench, p params, r *result) {
	first := p.int("first", 0)
	begin := time.Now()
	defer func() { b.nodes.made(first+r.Ops, begin) }()
	run(r, p.int("n", 5), p.int("c", 16), func(w, i int) (int64, error) {
		nodes := b.client(w).CoreV1().Nodes()
		n, err := nodes.Create(ctx, b.node(first+i), metav1.CreateOptions{})
		if err != nil {
			return 0, err
		}
		if len(n.Spec.Taints) > 0 {
			if _, err = nodes.Patch(ctx, n.Name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
				return 0, err
			}
		}
		_, err = b.client(w).CoordinationV1().Leases(leaseNamespace).Create(ctx, b.lease(first+i), metav1.CreateOptions{})
		return 0, err
	})
}

func caseHeartbeat(ctx context.Context, b *bench, p params, r *result) {
	b.sweep(ctx, p.int("n", 5), p.int("c", 16), r)
}

func caseServices(ctx context.Context, b *bench, p params, r *result) {
	endpoints := p.int("endpoints", 3)
	run(r, p.int("n", 1000), p.int("c", 16), func(w, i int) (int64, error) {
		if _, err := b.client(w).CoreV1().Services(b.ns).Create(ctx, b.service(i), metav1.CreateOptions{}); err != nil {
			return 0, err
		}
		_, err := b.client(w).DiscoveryV1().EndpointSlices(b.ns).Create(ctx, b.slice(i, endpoints), metav1.CreateOptions{})
		return 0, err
	})
}
