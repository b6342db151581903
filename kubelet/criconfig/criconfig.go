// Package criconfig turns pods and their containers into CRI requests: sandbox
// and container configuration, security context, resources, names and files of
// the pod's network identity.
//
// It is pure: it reads no cluster state and changes nothing. What depends on the
// node is in Node, what depends on the attempt is handed in.
package criconfig

import (
	"fmt"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/environ"
)

// Node is what configurations depend on besides the pod.
type Node struct {
	PodLogsDir    string // /var/log/pods
	SeccompDir    string // profiles of type Localhost are below it
	CgroupParent  string // group that holds kubepods; empty: the root
	ClusterDNS    []string
	ClusterDomain string
	// HostDNS is the node's own resolver configuration.
	HostDNS DNS
	// MemoryCapacity in bytes scales oom_score_adj.
	MemoryCapacity int64
	// HugePageSizes as the cgroup controller spells them ("2MB"): each is limited, to 0 if not asked for.
	HugePageSizes []string
	// CPUQuota: enforce CPU limits by CFS quota.
	CPUQuota bool
	// RecursiveReadOnly: the runtime can make mounts recursively read-only.
	RecursiveReadOnly bool
}

// Sandbox is the configuration of a pod's sandbox. users are the ids of its own
// user namespace; nil: it has the host's. Warnings are for the pod's events (reason
// DNSConfigForming).
func Sandbox(n *Node, pod *corev1.Pod, attempt uint32, users *runtimeapi.UserNamespace) (cfg *runtimeapi.PodSandboxConfig, warnings []string, err error) {
	dns, warnings := PodDNS(n, pod)
	cfg = &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Labels:       cri.PodLabels(pod),
		Annotations:  pod.Annotations,
		LogDirectory: PodLogDir(n.PodLogsDir, pod.Namespace, pod.Name, pod.UID),
		DnsConfig:    &runtimeapi.DNSConfig{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options},
		PortMappings: portMappings(pod),
	}
	if !pod.Spec.HostNetwork {
		host, domain, err := Hostname(n.ClusterDomain, pod)
		if err != nil {
			return nil, warnings, err
		}
		if pod.Spec.SetHostnameAsFQDN != nil && *pod.Spec.SetHostnameAsFQDN && domain != "" {
			if host = host + "." + domain; len(host) > 64 {
				return nil, warnings, fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (64 characters is the max, %d characters requested)", host, len(host))
			}
		}
		cfg.Hostname = host
	}
	sc := &runtimeapi.LinuxSandboxSecurityContext{
		Privileged:       anyPrivileged(pod),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		NamespaceOptions: namespaces(pod, users),
	}
	linux := &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    PodCgroup(n.CgroupParent, pod),
		SecurityContext: sc,
		Sysctls:         map[string]string{},
		Resources:       linuxResources(n, quantity(podfit.SpecRequests(pod), corev1.ResourceCPU), podfit.Limits(pod)),
		Overhead:        &runtimeapi.LinuxContainerResources{},
	}
	if o := pod.Spec.Overhead; o != nil {
		linux.Overhead = linuxResources(n, quantity(o, corev1.ResourceCPU), o)
	}
	if p := pod.Spec.SecurityContext; p != nil {
		for _, s := range p.Sysctls {
			linux.Sysctls[s.Name] = s.Value
		}
		sc.RunAsUser, sc.RunAsGroup = int64Value(p.RunAsUser), int64Value(p.RunAsGroup)
		sc.SupplementalGroups = podGroups(p)
		sc.SupplementalGroupsPolicy = groupsPolicy(p)
		sc.SelinuxOptions = selinux(p.SELinuxOptions)
	}
	cfg.Linux = linux
	return cfg, warnings, nil
}

// Attempt is what one start of a container adds to its spec.
type Attempt struct {
	RestartCount int
	// ImageRef is what the image was resolved to; UID and Username are its user.
	ImageRef string
	UID      *int64
	Username string
	Env      []environ.Var
	Mounts   []*runtimeapi.Mount
	// TargetID is the container whose process namespace an ephemeral container joins.
	TargetID string
	// Users is the pod's own user namespace, if it has one.
	Users *runtimeapi.UserNamespace
}

// Container is the configuration of one start of a container.
func Container(n *Node, pod *corev1.Pod, c *corev1.Container, a Attempt) (*runtimeapi.ContainerConfig, error) {
	if err := verifyNonRoot(pod, c, a.UID, a.Username); err != nil {
		return nil, err
	}
	sc, err := containerSecurity(n, pod, c, a)
	if err != nil {
		return nil, err
	}
	lookup := environ.Lookup(a.Env)
	cfg := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: uint32(a.RestartCount)},
		Image:       &runtimeapi.ImageSpec{Image: a.ImageRef, UserSpecifiedImage: c.Image},
		Command:     expandAll(c.Command, lookup),
		Args:        expandAll(c.Args, lookup),
		WorkingDir:  c.WorkingDir,
		Labels:      cri.ContainerLabels(pod, c),
		Annotations: cri.ContainerAnnotations(pod, c, a.RestartCount),
		Mounts:      a.Mounts,
		LogPath:     LogPath(c.Name, a.RestartCount),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       ContainerResources(n, pod, c),
			SecurityContext: sc,
		},
	}
	for _, e := range a.Env {
		cfg.Envs = append(cfg.Envs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	if a.Users != nil {
		for _, m := range cfg.Mounts {
			m.UidMappings, m.GidMappings = a.Users.Uids, a.Users.Gids
		}
	}
	if l := c.Lifecycle; l != nil && l.StopSignal != nil {
		if v, ok := runtimeapi.Signal_value["SIGNAL_"+string(*l.StopSignal)]; ok {
			cfg.StopSignal = runtimeapi.Signal(v)
		}
	}
	return cfg, nil
}

// PodLogDir is where the logs of a pod are: one directory per container below it.
func PodLogDir(root, namespace, name string, uid types.UID) string {
	return filepath.Join(root, namespace+"_"+name+"_"+string(uid))
}

// LogPath is a container's log, relative to its pod's directory.
func LogPath(container string, restartCount int) string {
	return filepath.Join(container, strconv.Itoa(restartCount)+".log")
}

// PodCgroup is the group of a pod: kubepods[/burstable|/besteffort]/pod<uid>.
func PodCgroup(parent string, pod *corev1.Pod) string {
	return filepath.Join("/", parent, "kubepods", qosDir(podfit.QOS(pod)), "pod"+string(pod.UID))
}

func qosDir(q corev1.PodQOSClass) string {
	switch q {
	case corev1.PodQOSBurstable:
		return "burstable"
	case corev1.PodQOSBestEffort:
		return "besteffort"
	}
	return ""
}

func expandAll(list []string, lookup func(string) (string, bool)) []string {
	var out []string
	for _, s := range list {
		out = append(out, environ.Expand(s, lookup))
	}
	return out
}

func portMappings(pod *corev1.Pod) []*runtimeapi.PortMapping {
	if pod.Spec.HostNetwork {
		return nil
	}
	var out []*runtimeapi.PortMapping
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, p := range list[i].Ports {
				if p.HostPort == 0 {
					continue
				}
				out = append(out, &runtimeapi.PortMapping{
					Protocol: runtimeapi.Protocol(runtimeapi.Protocol_value[string(p.Protocol)]), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
				})
			}
		}
	}
	return out
}
