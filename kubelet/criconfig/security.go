package criconfig

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// effective merges the pod's security context into the container's.
func effective(pod *corev1.Pod, c *corev1.Container) corev1.SecurityContext {
	var out corev1.SecurityContext
	if c.SecurityContext != nil {
		out = *c.SecurityContext
	}
	p := pod.Spec.SecurityContext
	if p == nil {
		return out
	}
	if out.RunAsUser == nil {
		out.RunAsUser = p.RunAsUser
	}
	if out.RunAsGroup == nil {
		out.RunAsGroup = p.RunAsGroup
	}
	if out.RunAsNonRoot == nil {
		out.RunAsNonRoot = p.RunAsNonRoot
	}
	if out.SELinuxOptions == nil {
		out.SELinuxOptions = p.SELinuxOptions
	}
	if out.SeccompProfile == nil {
		out.SeccompProfile = p.SeccompProfile
	}
	return out
}

func containerSecurity(n *Node, pod *corev1.Pod, c *corev1.Container, a Attempt) (*runtimeapi.LinuxContainerSecurityContext, error) {
	e := effective(pod, c)
	sc := &runtimeapi.LinuxContainerSecurityContext{
		RunAsUser:        int64Value(e.RunAsUser),
		RunAsGroup:       int64Value(e.RunAsGroup),
		Privileged:       isTrue(e.Privileged),
		ReadonlyRootfs:   isTrue(e.ReadOnlyRootFilesystem),
		NoNewPrivs:       e.AllowPrivilegeEscalation != nil && !*e.AllowPrivilegeEscalation,
		SelinuxOptions:   selinux(e.SELinuxOptions),
		NamespaceOptions: namespaces(pod, a.Users),
	}
	if e.Capabilities != nil {
		sc.Capabilities = &runtimeapi.Capability{}
		for _, v := range e.Capabilities.Add {
			sc.Capabilities.AddCapabilities = append(sc.Capabilities.AddCapabilities, string(v))
		}
		for _, v := range e.Capabilities.Drop {
			sc.Capabilities.DropCapabilities = append(sc.Capabilities.DropCapabilities, string(v))
		}
	}
	if sc.RunAsUser == nil {
		sc.RunAsUser = int64Value(a.UID)
		sc.RunAsUsername = a.Username
	}
	if p := pod.Spec.SecurityContext; p != nil {
		sc.SupplementalGroups = podGroups(p)
		sc.SupplementalGroupsPolicy = groupsPolicy(p)
	}
	if e.ProcMount == nil || *e.ProcMount != corev1.UnmaskedProcMount {
		sc.MaskedPaths, sc.ReadonlyPaths = maskedPaths(), readonlyPaths
	}
	if a.TargetID != "" && sc.NamespaceOptions.Pid == runtimeapi.NamespaceMode_CONTAINER {
		sc.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
		sc.NamespaceOptions.TargetId = a.TargetID
	}
	sc.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	if p := e.SeccompProfile; p != nil {
		switch p.Type {
		case corev1.SeccompProfileTypeRuntimeDefault:
			sc.Seccomp.ProfileType = runtimeapi.SecurityProfile_RuntimeDefault
		case corev1.SeccompProfileTypeLocalhost:
			if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
				return nil, fmt.Errorf("localhostProfile must be set if seccompProfile type is Localhost.")
			}
			sc.Seccomp.ProfileType = runtimeapi.SecurityProfile_Localhost
			sc.Seccomp.LocalhostRef = filepath.Join(n.SeccompDir, *p.LocalhostProfile)
		}
	}
	var err error
	sc.Apparmor, sc.ApparmorProfile, err = appArmor(pod, c) //nolint:staticcheck // runtimes of before structured profiles read the latter
	return sc, err
}

// verifyNonRoot refuses containers that must not run as root and would, or might.
func verifyNonRoot(pod *corev1.Pod, c *corev1.Container, uid *int64, username string) error {
	e := effective(pod, c)
	if !isTrue(e.RunAsNonRoot) {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), c.Name)
	switch {
	case e.RunAsUser != nil && *e.RunAsUser == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
	case e.RunAsUser != nil:
		return nil
	case uid == nil && username != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", username, where)
	case uid != nil && *uid == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case uid != nil && (*uid < 0 || *uid > math.MaxInt32):
		return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-(%d)) %s", *uid, math.MaxInt32, where)
	}
	return nil
}

func namespaces(pod *corev1.Pod, users *runtimeapi.UserNamespace) *runtimeapi.NamespaceOption {
	o := &runtimeapi.NamespaceOption{UsernsOptions: users, Network: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_CONTAINER, Ipc: runtimeapi.NamespaceMode_POD}
	if pod.Spec.HostNetwork {
		o.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		o.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		o.Pid = runtimeapi.NamespaceMode_NODE
	case isTrue(pod.Spec.ShareProcessNamespace):
		o.Pid = runtimeapi.NamespaceMode_POD
	}
	return o
}

func anyPrivileged(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && isTrue(sc.Privileged) {
				return true
			}
		}
	}
	return false
}

func podGroups(p *corev1.PodSecurityContext) []int64 {
	var out []int64
	if p.FSGroup != nil {
		out = append(out, *p.FSGroup)
	}
	return append(out, p.SupplementalGroups...)
}

func groupsPolicy(p *corev1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if p.SupplementalGroupsPolicy != nil && *p.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func selinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func int64Value(p *int64) *runtimeapi.Int64Value {
	if p == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *p}
}

func isTrue(b *bool) bool { return b != nil && *b }

var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// maskedPaths hide what leaks from the host or tells neighbours apart.
var maskedPaths = sync.OnceValue(func() []string {
	out := []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	for i := 0; ; i++ {
		cpu := fmt.Sprintf("/sys/devices/system/cpu/cpu%d", i)
		if _, err := os.Stat(cpu); err != nil {
			return out
		}
		if _, err := os.Stat(cpu + "/thermal_throttle"); err == nil {
			out = append(out, cpu+"/thermal_throttle")
		}
	}
})
