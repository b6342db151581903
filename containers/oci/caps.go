package oci

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// DefaultCapabilities is what a container has unless it says otherwise, the
// same set as Docker's and containerd's.
var DefaultCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// allCapabilities in the kernel's order: the index is the number.
var allCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN",
	"CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT",
	"CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
	"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL",
	"CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
	"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// HostCapabilities lists what this process may hand on.
func HostCapabilities() ([]string, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		hex, ok := strings.CutPrefix(line, "CapBnd:")
		if !ok {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil {
			return nil, err
		}
		for i, c := range allCapabilities {
			if bits&(1<<i) != 0 {
				out = append(out, c)
			}
		}
	}
	return out, nil
}

// capabilities applies what is added and dropped; "ALL" comes first in either
// list, so that `drop: [ALL], add: [X]` leaves X.
func capabilities(defaults []string, sec *runtimeapi.LinuxContainerSecurityContext, available []string) (*specs.LinuxCapabilities, error) {
	if defaults == nil {
		defaults = DefaultCapabilities
	}
	if available == nil {
		available = allCapabilities
	}
	set := map[string]bool{}
	for _, c := range defaults {
		set[c] = true
	}
	names := func(field string, in []string) (all bool, out []string, err error) {
		for _, c := range in {
			c = strings.ToUpper(c)
			if c == "ALL" {
				all = true
				continue
			}
			if !strings.HasPrefix(c, "CAP_") {
				c = "CAP_" + c
			}
			if !slices.Contains(allCapabilities, c) {
				return false, nil, errField(field, "unknown capability %q", c)
			}
			out = append(out, c)
		}
		return all, out, nil
	}
	if sec.GetPrivileged() {
		for _, c := range allCapabilities {
			set[c] = true
		}
	} else {
		caps := sec.GetCapabilities()
		addAll, add, err := names("securityContext.capabilities.add", caps.GetAddCapabilities())
		if err != nil {
			return nil, err
		}
		dropAll, drop, err := names("securityContext.capabilities.drop", caps.GetDropCapabilities())
		if err != nil {
			return nil, err
		}
		if addAll {
			for _, c := range allCapabilities {
				set[c] = true
			}
		}
		if dropAll {
			clear(set)
		}
		for _, c := range add {
			set[c] = true
		}
		for _, c := range drop {
			delete(set, c)
		}
	}
	_, ambient, err := names("securityContext.capabilities.addAmbient", sec.GetCapabilities().GetAddAmbientCapabilities())
	if err != nil {
		return nil, err
	}
	list := []string{}
	for _, c := range allCapabilities {
		if set[c] && slices.Contains(available, c) {
			list = append(list, c)
		}
	}
	out := &specs.LinuxCapabilities{Bounding: list, Effective: list, Permitted: list}
	if len(ambient) > 0 {
		out.Inheritable, out.Ambient = ambient, ambient
	}
	return out, nil
}
