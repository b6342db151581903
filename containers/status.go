package containers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/cgroup"
	"github.com/skiff-k8s/skiff/containers/monitor"
	"github.com/skiff-k8s/skiff/containers/oci"
)

// Version names the runtime.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "skiff", RuntimeVersion: r.cfg.Version, RuntimeApiVersion: "v1"}, nil
}

// Status tells whether containers can be run.
func (r *Runtime) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if err := r.cfg.Network.Ready(ctx); err != nil {
		network.Status, network.Reason, network.Message = false, "NetworkNotReady", oneLine(err.Error())
	}
	features := &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: r.unmappable == nil}
	out := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true}, network,
		}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	for _, name := range append([]string{"", "skiff"}, r.cfg.RuntimeHandlers...) {
		out.RuntimeHandlers = append(out.RuntimeHandlers, &runtimeapi.RuntimeHandler{Name: name, Features: features})
	}
	if req.GetVerbose() {
		info, err := json.Marshal(map[string]string{"rootDir": r.cfg.RootDir, "stateDir": r.cfg.StateDir, "cgroupRoot": r.cfg.CgroupRoot,
			"apparmor": strconv.FormatBool(r.apparmor.Enabled())})
		if err != nil {
			return nil, err
		}
		out.Info = map[string]string{"config": string(info)}
	}
	return out, nil
}

// RuntimeConfig tells the kubelet which cgroup driver to use.
func (r *Runtime) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig is told the pod CIDR, which is the network's business.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// CheckpointContainer is not offered.
func (r *Runtime) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return nil, status.Error(codes.Unimplemented, "this runtime does not checkpoint containers")
}

// ContainerStatus tells a container's state.
func (r *Runtime) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := r.containerFor(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.ContainerStatusResponse{Status: r.containerStatus(c)}
	if req.GetVerbose() {
		rec := c.record()
		out.Info = map[string]string{"pid": strconv.Itoa(rec.PID), "cgroup": rec.Cgroup}
	}
	return out, nil
}

func (r *Runtime) containerStatus(c *containerState) *runtimeapi.ContainerStatus {
	rec := c.record()
	groups := make([]int64, 0, len(rec.Groups))
	for _, g := range rec.Groups {
		groups = append(groups, int64(g))
	}
	return &runtimeapi.ContainerStatus{
		Id: rec.ID, Metadata: c.cfg.GetMetadata(), State: rec.State,
		CreatedAt: nanos(rec.Created), StartedAt: nanos(rec.Started), FinishedAt: nanos(rec.Finished),
		ExitCode: rec.ExitCode, Reason: rec.Reason, Message: rec.Message,
		Image: &runtimeapi.ImageSpec{
			Image: rec.ImageName, Annotations: c.cfg.GetImage().GetAnnotations(),
			UserSpecifiedImage: c.cfg.GetImage().GetUserSpecifiedImage(), RuntimeHandler: c.cfg.GetImage().GetRuntimeHandler(),
		},
		ImageRef: rec.ImageRef, ImageId: rec.ImageID.String(),
		Labels: c.cfg.GetLabels(), Annotations: c.cfg.GetAnnotations(), Mounts: c.cfg.GetMounts(), LogPath: rec.LogPath,
		Resources:  &runtimeapi.ContainerResources{Linux: resourcesOf(c, rec)},
		User:       &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{Uid: int64(rec.UID), Gid: int64(rec.GID), SupplementalGroups: groups}},
		StopSignal: stopSignal(rec.Signal),
	}
}

// stopSignal is the enum's value for a signal's name.
func stopSignal(name string) runtimeapi.Signal {
	sig, err := oci.ParseSignal(name)
	if err != nil {
		return runtimeapi.Signal_SIGNAL_SIGTERM
	}
	found := runtimeapi.Signal_SIGNAL_SIGTERM
	// Several names share a number (SIGIOT, SIGABRT): the exact one is best.
	for v := int32(len(runtimeapi.Signal_name)) - 1; v > 0; v-- {
		candidate := runtimeapi.Signal(v)
		if oci.SignalName(candidate) == name {
			return candidate
		}
		if got, err := oci.ParseSignal(oci.SignalName(candidate)); err == nil && got == sig {
			found = candidate
		}
	}
	return found
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func resourcesOf(c *containerState, rec containerRecord) *runtimeapi.LinuxContainerResources {
	if len(rec.Resources) > 0 {
		var res runtimeapi.LinuxContainerResources
		if err := proto.Unmarshal(rec.Resources, &res); err == nil {
			return &res
		}
	}
	return c.cfg.GetLinux().GetResources()
}

// ListContainers lists containers that match the filter.
func (r *Runtime) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: r.listContainers(req.GetFilter())}, nil
}

// StreamContainers is ListContainers in pieces.
func (r *Runtime) StreamContainers(req *runtimeapi.StreamContainersRequest, out runtimeapi.RuntimeService_StreamContainersServer) error {
	return inPieces(r.listContainers(req.GetFilter()), func(part []*runtimeapi.Container) error {
		return out.Send(&runtimeapi.StreamContainersResponse{Containers: part})
	})
}

func (r *Runtime) listContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var out []*runtimeapi.Container
	for _, c := range r.allContainers() {
		rec := c.record()
		if !idMatches(f.GetId(), rec.ID) || !idMatches(f.GetPodSandboxId(), rec.SandboxID) ||
			!labelsMatch(f.GetLabelSelector(), c.cfg.GetLabels()) ||
			(f.GetState() != nil && f.GetState().GetState() != rec.State) {
			continue
		}
		out = append(out, &runtimeapi.Container{
			Id: rec.ID, PodSandboxId: rec.SandboxID, Metadata: c.cfg.GetMetadata(), Image: c.cfg.GetImage(),
			ImageRef: rec.ImageRef, ImageId: rec.ImageID.String(), State: rec.State, CreatedAt: nanos(rec.Created),
			Labels: c.cfg.GetLabels(), Annotations: c.cfg.GetAnnotations(),
		})
	}
	slices.SortFunc(out, func(a, b *runtimeapi.Container) int { return int(b.CreatedAt - a.CreatedAt) })
	return out
}

// UpdateContainerResources changes limits of a container, running or not.
func (r *Runtime) UpdateContainerResources(_ context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	c, err := r.containerFor(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	c.op.Lock()
	defer c.op.Unlock()
	rec := c.record()
	switch rec.State {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		if err := cgroup.At(rec.Cgroup).Update(oci.Resources(req.GetLinux(), r.host)); err != nil {
			return nil, err
		}
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		if err := r.respec(rec.ID, req.GetLinux()); err != nil {
			return nil, err
		}
	default:
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is %s", rec.ID, stateName(rec.State))
	}
	merged, ok := proto.Clone(resourcesOf(c, rec)).(*runtimeapi.LinuxContainerResources)
	if !ok || merged == nil {
		merged = &runtimeapi.LinuxContainerResources{}
	}
	proto.Merge(merged, req.GetLinux()) // what is unset stays
	b, err := proto.Marshal(merged)
	if err != nil {
		return nil, fmt.Errorf("encode resources: %w", err)
	}
	if err := r.updateContainer(c, func(x *containerRecord) { x.Resources = b }); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// respec writes limits into the spec of a container that has not been started.
func (r *Runtime) respec(id string, res *runtimeapi.LinuxContainerResources) error {
	spec, err := r.readSpec(id)
	if err != nil {
		return err
	}
	next := oci.Resources(res, r.host)
	next.Devices = spec.Linux.Resources.Devices
	spec.Linux.Resources = next
	return r.writeSpec(id, spec)
}

// UpdatePodSandboxResources is for runtimes that keep a sandbox of their own
// to adjust; the pod's cgroup is the kubelet's.
func (r *Runtime) UpdatePodSandboxResources(_ context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if _, err := r.sandboxFor(req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// ReopenContainerLog follows a log file that has been rotated away.
func (r *Runtime) ReopenContainerLog(_ context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := r.containerFor(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	rec := c.record()
	if rec.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is %s, not running", rec.ID, stateName(rec.State))
	}
	if err := monitor.ReopenLog(r.containerRun(rec.ID)); err != nil {
		return nil, fmt.Errorf("reopen log of container %s: %w", rec.ID[:12], err)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
