package containers

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/image"
)

// imageService is CRI's ImageService over the runtime's store.
type imageService struct {
	runtimeapi.UnimplementedImageServiceServer
	r *Runtime
}

func criImage(img *image.Image) *runtimeapi.Image {
	out := &runtimeapi.Image{
		Id: img.ID.String(), RepoTags: img.Tags, RepoDigests: img.Digests, Size: uint64(img.Size),
		Spec: &runtimeapi.ImageSpec{Image: img.ID.String(), Annotations: img.ConfigFile().Config.Labels},
	}
	// A number is a uid, anything else a name; the group is of no interest here.
	user, _, _ := strings.Cut(img.ConfigFile().Config.User, ":")
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		out.Uid = &runtimeapi.Int64Value{Value: uid}
	} else {
		out.Username = user
	}
	return out
}

func (s *imageService) list(f *runtimeapi.ImageFilter) []*runtimeapi.Image {
	if ref := f.GetImage().GetImage(); ref != "" {
		img, err := s.r.images.Get(ref)
		if err != nil {
			return nil
		}
		return []*runtimeapi.Image{criImage(img)}
	}
	var out []*runtimeapi.Image
	for _, img := range s.r.images.List() {
		out = append(out, criImage(img))
	}
	return out
}

func (s *imageService) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: s.list(req.GetFilter())}, nil
}

func (s *imageService) StreamImages(req *runtimeapi.StreamImagesRequest, out runtimeapi.ImageService_StreamImagesServer) error {
	return inPieces(s.list(req.GetFilter()), func(part []*runtimeapi.Image) error {
		return out.Send(&runtimeapi.StreamImagesResponse{Images: part})
	})
}

// ImageStatus answers without an image where there is none.
func (s *imageService) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	img, err := s.r.images.Ensure(ctx, req.GetImage().GetImage())
	if errors.Is(err, image.ErrNotFound) {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.ImageStatusResponse{Image: criImage(img)}
	if req.GetVerbose() {
		out.Info = map[string]string{"config": string(img.Config)}
	}
	return out, nil
}

func (s *imageService) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := req.GetImage().GetImage()
	if ref == "" {
		return nil, status.Error(codes.InvalidArgument, "image.image: required")
	}
	a := req.GetAuth()
	img, err := s.r.images.Pull(ctx, ref, image.Auth{
		Username: a.GetUsername(), Password: a.GetPassword(), Auth: a.GetAuth(),
		IdentityToken: a.GetIdentityToken(), RegistryToken: a.GetRegistryToken(),
	})
	if err != nil {
		return nil, pullError(err)
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.ID.String()}, nil
}

func pullError(err error) error {
	msg := oneLine(err.Error())
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case errors.Is(err, image.ErrNotFound), strings.Contains(msg, "MANIFEST_UNKNOWN"), strings.Contains(msg, "NAME_UNKNOWN"):
		return status.Error(codes.NotFound, msg)
	case strings.Contains(msg, "UNAUTHORIZED"), strings.Contains(msg, "DENIED"):
		return status.Error(codes.PermissionDenied, msg)
	}
	return status.Error(codes.Unknown, msg)
}

func (s *imageService) RemoveImage(_ context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	if err := s.r.removeImage(req.GetImage().GetImage()); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// removeImage forgets an image; layers that containers use stay with them.
func (r *Runtime) removeImage(ref string) error {
	if err := r.images.Remove(ref); err != nil {
		return err
	}
	var inUse []digest.Digest
	for _, c := range r.allContainers() {
		inUse = append(inUse, c.record().Chain...)
	}
	return r.images.Collect(inUse)
}

func (s *imageService) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	now := time.Now().UnixNano()
	usage := func(dir string, bytes, inodes uint64) *runtimeapi.FilesystemUsage {
		return &runtimeapi.FilesystemUsage{
			Timestamp: now, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir},
			UsedBytes: &runtimeapi.UInt64Value{Value: bytes}, InodesUsed: &runtimeapi.UInt64Value{Value: inodes},
		}
	}
	ib, ii := s.r.images.Usage()
	var cb, ci uint64
	for _, c := range s.r.allContainers() {
		id := c.record().ID
		bytes, inodes := s.r.usage.writable(id, s.r.upper(id))
		cb, ci = cb+bytes, ci+inodes
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{usage(s.r.cfg.RootDir, ib, ii)},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{usage(s.r.cfg.RootDir, cb, ci)},
	}, nil
}
