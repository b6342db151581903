package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
)

// terminate ends a pod: because it is deleted, evicted, or all its containers have
// come to their end. It tells whether nothing is left to do for it ever.
func (w *worker) terminate(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, st corev1.PodStatus, ev *Eviction, gone bool) bool {
	w.mu.Lock()
	grace := w.gracePeriod()
	w.grace = grace
	w.mu.Unlock()

	if !w.ended {
		if rt.Running() {
			// Terminal phases are told once nothing runs any more: controllers replace
			// pods by them.
			if terminalPhase(st.Phase) && !terminalPhase(pod.Status.Phase) {
				st.Phase = w.oldStatus(pod).Phase
			}
			w.publish(pod, st, false)
			var override *int64
			if w.overridesGrace(pod, ev) {
				override = &grace
			}
			if err := w.killPod(ctx, pod, rt, override); err != nil {
				if ctx.Err() == nil {
					w.log.Warn("end pod", "error", err)
					w.retry()
				}
				return false
			}
			var err error
			if rt, err = w.m.cfg.CRI.PodStatus(ctx, w.uid); err != nil {
				w.retry()
				return false
			}
			if rt.Running() {
				w.retry()
				return false
			}
		}
		w.m.probes.Remove(w.uid)
		final := w.makeStatus(pod, rt, true)
		if ev != nil {
			w.evicted(pod, &final, ev)
		}
		w.publish(pod, final, false)
		if err := w.takeDown(pod); err != nil {
			w.log.Warn("clean up pod", "error", err)
			w.retry()
			return false
		}
		w.ended = true
		w.m.release(w.uid)
	}
	w.failures = 0
	if ev != nil && ev.Reclaim && !w.reclaimed {
		// The node needs what the pod took: its writable layers and logs go as well.
		if err := w.reclaim(ctx, pod, rt); err != nil {
			if ctx.Err() == nil {
				w.log.Warn("free what the evicted pod took", "error", err)
				w.retry()
			}
			return false
		}
		w.reclaimed = true
	}
	if !gone && pod.DeletionTimestamp == nil {
		return false // kept for its status and logs until it is deleted
	}

	if err := w.removeAll(ctx, pod, rt); err != nil {
		if ctx.Err() == nil {
			w.log.Warn("remove containers", "error", err)
			w.retry()
		}
		return false
	}
	if !gone {
		w.publish(pod, *w.oldStatus(pod), true) // what the API waits for
		return false
	}
	w.m.writer.forget(w.uid)
	if err := os.RemoveAll(criconfig.PodLogDir(w.m.cfg.PodLogsDir, pod.Namespace, pod.Name, pod.UID)); err != nil {
		w.log.Warn("remove logs", "error", err)
	}
	return true
}

func (w *worker) overridesGrace(pod *corev1.Pod, ev *Eviction) bool {
	return ev != nil && ev.Grace != nil || pod.Annotations[orphanAnnotation] != ""
}

// evicted makes a final status one of a pod that did not end by itself.
func (w *worker) evicted(pod *corev1.Pod, st *corev1.PodStatus, ev *Eviction) {
	if terminalPhase(pod.Status.Phase) {
		return
	}
	st.Phase, st.Reason, st.Message = corev1.PodFailed, ev.Reason, ev.Message
	if ev.refused {
		st.ContainerStatuses, st.InitContainerStatuses, st.EphemeralContainerStatuses = nil, nil, nil
	}
	for i := range st.Conditions {
		c := &st.Conditions[i]
		if c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
			if c.Status != corev1.ConditionFalse {
				c.LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
			}
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, "PodFailed", ""
		}
	}
	if ev.Condition != nil && condition(st.Conditions, ev.Condition.Type) == nil {
		st.Conditions = append(st.Conditions, *ev.Condition)
	}
}

// takeDown takes away what the pod had besides its containers.
func (w *worker) takeDown(pod *corev1.Pod) error {
	var errs []error
	if err := w.m.cfg.Volumes.Teardown(w.uid); err != nil {
		errs = append(errs, err)
	}
	if w.m.cfg.Cgroups != nil {
		if err := w.m.cfg.Cgroups.Remove(criconfig.PodCgroup(w.m.cfg.CgroupParent, pod)); err != nil {
			errs = append(errs, err)
		}
	}
	w.m.cfg.Objects.Unregister(w.uid)
	w.m.cfg.Images.Forget(w.uid)
	w.m.users.release(w.uid)
	w.setUp = false
	return errors.Join(errs...)
}

// removeAll removes containers and sandboxes from the runtime.
func (w *worker) removeAll(ctx context.Context, pod *corev1.Pod, rt *cri.Pod) error {
	for _, c := range rt.Containers {
		w.m.unlinkLog(pod, c.Name, c.ID)
	}
	for _, s := range rt.Sandboxes {
		if _, err := w.m.cfg.CRI.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.ID}); err != nil && !cri.NotFound(err) {
			return fmt.Errorf("remove sandbox %s: %w", s.ID, err)
		}
	}
	// Those of sandboxes that are gone already.
	for _, c := range rt.Containers {
		if _, err := w.m.cfg.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil && !cri.NotFound(err) {
			return fmt.Errorf("remove container %s: %w", c.Name, err)
		}
	}
	return nil
}

// prune removes what earlier runs have left: of each container the latest run and
// those before that the policy keeps, for status and logs; of sandboxes the newest.
func (w *worker) prune(ctx context.Context, pod *corev1.Pod, rt *cri.Pod) {
	counts := map[string]int{}
	for _, c := range rt.Containers {
		counts[c.Name]++
	}
	keep := 1 + w.m.cfg.Dead.perContainer()
	for name, n := range counts {
		if n > keep {
			w.removeRuns(ctx, pod, rt, name, keep)
		}
	}
	if len(rt.Sandboxes) < 2 {
		return
	}
	used := map[string]bool{rt.Sandboxes[0].ID: true}
	for _, c := range rt.Containers {
		used[c.SandboxID] = true
	}
	for _, s := range rt.Sandboxes {
		if !used[s.ID] && !s.Ready {
			if _, err := w.m.cfg.CRI.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.ID}); err != nil && !cri.NotFound(err) {
				w.log.Debug("remove old sandbox", "error", err)
			}
		}
	}
}

// removeRuns removes all but the newest runs of a container that have ended, with
// their logs.
func (w *worker) removeRuns(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, name string, keep int) {
	left := keep
	for _, c := range rt.Containers {
		if c.Name != name {
			continue
		}
		if left > 0 {
			left--
			continue
		}
		if c.State != cri.StateExited && c.State != cri.StateCreated {
			continue
		}
		if keep > 0 && time.Since(c.CreatedAt) < w.m.cfg.Dead.MinAge {
			continue
		}
		if _, err := w.m.cfg.CRI.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil && !cri.NotFound(err) {
			w.log.Debug("remove old container", "container", name, "error", err)
			continue
		}
		w.m.unlinkLog(pod, c.Name, c.ID)
		if c.LogPath != "" && filepath.IsAbs(c.LogPath) {
			old, _ := filepath.Glob(c.LogPath + "*")
			for _, f := range old {
				_ = os.Remove(f)
			}
		}
	}
}
