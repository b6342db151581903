package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// seccomp chooses the filter. A privileged container has none.
func seccomp(sec *runtimeapi.LinuxContainerSecurityContext, caps *specs.LinuxCapabilities) (*specs.LinuxSeccomp, error) {
	p := sec.GetSeccomp()
	if sec.GetPrivileged() || p == nil {
		return nil, nil
	}
	switch p.GetProfileType() {
	case runtimeapi.SecurityProfile_RuntimeDefault:
		return defaultSeccomp(caps.Bounding), nil
	case runtimeapi.SecurityProfile_Localhost:
		b, err := os.ReadFile(p.GetLocalhostRef())
		if err != nil {
			return nil, errField("securityContext.seccompProfile.localhostProfile", "%w", err)
		}
		out, err := parseSeccomp(b, caps.Bounding)
		if err != nil {
			return nil, errField("securityContext.seccompProfile.localhostProfile", "%s: %w", p.GetLocalhostRef(), err)
		}
		return out, nil
	}
	return nil, nil
}

// architectures whose system calls the filter judges, by GOARCH: the machine's
// own and those it runs besides.
var architectures = map[string][]specs.Arch{
	"amd64": {specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
	"arm64": {specs.ArchAARCH64, specs.ArchARM},
}

// profile is the JSON that Docker, containerd and Kubernetes users write: an
// OCI profile plus conditions.
type profile struct {
	DefaultAction   specs.LinuxSeccompAction `json:"defaultAction"`
	DefaultErrnoRet *uint                    `json:"defaultErrnoRet"`
	Architectures   []specs.Arch             `json:"architectures"`
	ArchMap         []struct {
		Architecture     specs.Arch   `json:"architecture"`
		SubArchitectures []specs.Arch `json:"subArchitectures"`
	} `json:"archMap"`
	Flags            []specs.LinuxSeccompFlag `json:"flags"`
	ListenerPath     string                   `json:"listenerPath"`
	ListenerMetadata string                   `json:"listenerMetadata"`
	Syscalls         []struct {
		Name     string                   `json:"name"`
		Names    []string                 `json:"names"`
		Action   specs.LinuxSeccompAction `json:"action"`
		ErrnoRet *uint                    `json:"errnoRet"`
		Args     []specs.LinuxSeccompArg  `json:"args"`
		Includes condition                `json:"includes"`
		Excludes condition                `json:"excludes"`
	} `json:"syscalls"`
}

type condition struct {
	Caps   []string `json:"caps"`
	Arches []string `json:"arches"`
}

// meets says whether all that the condition names is given; an empty one is met.
func (c condition) meets(caps []string) bool {
	for _, want := range c.Caps {
		if !slices.Contains(caps, want) {
			return false
		}
	}
	return len(c.Arches) == 0 || slices.Contains(c.Arches, runtime.GOARCH)
}

// hits says whether anything that the condition names is given.
func (c condition) hits(caps []string) bool {
	for _, want := range c.Caps {
		if slices.Contains(caps, want) {
			return true
		}
	}
	return slices.Contains(c.Arches, runtime.GOARCH)
}

func parseSeccomp(b []byte, caps []string) (*specs.LinuxSeccomp, error) {
	var p profile
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("not a seccomp profile: %w", err)
	}
	if p.DefaultAction == "" {
		return nil, fmt.Errorf("not a seccomp profile: defaultAction is missing")
	}
	out := &specs.LinuxSeccomp{
		DefaultAction: p.DefaultAction, DefaultErrnoRet: p.DefaultErrnoRet, Architectures: p.Architectures,
		Flags: p.Flags, ListenerPath: p.ListenerPath, ListenerMetadata: p.ListenerMetadata,
	}
	if len(out.Architectures) == 0 {
		native := architectures[runtime.GOARCH]
		for _, m := range p.ArchMap {
			if len(native) > 0 && m.Architecture == native[0] {
				out.Architectures = append([]specs.Arch{m.Architecture}, m.SubArchitectures...)
			}
		}
	}
	for _, s := range p.Syscalls {
		if !s.Includes.meets(caps) || s.Excludes.hits(caps) {
			continue
		}
		names := s.Names
		if s.Name != "" {
			names = append([]string{s.Name}, names...)
		}
		if len(names) == 0 {
			continue
		}
		out.Syscalls = append(out.Syscalls, specs.LinuxSyscall{Names: names, Action: s.Action, ErrnoRet: s.ErrnoRet, Args: s.Args})
	}
	return out, nil
}

// defaultSeccomp is the RuntimeDefault profile for a container with caps.
func defaultSeccomp(caps []string) *specs.LinuxSeccomp {
	eperm, enosys := uint(1), uint(38)
	allow := func(names string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: strings.Fields(names), Action: specs.ActAllow, Args: args}
	}
	all := seccompAlways
	for _, c := range caps {
		all += " " + seccompByCapability[c]
	}
	all += " " + seccompByArch[runtime.GOARCH]
	out := &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno, DefaultErrnoRet: &eperm,
		Architectures: architectures[runtime.GOARCH],
		Syscalls:      []specs.LinuxSyscall{allow(all)},
	}
	for _, persona := range []uint64{0x0, 0x8, 0x20000, 0x20008, 0xffffffff} {
		out.Syscalls = append(out.Syscalls, allow("personality", specs.LinuxSeccompArg{Index: 0, Value: persona, Op: specs.OpEqualTo}))
	}
	// AF_VSOCK reaches the hypervisor past every network policy.
	out.Syscalls = append(out.Syscalls, allow("socket", specs.LinuxSeccompArg{Index: 0, Value: 40, Op: specs.OpNotEqual}))
	if !slices.Contains(caps, "CAP_SYS_ADMIN") {
		// No new namespaces. clone3 passes its flags by pointer, where a filter
		// cannot look: ENOSYS makes the C library fall back to clone.
		const namespaceFlags = 0x7e020000
		out.Syscalls = append(out.Syscalls,
			allow("clone", specs.LinuxSeccompArg{Index: 0, Value: namespaceFlags, ValueTwo: 0, Op: specs.OpMaskedEqual}),
			specs.LinuxSyscall{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &enosys})
	}
	return out
}
