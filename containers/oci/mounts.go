package oci

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mounts adds the system's mounts, the sandbox's files, the image's volumes and
// the container's own, each replacing what was planned for its destination.
func mounts(spec *specs.Spec, in Input) error {
	sec := in.Container.GetLinux().GetSecurityContext()
	system := "ro"
	if sec.GetPrivileged() {
		system = "rw"
	}
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", system}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", system}},
	}
	if in.Namespaces.User != "" && in.Namespaces.Net == "" {
		// sysfs belongs to the host's network namespace, which this user
		// namespace does not own: it can only be bound.
		list[4] = specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "nosuid", "noexec", "nodev", "ro"}}
	}
	file := func(source, destination string) {
		if source != "" {
			opts := []string{"rbind", "rprivate", "rw"}
			if sec.GetReadonlyRootfs() && destination != "/dev/shm" {
				opts[2] = "ro"
			}
			list = append(list, specs.Mount{Destination: destination, Type: "bind", Source: source, Options: opts})
		}
	}
	file(in.Files.Shm, "/dev/shm")
	file(in.Files.Hosts, "/etc/hosts")
	file(in.Files.Hostname, "/etc/hostname")
	file(in.Files.ResolvConf, "/etc/resolv.conf")
	for _, v := range in.Volumes {
		opts := []string{"rbind", "rprivate", "rw"}
		if v.ReadOnly {
			opts[2] = "ro"
		}
		list = append(list, specs.Mount{Destination: v.Destination, Type: "bind", Source: v.Source, Options: append(opts, v.Options...)})
	}
	for _, m := range in.Container.GetMounts() {
		if m.GetImage().GetImage() != "" {
			continue // comes as a Volume
		}
		one, propagation, err := bindMount(m)
		if err != nil {
			return err
		}
		// The strongest that any mount needs.
		if propagation == "rshared" || (propagation == "rslave" && spec.Linux.RootfsPropagation == "") {
			spec.Linux.RootfsPropagation = propagation
		}
		list = append(list, one)
	}
	spec.Mounts = arrange(list)
	return nil
}

// arrange keeps the last mount of each destination and puts parents before
// what is mounted within them.
func arrange(list []specs.Mount) []specs.Mount {
	last := map[string]int{}
	for i, m := range list {
		last[filepath.Clean(m.Destination)] = i
	}
	var out []specs.Mount
	for i, m := range list {
		if last[filepath.Clean(m.Destination)] == i {
			out = append(out, m)
		}
	}
	depth := func(m specs.Mount) int { return strings.Count(filepath.Clean(m.Destination), "/") }
	slices.SortStableFunc(out, func(a, b specs.Mount) int { return depth(a) - depth(b) })
	return out
}

func bindMount(m *runtimeapi.Mount) (specs.Mount, string, error) {
	if !filepath.IsAbs(m.GetContainerPath()) {
		return specs.Mount{}, "", errField("mounts.containerPath", "%q is not absolute", m.GetContainerPath())
	}
	source, err := filepath.EvalSymlinks(m.GetHostPath())
	if errors.Is(err, os.ErrNotExist) {
		return specs.Mount{}, "", errField("mounts.hostPath", "%s does not exist", m.GetHostPath())
	}
	if err != nil {
		return specs.Mount{}, "", errField("mounts.hostPath", "resolve %s: %w", m.GetHostPath(), err)
	}
	propagation := "rprivate"
	switch m.GetPropagation() {
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		propagation = "rslave"
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		propagation = "rshared"
	}
	mode := "rw"
	if m.GetReadonly() {
		mode = "ro"
	}
	if m.GetRecursiveReadOnly() {
		if !m.GetReadonly() || propagation != "rprivate" {
			return specs.Mount{}, "", errField("mounts.recursiveReadOnly", "%s: needs readonly and private propagation", m.GetContainerPath())
		}
		mode = "rro"
	}
	out := specs.Mount{
		Destination: m.GetContainerPath(), Type: "bind", Source: source,
		Options:     append([]string{"rbind", propagation, mode}, m.GetMountOptions()...),
		UIDMappings: idMappings(m.GetUidMappings()),
		GIDMappings: idMappings(m.GetGidMappings()),
	}
	return out, propagation, nil
}
