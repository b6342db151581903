package fakecri

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListImages implements the ImageService.
func (s *Server) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &runtimeapi.ListImagesResponse{}
	seen := map[string]bool{}
	for _, img := range s.images {
		if !seen[img.Id] {
			seen[img.Id] = true
			out.Images = append(out.Images, img)
		}
	}
	return out, nil
}

// ImageStatus implements the ImageService.
func (s *Server) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: s.images[r.GetImage().GetImage()]}, nil
}

// PullImage implements the ImageService.
func (s *Server) PullImage(_ context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.GetImage().GetImage()
	if !s.Remote[name] {
		return nil, status.Errorf(codes.NotFound, "failed to resolve image %q: not found", name)
	}
	if s.Auth != nil {
		if err := s.Auth(name, r.Auth); err != nil {
			return nil, status.Errorf(codes.Unauthenticated, "pull %q: %v", name, err)
		}
	}
	return &runtimeapi.PullImageResponse{ImageRef: s.addImage(name, nil, "").Id}, nil
}

// RemoveImage implements the ImageService.
func (s *Server) RemoveImage(_ context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if img := s.images[r.GetImage().GetImage()]; img != nil {
		for k, v := range s.images {
			if v == img {
				delete(s.images, k)
			}
		}
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo implements the ImageService.
func (s *Server) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}, UsedBytes: &runtimeapi.UInt64Value{Value: 1000}}}}, nil
}

// ListContainerStats implements the RuntimeService.
func (s *Server) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &runtimeapi.ListContainerStatsResponse{}
	for _, c := range s.containers {
		if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		out.Stats = append(out.Stats, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Id: c.ID, Labels: c.Config.Labels, Metadata: c.Config.Metadata},
			Cpu:        &runtimeapi.CpuUsage{Timestamp: 1, UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: 5}},
			Memory:     &runtimeapi.MemoryUsage{Timestamp: 1, WorkingSetBytes: &runtimeapi.UInt64Value{Value: 7}, UsageBytes: &runtimeapi.UInt64Value{Value: 20 << 20}},
		})
	}
	return out, nil
}

// ContainerStats implements the RuntimeService.
func (s *Server) ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	all, err := s.ListContainerStats(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, st := range all.Stats {
		if st.Attributes.Id == r.ContainerId {
			return &runtimeapi.ContainerStatsResponse{Stats: st}, nil
		}
	}
	return nil, notFound("container", r.ContainerId)
}
