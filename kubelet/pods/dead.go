package pods

import (
	"context"
	"fmt"
	"os"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
)

// DeadPolicy says how many containers that have ended are kept, for their status and logs,
// besides each container's latest run. The zero value is upstream's default.
type DeadPolicy struct {
	// PerContainer runs before the latest; nil: one.
	PerContainer *int
	// Max of all ended containers of the node; 0: no limit.
	Max int
	// MinAge before which none is removed.
	MinAge time.Duration
}

// Check says what is wrong with a policy.
func (p DeadPolicy) Check() error {
	if p.PerContainer != nil && *p.PerContainer < 0 || p.Max < 0 || p.MinAge < 0 {
		return fmt.Errorf("a number or age of ended containers to keep is negative")
	}
	return nil
}

func (p DeadPolicy) perContainer() int {
	if p.PerContainer != nil {
		return *p.PerContainer
	}
	return 1
}

// surplus are the ended containers to remove so that at most limit are left, oldest first.
// The latest run of a container stays in any case: that it ran at all is known by it.
func surplus(pods map[types.UID]*cri.Pod, limit int, old func(*cri.Container) bool) []*cri.Container {
	var earlier []*cri.Container
	n := 0
	for _, p := range pods {
		seen := map[string]bool{}
		for _, c := range p.Containers { // newest first
			if c.State == cri.StateExited {
				n++
				if seen[c.Name] && old(c) {
					earlier = append(earlier, c)
				}
			}
			seen[c.Name] = true
		}
	}
	sort.Slice(earlier, func(i, j int) bool {
		if !earlier[i].CreatedAt.Equal(earlier[j].CreatedAt) {
			return earlier[i].CreatedAt.Before(earlier[j].CreatedAt)
		}
		return earlier[i].ID < earlier[j].ID
	})
	return earlier[:min(len(earlier), max(n-limit, 0))]
}

// reclaim frees what an evicted pod's containers and logs take; its status stays.
func (w *worker) reclaim(ctx context.Context, pod *corev1.Pod, rt *cri.Pod) error {
	if err := w.removeAll(ctx, pod, rt); err != nil {
		return err
	}
	if err := os.RemoveAll(criconfig.PodLogDir(w.m.cfg.PodLogsDir, pod.Namespace, pod.Name, pod.UID)); err != nil {
		return fmt.Errorf("remove logs: %w", err)
	}
	return nil
}

// limitDead keeps the number of ended containers below the policy's.
func (m *Manager) limitDead(ctx context.Context, pods map[types.UID]*cri.Pod) {
	if m.cfg.Dead.Max == 0 {
		return
	}
	for _, c := range surplus(pods, m.cfg.Dead.Max, func(c *cri.Container) bool { return time.Since(c.CreatedAt) >= m.cfg.Dead.MinAge }) {
		if _, err := m.cfg.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil && !cri.NotFound(err) {
			m.log.Warn("remove ended container", "container", c.Name, "error", err)
		}
	}
}
