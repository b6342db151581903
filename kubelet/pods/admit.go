package pods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
)

// admit decides whether the node takes a pod; nil: it does. What runs already was
// taken before.
func (m *Manager) admit(pod *corev1.Pod, rt *cri.Pod) *Eviction {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.admitted[pod.UID] != nil {
		m.admitted[pod.UID] = pod
		return nil
	}
	if len(rt.Containers) == 0 && len(rt.Sandboxes) == 0 {
		others := make([]*corev1.Pod, 0, len(m.admitted))
		for _, p := range m.admitted {
			others = append(others, p)
		}
		if reason, msg := refuse(pod, others, m.cfg.Allocatable(), m.cfg.Node()); reason != "" {
			return &Eviction{Reason: reason, Message: "Pod was rejected: " + msg, refused: true}
		}
		if err := criconfig.CheckAppArmor(pod, m.cfg.AppArmor); err != nil {
			return &Eviction{Reason: "AppArmor", Message: "Pod was rejected: Cannot enforce AppArmor: " + err.Error(), refused: true}
		}
	}
	m.admitted[pod.UID] = pod
	return nil
}

// release gives back what an ended pod was granted.
func (m *Manager) release(uid types.UID) {
	m.mu.Lock()
	delete(m.admitted, uid)
	m.mu.Unlock()
}

// refuse says why a pod does not fit beside others, in upstream's words. It is pure.
func refuse(pod *corev1.Pod, others []*corev1.Pod, allocatable corev1.ResourceList, node *corev1.Node) (reason, message string) {
	if os := pod.Spec.OS; os != nil && os.Name != corev1.Linux {
		return "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			if !safeSysctls[s.Name] {
				return "SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowlisted", s.Name)
			}
		}
	}
	if q, ok := allocatable[corev1.ResourcePods]; ok && int64(len(others)+1) > q.Value() {
		return "OutOfpods", fmt.Sprintf("Node didn't have enough resource: pods, requested: 1, used: %d, capacity: %d", len(others), q.Value())
	}
	wanted := podfit.Requests(pod)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		capacity, ok := allocatable[name]
		want := wanted[name]
		if !ok || want.IsZero() {
			continue
		}
		used := want.DeepCopy()
		used.Sub(want)
		for _, o := range others {
			q := podfit.Requests(o)[name]
			used.Add(q)
		}
		sum := used.DeepCopy()
		sum.Add(want)
		if sum.Cmp(capacity) > 0 {
			value := want.Value
			u, c := used.Value(), capacity.Value()
			w := value()
			if name == corev1.ResourceCPU {
				w, u, c = want.MilliValue(), used.MilliValue(), capacity.MilliValue()
			}
			return "OutOf" + string(name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, w, u, c)
		}
	}
	for _, p := range podfit.HostPorts(&pod.Spec) {
		for _, o := range others {
			for _, q := range podfit.HostPorts(&o.Spec) {
				if p.Conflicts(q) {
					return "NodePorts", "Predicate NodePorts failed"
				}
			}
		}
	}
	if node != nil && !isStatic(pod) {
		if !podfit.MatchesNode(&pod.Spec, node) {
			return "NodeAffinity", "Predicate NodeAffinity failed"
		}
		if t := podfit.Untolerated(node.Spec.Taints, pod.Spec.Tolerations, corev1.TaintEffectNoExecute); t != nil {
			return "TaintToleration", "Predicate TaintToleration failed"
		}
	}
	return "", ""
}

// safeSysctls are namespaced and can't harm neighbours: pods may set them unasked.
var safeSysctls = map[string]bool{
	"kernel.shm_rmid_forced": true, "net.ipv4.ip_local_port_range": true, "net.ipv4.tcp_syncookies": true, "net.ipv4.ping_group_range": true,
	"net.ipv4.ip_unprivileged_port_start": true, "net.ipv4.ip_local_reserved_ports": true, "net.ipv4.tcp_keepalive_time": true,
	"net.ipv4.tcp_fin_timeout": true, "net.ipv4.tcp_keepalive_intvl": true, "net.ipv4.tcp_keepalive_probes": true,
	"net.ipv4.tcp_rmem": true, "net.ipv4.tcp_wmem": true,
}
