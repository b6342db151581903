package pods

import (
	"net/netip"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
	"github.com/skiff-k8s/skiff/kubelet/probes"
)

// waitReason is why a container does not start.
type waitReason struct{ Reason, Message string }

// statusInput is all that a pod's API status is made of.
type statusInput struct {
	Pod     *corev1.Pod
	Runtime *cri.Pod
	// Old is the status made last, or the API's after a restart.
	Old         *corev1.PodStatus
	Waiting     map[string]waitReason
	Probes      probeView
	HostIPs     []string
	RuntimeName string // the runtime's name, the scheme of container ids
	// Terminal: no container will be started again.
	Terminal bool
	// Resize are the conditions that tell of a resize.
	Resize []corev1.PodCondition

	// restarting: all containers are being restarted in place, or just were.
	restarting bool
	Now        time.Time
}

// makeStatus computes the API status. It is pure; the phase is what the containers
// say and never leaves a terminal one.
func makeStatus(in statusInput) corev1.PodStatus {
	pod, rt, old := in.Pod, in.Runtime, in.Old
	if !in.Terminal && mayRestartAll(pod) {
		c := condition(old.Conditions, corev1.AllContainersRestarting)
		in.restarting = len(toReset(pod, rt)) > 0 || c != nil && c.Status == corev1.ConditionTrue
	}
	s := corev1.PodStatus{QOSClass: podfit.QOS(pod), ObservedGeneration: pod.Generation, NominatedNodeName: "", StartTime: old.StartTime}
	if s.StartTime == nil {
		now := metav1.NewTime(in.Now)
		s.StartTime = &now
	}
	for _, ip := range orderIPs(rt.IPs(), in.HostIPs) {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(s.PodIPs) == 0 && (in.Terminal || len(rt.Sandboxes) > 0 && !rt.Sandboxes[0].Ready) {
		s.PodIPs = old.PodIPs // keep showing where it was
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
	hasInit := len(pod.Spec.InitContainers) > 0
	s.InitContainerStatuses = containerStatuses(in, pod.Spec.InitContainers, old.InitContainerStatuses, hasInit, true)
	s.ContainerStatuses = containerStatuses(in, pod.Spec.Containers, old.ContainerStatuses, hasInit, false)
	var eph []corev1.Container
	for i := range pod.Spec.EphemeralContainers {
		eph = append(eph, corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	s.EphemeralContainerStatuses = containerStatuses(in, eph, old.EphemeralContainerStatuses, hasInit, false)
	if in.Terminal {
		closeStatuses(in, &s)
	}
	readiness(in, &s)

	all := append(append([]corev1.ContainerStatus(nil), s.InitContainerStatuses...), s.ContainerStatuses...)
	s.Phase = phaseOf(pod, all, in.Terminal, anyRegularContainer(pod, rt))
	for _, before := range []*corev1.PodStatus{old, &pod.Status} {
		if terminalPhase(before.Phase) {
			s.Phase = before.Phase
		}
	}
	if s.Phase == old.Phase {
		s.Reason, s.Message = old.Reason, old.Message
	}

	for _, c := range pod.Status.Conditions {
		if !ownCondition(c.Type) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	if !in.Terminal {
		s.Conditions = append(s.Conditions, in.Resize...)
	}
	conditions(in, &s, all)

	if len(in.HostIPs) > 0 {
		s.HostIP = in.HostIPs[0]
		for _, ip := range in.HostIPs {
			s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
		}
		if pod.Spec.HostNetwork && s.PodIP == "" {
			s.PodIP = s.HostIP
			for _, ip := range in.HostIPs {
				s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
			}
		}
	}
	return s
}

func terminalPhase(p corev1.PodPhase) bool {
	return p == corev1.PodSucceeded || p == corev1.PodFailed
}

// orderIPs puts the address of the node's primary family first and keeps one of each.
func orderIPs(ips, hostIPs []string) []string {
	v6first := false
	if len(hostIPs) > 0 {
		if a, err := netip.ParseAddr(hostIPs[0]); err == nil {
			v6first = a.Is6()
		}
	}
	var out []string
	for _, want6 := range []bool{v6first, !v6first} {
		for _, s := range ips {
			if a, err := netip.ParseAddr(s); err == nil && a.Is6() == want6 {
				out = append(out, a.String())
				break
			}
		}
	}
	return out
}

func containerStatuses(in statusInput, specs []corev1.Container, old []corev1.ContainerStatus, hasInit, isInit bool) []corev1.ContainerStatus {
	if len(specs) == 0 {
		return nil
	}
	before := make(map[string]*corev1.ContainerStatus, len(old))
	for i := range old {
		before[old[i].Name] = &old[i]
	}
	out := make([]corev1.ContainerStatus, 0, len(specs))
	for i := range specs {
		out = append(out, containerStatus(in, &specs[i], before[specs[i].Name], hasInit, isInit))
	}
	if !isInit {
		sort.SliceStable(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	}
	return out
}

func containerStatus(in statusInput, c *corev1.Container, old *corev1.ContainerStatus, hasInit, isInit bool) corev1.ContainerStatus {
	st := corev1.ContainerStatus{Name: c.Name, Image: c.Image}
	var runs []*cri.Container // newest first; two are shown
	for _, r := range in.Runtime.Containers {
		if r.Name == c.Name && len(runs) < 2 {
			runs = append(runs, r)
		}
	}
	switch {
	case len(runs) > 0:
		st = fromRuntime(in, c, runs[0], old)
		if len(runs) > 1 {
			st.LastTerminationState = fromRuntime(in, c, runs[1], nil).State
		} else if old != nil && old.ContainerID == st.ContainerID {
			st.LastTerminationState = old.LastTerminationState // its record was pruned
		}
	case old != nil && old.State.Terminated != nil && !in.restarting:
		st = *old.DeepCopy()
	default:
		st.State = defaultWaiting(hasInit)
		if old == nil {
			break
		}
		st.RestartCount, st.LastTerminationState = old.RestartCount, old.LastTerminationState
		if old.State.Running == nil && !(in.restarting && old.State.Terminated != nil) {
			break
		}
		if in.restarting {
			ended := &corev1.ContainerStateTerminated{Reason: restartingAll, Message: restartingAllMessage, ExitCode: 137, ContainerID: old.ContainerID}
			st.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: restartingAll, Message: restartingAllMessage}}
			st.LastTerminationState = corev1.ContainerState{Terminated: ended}
			st.RestartCount++
			break
		}
		// It ran and is nowhere to be found.
		lost := &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", ExitCode: 137, ContainerID: old.ContainerID}
		if in.Terminal {
			lost.Message = "The container could not be located when the pod was terminated"
			st.State = corev1.ContainerState{Terminated: lost}
			st.ContainerID = old.ContainerID
			break
		}
		lost.Message = "The container could not be located when the pod was deleted.  The container used to be Running"
		st.LastTerminationState = corev1.ContainerState{Terminated: lost}
		if in.Pod.DeletionTimestamp == nil {
			st.RestartCount++
		}
	}
	if st.VolumeMounts = volumeMounts(c); old != nil && len(runs) > 0 && old.ContainerID == st.ContainerID && len(old.VolumeMounts) > 0 {
		st.VolumeMounts = old.VolumeMounts
	}

	if isInit {
		if len(runs) > 0 && runs[0].State == cri.StateExited && runs[0].ExitCode == 0 {
			return st
		}
		if len(runs) == 0 && !podfit.Restartable(c) && st.State.Waiting != nil && anyRegularContainer(in.Pod, in.Runtime) {
			st.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed",
				Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally"}}
			return st
		}
	}
	// One that will be started again waits, if we know what for.
	var last *cri.Container
	if len(runs) > 0 {
		last = runs[0]
	}
	if why, ok := in.Waiting[c.Name]; ok && !in.Terminal && shouldRestart(in.Pod, c, last) {
		if st.State.Terminated != nil {
			st.LastTerminationState = st.State
		}
		st.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}}
	}
	return st
}

func defaultWaiting(hasInit bool) corev1.ContainerState {
	reason := "ContainerCreating"
	if hasInit {
		reason = "PodInitializing"
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func fromRuntime(in statusInput, c *corev1.Container, r *cri.Container, old *corev1.ContainerStatus) corev1.ContainerStatus {
	id := in.RuntimeName + "://" + r.ID
	st := corev1.ContainerStatus{Name: r.Name, RestartCount: restartCount(r, old), Image: r.Image, ImageID: r.ImageID, ContainerID: id, AllocatedResources: c.Resources.Requests}
	switch {
	case r.State == cri.StateRunning:
		st.State.Running = &corev1.ContainerStateRunning{StartedAt: apiTime(r.StartedAt)}
	case r.State == cri.StateExited:
		st.State.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: r.ExitCode, Reason: r.Reason, Message: r.Message, StartedAt: apiTime(r.StartedAt), FinishedAt: apiTime(r.FinishedAt), ContainerID: id,
		}
	case r.State == cri.StateUnknown && old != nil && old.State.Running != nil:
		st.State.Terminated = &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated", ExitCode: 137}
		st.RestartCount = old.RestartCount + 1
	default:
		st.State.Waiting = &corev1.ContainerStateWaiting{}
	}
	st.Resources = actualResources(c, r)
	if u := r.User; u != nil {
		st.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
	}
	if r.StopSignal != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		if name, ok := strings.CutPrefix(r.StopSignal.String(), "SIGNAL_"); ok {
			s := corev1.Signal(name)
			st.StopSignal = &s
		}
	}
	return st
}

// restartCount never goes back: a container that was removed may count anew.
func restartCount(r *cri.Container, old *corev1.ContainerStatus) int32 {
	n := int32(r.RestartCount)
	if old != nil && old.RestartCount > n {
		n = old.RestartCount
	}
	return n
}

// actualResources are what was granted, with CPU and memory as the runtime has set
// them. What the kernel's units can't express exactly is shown as granted.
func actualResources(c *corev1.Container, r *cri.Container) *corev1.ResourceRequirements {
	out := c.Resources.DeepCopy()
	have := r.Resources
	if r.State != cri.StateRunning || have == nil {
		return out
	}
	if q, ok := out.Limits[corev1.ResourceMemory]; ok && have.MemoryLimitInBytes > 0 && q.Value() != have.MemoryLimitInBytes {
		out.Limits[corev1.ResourceMemory] = *resource.NewQuantity(have.MemoryLimitInBytes, resource.BinarySI)
	}
	if q, ok := out.Limits[corev1.ResourceCPU]; ok && have.CpuQuota > 0 && have.CpuPeriod > 0 && criconfig.Quota(q.MilliValue()) != have.CpuQuota {
		out.Limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(have.CpuQuota*1000/have.CpuPeriod, resource.DecimalSI)
	}
	if q, ok := out.Requests[corev1.ResourceCPU]; ok && have.CpuShares > 0 && criconfig.Shares(q.MilliValue()) != have.CpuShares {
		out.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(have.CpuShares*1000/1024, resource.DecimalSI)
	}
	return out
}

func volumeMounts(c *corev1.Container) []corev1.VolumeMountStatus {
	var out []corev1.VolumeMountStatus
	for i := range c.VolumeMounts {
		vm := &c.VolumeMounts[i]
		v := corev1.VolumeMountStatus{Name: vm.Name, MountPath: vm.MountPath, ReadOnly: vm.ReadOnly}
		if vm.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			if vm.RecursiveReadOnly != nil && *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			v.RecursiveReadOnly = &mode
		}
		out = append(out, v)
	}
	return out
}

// closeStatuses gives the containers of an initialised pod that ended an end even
// if they never ran: no status of such a pod may say that something is to come.
func closeStatuses(in statusInput, s *corev1.PodStatus) {
	if !anyRegularContainer(in.Pod, in.Runtime) {
		for i := range s.InitContainerStatuses {
			end := s.InitContainerStatuses[i].State.Terminated
			if !podfit.Restartable(&in.Pod.Spec.InitContainers[i]) && (end == nil || end.ExitCode != 0) {
				return
			}
		}
	}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			if st := &list[i].State; st.Terminated == nil {
				if last := list[i].LastTerminationState.Terminated; last != nil && st.Waiting != nil {
					*st = corev1.ContainerState{Terminated: last}
					list[i].LastTerminationState = corev1.ContainerState{}
					continue
				}
				*st = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated", ExitCode: 137,
				}}
			}
		}
	}
}

// apiTime has the API's resolution: finer times would differ after every read.
func apiTime(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.Truncate(time.Second))
}

// readiness sets started and ready of every container status.
func readiness(in statusInput, s *corev1.PodStatus) {
	set := func(c *corev1.Container, st *corev1.ContainerStatus) {
		started, ready := false, false
		if st.State.Running != nil {
			id := trimScheme(st.ContainerID)
			started = c.StartupProbe == nil || in.Probes.Result(id, probes.Startup) == probes.Success
			ready = started && (c.ReadinessProbe == nil || in.Probes.Result(id, probes.Readiness) == probes.Success)
		}
		st.Started, st.Ready = &started, ready
	}
	for i := range s.InitContainerStatuses {
		st, c := &s.InitContainerStatuses[i], &in.Pod.Spec.InitContainers[i]
		if podfit.Restartable(c) {
			set(c, st)
			continue
		}
		started := st.State.Running != nil
		st.Started = &started
		st.Ready = st.State.Terminated != nil && st.State.Terminated.ExitCode == 0
	}
	for i := range s.ContainerStatuses {
		st := &s.ContainerStatuses[i]
		for j := range in.Pod.Spec.Containers {
			if c := &in.Pod.Spec.Containers[j]; c.Name == st.Name {
				set(c, st)
			}
		}
	}
}

func trimScheme(id string) string {
	if _, rest, ok := strings.Cut(id, "://"); ok {
		return rest
	}
	return id
}
