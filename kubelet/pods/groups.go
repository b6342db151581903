package pods

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skiff-k8s/skiff/host/cgroup"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
)

// EnsureRoots makes the groups above those of pods. kubepods weighs what the node
// can allocate; best effort pods get what is left over.
func (m *Manager) EnsureRoots() error {
	if m.cfg.Cgroups == nil {
		return nil
	}
	alloc := m.cfg.Allocatable()
	root := filepath.Join("/", m.cfg.CgroupParent, "kubepods")
	for _, g := range []struct {
		name   string
		limits cgroup.Limits
	}{
		{root, cgroup.Limits{CPUShares: uint64(criconfig.Shares(alloc.Cpu().MilliValue()))}},
		{root + "/besteffort", cgroup.Limits{CPUShares: 2}},
		{root + "/burstable", cgroup.Limits{}},
	} {
		if err := m.cfg.Cgroups.Ensure(g.name, g.limits); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) ensureGroup(pod *corev1.Pod) error {
	if m.cfg.Cgroups == nil {
		return nil
	}
	return m.cfg.Cgroups.Ensure(criconfig.PodCgroup(m.cfg.CgroupParent, pod), criconfig.PodLimits(pod, m.cfg.CRINode().CPUQuota, m.cfg.PodPidsLimit))
}

// cleanUpGroups takes away the groups of pods that nobody knows.
func (m *Manager) cleanUpGroups(unknown func(types.UID) bool) {
	if m.cfg.Cgroups == nil {
		return
	}
	root := filepath.Join("/", m.cfg.CgroupParent, "kubepods")
	for _, dir := range []string{root, root + "/burstable", root + "/besteffort"} {
		names, err := m.cfg.Cgroups.Children(dir)
		if err != nil {
			m.log.Warn("look for orphaned control groups", "error", err)
			continue
		}
		for _, n := range names {
			if uid, ok := strings.CutPrefix(n, "pod"); ok && unknown(types.UID(uid)) {
				if err := m.cfg.Cgroups.Remove(dir + "/" + n); err != nil {
					m.log.Warn("remove orphaned control group", "group", n, "error", err)
				}
			}
		}
	}
}

// handler is the runtime's name for the pod's RuntimeClass.
func (m *Manager) handler(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	if m.cfg.Client == nil {
		return "", fmt.Errorf("RuntimeClass %q: a kubelet without API server knows none", *pod.Spec.RuntimeClassName)
	}
	rc, err := m.cfg.Client.NodeV1().RuntimeClasses().Get(ctx, *pod.Spec.RuntimeClassName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("RuntimeClass %q: %w", *pod.Spec.RuntimeClassName, err)
	}
	return rc.Handler, nil
}
