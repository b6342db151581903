// Package oci turns a CRI container configuration and an image's configuration
// into an OCI runtime spec, and carries the programs that run it.
//
// Build decides; what it has to look at on the host (the image's user database,
// device nodes, mount sources) is read through the root file system it is
// given. It must not start, mount or change anything.
package oci

import (
	"errors"
	"fmt"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Input is everything a spec depends on.
type Input struct {
	Container *runtimeapi.ContainerConfig
	Sandbox   *runtimeapi.PodSandboxConfig
	Image     *v1.ConfigFile

	RootFS     string // mounted
	CgroupPath string // absolute within the hierarchies
	Namespaces Namespaces
	Files      Files
	Volumes    []Volume // for the image's declared volumes and image mounts
	Host       Host
	// AppArmor is the profile that the container runs under; empty for none.
	AppArmor string

	DefaultCapabilities []string
}

// Namespaces are paths of namespaces to join; empty means the host's for Net,
// IPC, UTS and User, and as PIDMode says for PID.
type Namespaces struct {
	Net, IPC, UTS, User, PID string
	// PrivatePID asks for a pid namespace of the container's own.
	PrivatePID bool
}

// Files are the sandbox's own files on the host.
type Files struct {
	Shm, Hosts, Hostname, ResolvConf string
}

// Volume is a directory of the host to mount because the image asks for it.
type Volume struct {
	Source, Destination string
	ReadOnly            bool
	Options             []string
}

// Host is what of the machine matters.
type Host struct {
	CgroupV2 bool
	// HugeTLB says whether huge pages can be limited; without, they are not.
	HugeTLB bool
	// MaxOpenFiles is the hard limit here; containers get it, up to 2^20, as
	// other runtimes' do from their units.
	MaxOpenFiles uint64
	// MinOOMScoreAdj is the lowest value that may be set here.
	MinOOMScoreAdj int
	// Capabilities that can be given at all; nil for all that are known.
	Capabilities []string
}

// Build makes the spec.
func Build(in Input) (*specs.Spec, error) {
	sec := in.Container.GetLinux().GetSecurityContext()
	args, err := arguments(in.Container, in.Image)
	if err != nil {
		return nil, err
	}
	user, err := resolveUser(in.RootFS, sec, in.Image.Config.User)
	if err != nil {
		return nil, err
	}
	caps, err := capabilities(in.DefaultCapabilities, sec, in.Host.Capabilities)
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Terminal:        in.Container.GetTty(),
			User:            user,
			Args:            args,
			Env:             environment(in),
			Cwd:             workingDir(in.Container, in.Image),
			Capabilities:    caps,
			NoNewPrivileges: sec.GetNoNewPrivs(),
			ApparmorProfile: in.AppArmor,
		},
		Root:        &specs.Root{Path: in.RootFS, Readonly: sec.GetReadonlyRootfs()},
		Annotations: in.Container.GetAnnotations(),
		Linux: &specs.Linux{
			CgroupsPath: in.CgroupPath,
			Namespaces:  namespaces(in),
			Resources:   Resources(in.Container.GetLinux().GetResources(), in.Host),
		},
	}
	adj := max(int(in.Container.GetLinux().GetResources().GetOomScoreAdj()), in.Host.MinOOMScoreAdj)
	spec.Process.OOMScoreAdj = &adj
	if n := min(in.Host.MaxOpenFiles, 1<<20); n > 0 {
		spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: n, Soft: n}}
	}
	if !sec.GetPrivileged() {
		spec.Linux.MaskedPaths = sec.GetMaskedPaths()
		spec.Linux.ReadonlyPaths = sec.GetReadonlyPaths()
	}
	if err := mounts(spec, in); err != nil {
		return nil, err
	}
	if err := devices(spec, in); err != nil {
		return nil, err
	}
	spec.Linux.Seccomp, err = seccomp(sec, caps)
	return spec, err
}

// arguments merges as the CRI and the image spec have it: a command replaces
// the entrypoint and the image's arguments with it.
func arguments(c *runtimeapi.ContainerConfig, img *v1.ConfigFile) ([]string, error) {
	command, args := c.GetCommand(), c.GetArgs()
	if len(command) == 0 {
		if len(args) == 0 {
			args = img.Config.Cmd
		}
		command = img.Config.Entrypoint
	}
	out := append(append([]string{}, command...), args...)
	if len(out) == 0 || out[0] == "" {
		return nil, errors.New("no command specified: neither the container nor its image has one")
	}
	return out, nil
}

func workingDir(c *runtimeapi.ContainerConfig, img *v1.ConfigFile) string {
	for _, d := range []string{c.GetWorkingDir(), img.Config.WorkingDir} {
		if d != "" {
			return path.Join("/", d)
		}
	}
	return "/"
}

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func environment(in Input) []string {
	var out []string
	at := map[string]int{}
	add := func(kv string) {
		key, _, _ := strings.Cut(kv, "=")
		if i, ok := at[key]; ok {
			out[i] = kv
			return
		}
		at[key] = len(out)
		out = append(out, kv)
	}
	add(defaultPath)
	if in.Container.GetTty() {
		add("TERM=xterm")
	}
	if h := in.Sandbox.GetHostname(); h != "" {
		add("HOSTNAME=" + h)
	}
	for _, kv := range in.Image.Config.Env {
		add(kv)
	}
	for _, kv := range in.Container.GetEnvs() {
		add(kv.GetKey() + "=" + string(kv.GetValue()))
	}
	return out
}

func namespaces(in Input) []specs.LinuxNamespace {
	ns := in.Namespaces
	out := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	for _, n := range []struct {
		kind specs.LinuxNamespaceType
		path string
	}{
		{specs.NetworkNamespace, ns.Net}, {specs.IPCNamespace, ns.IPC}, {specs.UTSNamespace, ns.UTS},
		{specs.PIDNamespace, ns.PID}, {specs.UserNamespace, ns.User},
	} {
		if n.path != "" {
			out = append(out, specs.LinuxNamespace{Type: n.kind, Path: n.path})
		}
	}
	if ns.PrivatePID && ns.PID == "" {
		out = append(out, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}
	if in.Host.CgroupV2 && !in.Container.GetLinux().GetSecurityContext().GetPrivileged() {
		out = append(out, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return out
}

func idMappings(in []*runtimeapi.IDMapping) []specs.LinuxIDMapping {
	var out []specs.LinuxIDMapping
	for _, m := range in {
		out = append(out, specs.LinuxIDMapping{HostID: m.GetHostId(), ContainerID: m.GetContainerId(), Size: m.GetLength()})
	}
	return out
}

// Resources converts limits. Zero means unset in CRI.
func Resources(r *runtimeapi.LinuxContainerResources, host Host) *specs.LinuxResources {
	out := &specs.LinuxResources{}
	if r == nil {
		return out
	}
	cpu := &specs.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()}
	if v := uint64(r.GetCpuPeriod()); v > 0 {
		cpu.Period = &v
	}
	if v := r.GetCpuQuota(); v != 0 {
		cpu.Quota = &v
	}
	if v := uint64(r.GetCpuShares()); v > 0 {
		cpu.Shares = &v
	}
	out.CPU = cpu
	mem := &specs.LinuxMemory{}
	if v := r.GetMemoryLimitInBytes(); v != 0 {
		mem.Limit = &v
		// No swap beyond the limit unless it is granted.
		swap := v
		if s := r.GetMemorySwapLimitInBytes(); s != 0 {
			swap = s
		}
		mem.Swap = &swap
	}
	out.Memory = mem
	for _, h := range r.GetHugepageLimits() {
		if !host.HugeTLB {
			break // kubelets always send them, most often as zero
		}
		out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	if host.CgroupV2 && len(r.GetUnified()) > 0 {
		out.Unified = r.GetUnified()
	}
	return out
}

// StopSignal names the signal that ends the container: the configuration's,
// the image's, or SIGTERM.
func StopSignal(c *runtimeapi.ContainerConfig, img *v1.ConfigFile) string {
	if s := c.GetStopSignal(); s != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return SignalName(s)
	}
	if img != nil && img.Config.StopSignal != "" {
		return img.Config.StopSignal
	}
	return "SIGTERM"
}

// SignalName undoes what an enum's identifier cannot hold: SIGRTMINPLUS1 is
// SIGRTMIN+1, SIGRTMAXMINUS2 SIGRTMAX-2.
func SignalName(s runtimeapi.Signal) string {
	return strings.NewReplacer("SIGNAL_", "", "RTMAXMINUS", "RTMAX-", "PLUS", "+", "MINUS", "-").Replace(s.String())
}

// errField says which field of the configuration is wrong.
func errField(field, format string, a ...any) error {
	return fmt.Errorf("%s: %w", field, fmt.Errorf(format, a...))
}
