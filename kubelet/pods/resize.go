package pods

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/host/cgroup"
	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
)

// In-place resize (KEP-1287): what a pod's containers were granted (the allocation)
// follows the spec when the node has room; running containers follow the
// allocation. The allocation is remembered in the API's status.

// allocation is what each container was granted.
type allocation map[string]corev1.ResourceRequirements

// specAllocation is what the spec asks for.
func specAllocation(pod *corev1.Pod) allocation {
	out := allocation{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			out[list[i].Name] = list[i].Resources
		}
	}
	return out
}

// grantedBefore is the allocation that an earlier kubelet reported; containers of
// which it reported none get what the spec asks for.
func grantedBefore(pod *corev1.Pod) allocation {
	out := specAllocation(pod)
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			st := &list[i]
			spec, ok := out[st.Name]
			if !ok || st.Resources == nil || st.State.Running == nil {
				continue
			}
			r := *spec.DeepCopy()
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				if q, ok := st.AllocatedResources[name]; ok && r.Requests != nil {
					r.Requests[name] = q
				}
				if q, ok := st.Resources.Limits[name]; ok && r.Limits != nil {
					r.Limits[name] = q
				}
			}
			out[st.Name] = r
		}
	}
	return out
}

// with is the pod as it was granted; the very same if that is what it asks for.
func (a allocation) with(pod *corev1.Pod) *corev1.Pod {
	if a.fits(pod) {
		return pod
	}
	out := *pod
	apply := func(list []corev1.Container) []corev1.Container {
		next := append([]corev1.Container(nil), list...)
		for i := range next {
			if r, ok := a[next[i].Name]; ok {
				next[i].Resources = r
			}
		}
		return next
	}
	out.Spec.InitContainers, out.Spec.Containers = apply(pod.Spec.InitContainers), apply(pod.Spec.Containers)
	return &out
}

// fits tells whether the pod asks for what it was granted, in CPU and memory.
func (a allocation) fits(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r, ok := a[list[i].Name]
			if !ok {
				continue
			}
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				x, y := list[i].Resources.Requests[name], r.Requests[name]
				p, q := list[i].Resources.Limits[name], r.Limits[name]
				if x.Cmp(y) != 0 || p.Cmp(q) != 0 {
					return false
				}
			}
		}
	}
	return true
}

// resizeRefused says why the node can't grant what the pod asks for now.
func resizeRefused(pod *corev1.Pod, others []*corev1.Pod, allocatable corev1.ResourceList) (reason, message string) {
	want := podfit.SpecRequests(pod)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		capacity, ok := allocatable[name]
		if !ok {
			continue
		}
		ask := want[name]
		if ask.Cmp(capacity) > 0 {
			return corev1.PodReasonInfeasible, fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, scaled(name, ask.MilliValue()), scaled(name, capacity.MilliValue()))
		}
		sum := ask.DeepCopy()
		for _, o := range others {
			sum.Add(podfit.SpecRequests(o)[name])
		}
		if sum.Cmp(capacity) > 0 {
			used := sum.DeepCopy()
			used.Sub(ask)
			return corev1.PodReasonDeferred, fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, scaled(name, ask.MilliValue()), scaled(name, used.MilliValue()), scaled(name, capacity.MilliValue()))
		}
	}
	return "", ""
}

func scaled(name corev1.ResourceName, milli int64) int64 {
	if name == corev1.ResourceCPU {
		return milli
	}
	return milli / 1000
}

// resizeState is how far a worker is with a resize.
type resizeState struct {
	granted         allocation
	reason, message string // why what is asked for is not granted
	running         bool   // granted, and not all containers have it
	failure         string
	group           cgroup.Limits // of the pod, as set last
}

// allocate is the pod as it is granted, after granting what can be.
func (w *worker) allocate(pod *corev1.Pod) *corev1.Pod {
	if isStatic(pod) || pod.Annotations[orphanAnnotation] != "" {
		return pod
	}
	r := &w.resize
	if r.granted == nil {
		r.granted = grantedBefore(pod)
		r.running = !r.granted.fits(pod)
	}
	if r.granted.fits(pod) {
		r.reason, r.message = "", ""
		return pod
	}
	reason, message := resizeRefused(pod, w.m.othersThan(w.uid), w.m.cfg.Allocatable())
	switch {
	case reason == "":
		r.granted, r.running, r.failure = specAllocation(pod), true, ""
		w.m.podEvent(pod, corev1.EventTypeNormal, "ResizeStarted", "Pod resize started")
	case reason == corev1.PodReasonDeferred:
		w.again(time.Now().Add(10 * time.Second)) // room may be made without our being told
		fallthrough
	default:
		if r.reason != reason {
			w.m.podEvent(pod, corev1.EventTypeWarning, "Resize"+reason, message)
		}
	}
	r.reason, r.message = reason, message
	return r.granted.with(pod)
}

// actuated tells whether nothing of a resize is left to do: no container has to
// change, or to be restarted for it.
func (w *worker) actuated(pod *corev1.Pod, a actions) bool {
	if !w.resize.granted.fits(pod) || a.KillPod || len(a.Update)+len(a.Kill)+len(a.InitToStart) > 0 {
		return false
	}
	for _, i := range a.ToStart {
		// One that keeps crashing has its limits with the next start.
		if _, waits := w.waiting[pod.Spec.Containers[i].Name]; !waits {
			return false
		}
	}
	return true
}

// conditions are those that tell of a resize.
func (r *resizeState) conditions(pod *corev1.Pod, old *corev1.PodStatus, now time.Time) []corev1.PodCondition {
	var out []corev1.PodCondition
	add := func(t corev1.PodConditionType, reason, message string) {
		c := corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: pod.Generation, LastTransitionTime: metav1.NewTime(now)}
		if o := condition(old.Conditions, t); o != nil {
			c.LastTransitionTime = o.LastTransitionTime
		}
		out = append(out, c)
	}
	if r.reason != "" {
		add(corev1.PodResizePending, r.reason, r.message)
	}
	if r.running {
		if r.failure != "" {
			add(corev1.PodResizeInProgress, corev1.PodReasonError, r.failure)
		} else {
			add(corev1.PodResizeInProgress, "", "")
		}
	}
	return out
}

// othersThan are the pods that the node has taken beside one.
func (m *Manager) othersThan(uid types.UID) []*corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*corev1.Pod
	for id, p := range m.admitted {
		if id != uid {
			out = append(out, p)
		}
	}
	return out
}

// update is a running container that has other limits than it was granted.
type update struct {
	ID        string
	Container *corev1.Container
	Want      *runtimeapi.LinuxContainerResources
	Have      int64 // memory limit so far; 0: none
}

// resizeOf tells whether a running container needs other limits, and whether that
// takes a restart.
func resizeOf(c *corev1.Container, st *cri.Container, want *runtimeapi.LinuxContainerResources) (needed, restart bool) {
	have := st.Resources
	if have == nil || want == nil {
		return false, false // a runtime that does not say can't be followed
	}
	cpu := have.CpuShares != want.CpuShares || max(have.CpuQuota, 0) != max(want.CpuQuota, 0)
	memory := have.MemoryLimitInBytes != want.MemoryLimitInBytes
	for _, p := range c.ResizePolicy {
		if p.RestartPolicy == corev1.RestartContainer && (cpu && p.ResourceName == corev1.ResourceCPU || memory && p.ResourceName == corev1.ResourceMemory) {
			restart = true
		}
	}
	return cpu || memory, restart
}

// growGroup makes room in the pod's group for what its containers are to get: a
// group's child can't have more than the group.
func (w *worker) growGroup(pod *corev1.Pod) error {
	next := w.groupLimits(pod)
	if w.m.cfg.Cgroups == nil || next == w.resize.group {
		return nil
	}
	if err := w.m.cfg.Cgroups.Limit(criconfig.PodCgroup(w.m.cfg.CgroupParent, pod), widest(w.resize.group, next)); err != nil {
		return w.resizeFailed(pod, err)
	}
	return nil
}

// settleGroup gives the pod's group its own limits again, once all containers have theirs.
func (w *worker) settleGroup(pod *corev1.Pod) error {
	next := w.groupLimits(pod)
	if w.m.cfg.Cgroups != nil && next != w.resize.group {
		if err := w.m.cfg.Cgroups.Limit(criconfig.PodCgroup(w.m.cfg.CgroupParent, pod), exact(next)); err != nil {
			return w.resizeFailed(pod, err)
		}
	}
	w.resize.group = next
	return nil
}

func (w *worker) groupLimits(pod *corev1.Pod) cgroup.Limits {
	return criconfig.PodLimits(pod, w.m.cfg.CRINode().CPUQuota, w.m.cfg.PodPidsLimit)
}

func (w *worker) resizeFailed(pod *corev1.Pod, err error) error {
	msg := cri.Message(err)
	if w.resize.failure == "" {
		w.m.podEvent(pod, corev1.EventTypeWarning, "ResizeError", "Pod resize error: "+msg)
	}
	w.resize.failure = msg
	return err
}

// applyResizes gives running containers their limits.
func (w *worker) applyResizes(ctx context.Context, pod *corev1.Pod, updates []update) error {
	for _, u := range updates {
		if err := w.roomBelow(ctx, u); err != nil {
			return w.resizeFailed(pod, fmt.Errorf("cannot decrease memory limits: %w", err))
		}
	}
	for _, u := range updates {
		if _, err := w.m.cfg.CRI.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: u.ID, Linux: u.Want}); err != nil {
			return w.resizeFailed(pod, fmt.Errorf("resize container %s: %w", u.Container.Name, err))
		}
		w.m.cfg.CRI.Forget(u.ID)
	}
	w.resize.failure = ""
	return nil
}

// roomBelow refuses a memory limit that the container exceeds already: the kernel
// would kill it (or, on version 1, refuse).
func (w *worker) roomBelow(ctx context.Context, u update) error {
	if u.Want.MemoryLimitInBytes <= 0 || u.Have > 0 && u.Want.MemoryLimitInBytes >= u.Have {
		return nil
	}
	resp, err := w.m.cfg.CRI.Runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: u.ID})
	if cri.Unimplemented(err) {
		return nil // the kernel decides
	}
	if err != nil {
		return fmt.Errorf("read memory usage of container %q: %w", u.Container.Name, err)
	}
	mem := resp.GetStats().GetMemory()
	used := mem.GetUsageBytes()
	if used == nil {
		used = mem.GetWorkingSetBytes()
	}
	if used.GetValue() >= uint64(u.Want.MemoryLimitInBytes) {
		return fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", u.Container.Name, u.Want.MemoryLimitInBytes, used.GetValue())
	}
	return nil
}

// widest has the greater of each limit; none wins.
func widest(a, b cgroup.Limits) cgroup.Limits {
	pick := func(x, y int64) int64 {
		if x <= 0 || y <= 0 {
			return -1
		}
		return max(x, y)
	}
	out := b
	out.CPUShares = max(a.CPUShares, b.CPUShares)
	out.CPUQuota, out.MemoryBytes = pick(a.CPUQuota, b.CPUQuota), pick(a.MemoryBytes, b.MemoryBytes)
	return out
}

// exact sets absent limits to none, where they would otherwise be left as they are.
func exact(l cgroup.Limits) cgroup.Limits {
	if l.CPUQuota == 0 {
		l.CPUQuota = -1
	}
	if l.MemoryBytes == 0 {
		l.MemoryBytes = -1
	}
	return l
}
