package containers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/skiff-k8s/skiff/containers/image"
)

// CRI has no call to load an image from a file, so the socket serves one of
// our own: the path goes in; what comes out are lines, "at BYTES DONE LAYERS"
// now and then, "loaded NAME" for each image at the end.
const (
	loadService = "skiff.containers.v1.Images"
	loadMethod  = "/" + loadService + "/Load"
	loadEvery   = 200 * time.Millisecond
)

// loader is what the service needs.
type loader interface {
	load(path string, stream grpc.ServerStream) error
}

var loadStream = grpc.StreamDesc{
	StreamName: "Load", ServerStreams: true,
	Handler: func(srv any, stream grpc.ServerStream) error {
		var path wrapperspb.StringValue
		if err := stream.RecvMsg(&path); err != nil {
			return err
		}
		return srv.(loader).load(path.GetValue(), stream)
	},
}

var loaderDesc = grpc.ServiceDesc{ServiceName: loadService, HandlerType: (*loader)(nil), Streams: []grpc.StreamDesc{loadStream}}

func (r *Runtime) load(path string, stream grpc.ServerStream) error {
	ctx, at := image.Follow(stream.Context())
	type result struct {
		names []string
		err   error
	}
	done := make(chan result, 1)
	go func() {
		names, err := r.images.Load(ctx, path)
		done <- result{names, err}
	}()
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			// Who has gone away is seen by ctx.
			p := at()
			_ = stream.SendMsg(wrapperspb.String(fmt.Sprintf("at %d %d %d", p.Bytes, p.Done, p.Layers)))
		case got := <-done:
			if got.err != nil {
				return status.Error(codes.InvalidArgument, oneLine(got.err.Error()))
			}
			for _, n := range got.names {
				if err := stream.SendMsg(wrapperspb.String("loaded " + n)); err != nil {
					return err
				}
			}
			return nil
		}
	}
}

// LoadImages loads the images of a file or directory and returns their names.
// at, which may be nil, is told how far it is.
func (c *Client) LoadImages(ctx context.Context, path string, at func(image.Progress)) ([]string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("load images: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.conn.NewStream(ctx, &loadStream, loadMethod)
	if err == nil {
		err = errors.Join(stream.SendMsg(wrapperspb.String(abs)), stream.CloseSend())
	}
	var names []string
	for err == nil {
		var line wrapperspb.StringValue
		if err = stream.RecvMsg(&line); err != nil {
			break
		}
		if name, ok := strings.CutPrefix(line.GetValue(), "loaded "); ok {
			names = append(names, name)
			continue
		}
		var p image.Progress
		if n, _ := fmt.Sscanf(line.GetValue(), "at %d %d %d", &p.Bytes, &p.Done, &p.Layers); n == 3 && at != nil {
			at(p)
		}
	}
	if errors.Is(err, io.EOF) {
		return names, nil
	}
	return nil, fmt.Errorf("load images: %s", status.Convert(err).Message())
}
