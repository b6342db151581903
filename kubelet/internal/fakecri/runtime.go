package fakecri

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Version implements the RuntimeService.
func (s *Server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"}, nil
}

// Status implements the RuntimeService.
func (s *Server) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	net := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: !s.NetworkDown}
	if s.NetworkDown {
		net.Reason, net.Message = "NetworkPluginNotReady", "cni plugin not initialized"
	}
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: runtimeapi.RuntimeReady, Status: true}, net}}}, nil
}

// RunPodSandbox implements the RuntimeService.
func (s *Server) RunPodSandbox(_ context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := &sandbox{id: s.id("sb"), cfg: r.Config, created: time.Now().UnixNano()}
	if r.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		sb.ip = fmt.Sprintf("10.244.0.%d", len(s.sandboxes)+2)
	}
	s.sandboxes[sb.id] = sb
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: sb.id}, nil
}

// StopPodSandbox implements the RuntimeService.
func (s *Server) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb := s.sandboxes[r.PodSandboxId]; sb != nil {
		sb.state = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		for _, c := range s.containers {
			if c.Sandbox == sb.id {
				s.exit(c, 137, "")
			}
		}
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements the RuntimeService.
func (s *Server) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range s.containers {
		if c.Sandbox == r.PodSandboxId {
			s.exit(c, 137, "")
			delete(s.containers, id)
		}
	}
	delete(s.sandboxes, r.PodSandboxId)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus implements the RuntimeService.
func (s *Server) PodSandboxStatus(_ context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.sandboxes[r.PodSandboxId]
	if sb == nil {
		return nil, notFound("sandbox", r.PodSandboxId)
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: s.sandboxStatus(sb)}, nil
}

func (s *Server) sandboxStatus(sb *sandbox) *runtimeapi.PodSandboxStatus {
	return &runtimeapi.PodSandboxStatus{
		Id: sb.id, Metadata: sb.cfg.Metadata, State: sb.state, CreatedAt: sb.created, Labels: sb.cfg.Labels, Annotations: sb.cfg.Annotations,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: sb.ip},
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: sb.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
	}
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// ListPodSandbox implements the RuntimeService.
func (s *Server) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &runtimeapi.ListPodSandboxResponse{}
	for _, sb := range s.sandboxes {
		if matches(r.GetFilter().GetLabelSelector(), sb.cfg.Labels) {
			out.Items = append(out.Items, &runtimeapi.PodSandbox{Id: sb.id, Metadata: sb.cfg.Metadata, State: sb.state, CreatedAt: sb.created, Labels: sb.cfg.Labels})
		}
	}
	return out, nil
}

// CreateContainer implements the RuntimeService.
func (s *Server) CreateContainer(_ context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.sandboxes[r.PodSandboxId]
	if sb == nil || sb.state != runtimeapi.PodSandboxState_SANDBOX_READY {
		return nil, notFound("ready sandbox", r.PodSandboxId)
	}
	if s.images[r.Config.GetImage().GetImage()] == nil {
		return nil, notFound("image", r.Config.GetImage().GetImage())
	}
	for _, m := range r.Config.Mounts {
		if _, err := os.Stat(m.HostPath); err != nil && m.Image == nil {
			return nil, status.Errorf(codes.InvalidArgument, "mount source: %v", err)
		}
	}
	c := &Container{ID: s.id("ct"), Sandbox: sb.id, Name: r.Config.Metadata.Name, Config: r.Config, created: time.Now().UnixNano(), exited: make(chan struct{})}
	if r.Config.LogPath != "" {
		c.logPath = filepath.Join(sb.cfg.LogDirectory, r.Config.LogPath)
		if err := os.WriteFile(c.logPath, nil, 0o640); err != nil {
			return nil, status.Errorf(codes.Internal, "make log: %v", err)
		}
	}
	s.containers[c.ID] = c
	s.emit(c, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: c.ID}, nil
}

// StartContainer implements the RuntimeService.
func (s *Server) StartContainer(_ context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	s.mu.Lock()
	c := s.containers[r.ContainerId]
	if c == nil {
		s.mu.Unlock()
		return nil, notFound("container", r.ContainerId)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_CREATED {
		s.mu.Unlock()
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is %s", c.ID, c.state)
	}
	c.state, c.started = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	s.emit(c, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	started := s.Started
	s.mu.Unlock()
	if started != nil {
		started(c)
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer implements the RuntimeService.
func (s *Server) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	s.mu.Lock()
	c := s.containers[r.ContainerId]
	if c == nil {
		s.mu.Unlock()
		return nil, notFound("container", r.ContainerId)
	}
	if c.state == runtimeapi.ContainerState_CONTAINER_CREATED {
		c.state, c.code, c.finished = runtimeapi.ContainerState_CONTAINER_EXITED, 137, time.Now().UnixNano()
		close(c.exited)
	}
	if !c.IgnoreTerm && r.Timeout > 0 {
		s.exit(c, 143, "")
	}
	s.mu.Unlock()
	select {
	case <-c.exited:
		return &runtimeapi.StopContainerResponse{}, nil
	case <-time.After(time.Duration(r.Timeout) * time.Second):
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	s.Exit(c, 137, "")
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer implements the RuntimeService.
func (s *Server) RemoveContainer(_ context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.containers[r.ContainerId]; c != nil {
		s.exit(c, 137, "")
		delete(s.containers, c.ID)
		s.emit(c, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ListContainers implements the RuntimeService.
func (s *Server) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &runtimeapi.ListContainersResponse{}
	for _, c := range s.containers {
		if matches(r.GetFilter().GetLabelSelector(), c.Config.Labels) {
			out.Containers = append(out.Containers, &runtimeapi.Container{
				Id: c.ID, PodSandboxId: c.Sandbox, Metadata: c.Config.Metadata, Image: c.Config.Image, State: c.state, CreatedAt: c.created, Labels: c.Config.Labels, Annotations: c.Config.Annotations,
			})
		}
	}
	return out, nil
}

// ContainerStatus implements the RuntimeService.
func (s *Server) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.containers[r.ContainerId]
	if c == nil {
		return nil, notFound("container", r.ContainerId)
	}
	return &runtimeapi.ContainerStatusResponse{Status: s.status(c)}, nil
}

func (s *Server) status(c *Container) *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{
		Id: c.ID, Metadata: c.Config.Metadata, State: c.state, CreatedAt: c.created, StartedAt: c.started, FinishedAt: c.finished, ExitCode: c.code,
		Image: &runtimeapi.ImageSpec{Image: c.Config.GetImage().GetUserSpecifiedImage(), UserSpecifiedImage: c.Config.GetImage().GetUserSpecifiedImage()}, ImageRef: c.Config.GetImage().GetImage(),
		Reason: c.reason, Message: c.message, Labels: c.Config.Labels, Annotations: c.Config.Annotations, Mounts: c.Config.Mounts, LogPath: c.logPath,
		Resources: &runtimeapi.ContainerResources{Linux: c.Config.GetLinux().GetResources()},
	}
}

// ReopenContainerLog implements the RuntimeService.
func (s *Server) ReopenContainerLog(_ context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.containers[r.ContainerId]
	if c == nil {
		return nil, notFound("container", r.ContainerId)
	}
	if err := os.WriteFile(c.logPath, nil, 0o640); err != nil {
		return nil, status.Errorf(codes.Internal, "reopen log: %v", err)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// UpdateContainerResources implements the RuntimeService.
func (s *Server) UpdateContainerResources(_ context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.containers[r.ContainerId]
	if c == nil {
		return nil, notFound("container", r.ContainerId)
	}
	c.Config.Linux.Resources = r.Linux
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// UpdateRuntimeConfig implements the RuntimeService.
func (s *Server) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// ExecSync implements the RuntimeService.
func (s *Server) ExecSync(_ context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	s.mu.Lock()
	c, f := s.containers[r.ContainerId], s.RunExec
	s.mu.Unlock()
	if c == nil {
		return nil, notFound("container", r.ContainerId)
	}
	if f == nil {
		return &runtimeapi.ExecSyncResponse{}, nil
	}
	out, code, err := f(c, r.Cmd)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{Stdout: []byte(out), ExitCode: code}, nil
}

// GetContainerEvents implements the RuntimeService.
func (s *Server) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream runtimeapi.RuntimeService_GetContainerEventsServer) error {
	ch := make(chan *runtimeapi.ContainerEventResponse, 1000)
	s.mu.Lock()
	if s.Mute {
		s.mu.Unlock()
		return status.Error(codes.Unimplemented, "no events here")
	}
	s.watchers[ch] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, ch)
		s.mu.Unlock()
	}()
	for {
		select {
		case ev := <-ch:
			if err := stream.Send(ev); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}
